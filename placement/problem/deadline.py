"""Until when work may go on: a time limit and Ctrl-C in one object, passed to whatever takes long.

Work asks `check` between its steps, and lets `ending` stop what takes long by itself (a solver, annealing chains).
While a deadline is `listening`, Ctrl-C, or SIGTERM, only notes that the user wants an end, so no step is torn apart:
what is found stays, files are whole.  Steps may be slow to ask, so the third one is a `KeyboardInterrupt` like any
other.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from threading import Timer, current_thread, main_thread
from types import FrameType

from hdl.errors import OutOfTimeError

# a `Timer` cannot wait for longer
LONGEST_WAIT_S = 1e6
# what ends the work in order: Ctrl-C, and what `kill`, `timeout` and batch systems send
HEARD = (signal.SIGINT, signal.SIGTERM)
# either so often is a `KeyboardInterrupt`
IMPATIENT = 3


class Ended(OutOfTimeError):
    """The time is up or the user pressed Ctrl-C: what was found so far stands."""


@dataclass
class _Presses:
    """Ctrl-C since the work began, and what to stop at the next one."""

    count: int = 0
    stops: list[Callable[[], None]] = field(default_factory=list)


class Deadline:
    """When work ends; time counts from when this was made."""

    def __init__(self, limit_seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit_seconds, self.clock = limit_seconds, clock
        self._began = clock()
        self._until = inf if limit_seconds is None else self._began + limit_seconds
        self._presses = _Presses()
        # as many are over when this is
        self._patience = 1

    # ---- asking

    @property
    def spent_seconds(self) -> float:
        """Since the work began."""
        return self.clock() - self._began

    @property
    def seconds_left(self) -> float:
        """Until the limit, `inf` without one; 0 after Ctrl-C."""
        return 0.0 if self.interrupted else max(0.0, self._until - self.clock())

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the work."""
        return self._presses.count >= self._patience

    @property
    def over(self) -> bool:
        """Whether the work is to end."""
        return self.seconds_left <= 0

    def check(self) -> None:
        """Raises `Ended` when the work is to end."""
        if self.over:
            raise Ended("interrupted" if self.interrupted else f"the time limit of {self.limit_seconds:g} s is over")

    # ---- deadlines of parts of the work

    def within(self, seconds: float) -> Deadline:
        """An end after so many seconds from now, or with this one if that is sooner."""
        part = self._like()
        part._until = min(self._until, self.clock() + seconds)
        return part

    def leaving(self, seconds: float) -> Deadline:
        """An end so many seconds before the limit, for what must still be done by then."""
        part = self._like()
        part._until = self._until - seconds
        return part

    def closing(self) -> Deadline:
        """For what makes a find of the ended work worth keeping: the same limit, but it goes on until Ctrl-C is
        pressed once more."""
        part = self._like()
        part._patience = self._presses.count + 1
        return part

    def _like(self) -> Deadline:
        part = Deadline.__new__(Deadline)
        part.__dict__.update(self.__dict__)
        return part

    # ---- ending

    def interrupt(self) -> None:
        """End the work now, as Ctrl-C does."""
        self._presses.count += 1
        for stop in list(self._presses.stops):
            stop()

    @contextmanager
    def ending(self, stop: Callable[[], None]) -> Iterator[None]:
        """Within, ``stop`` is called when the work is to end: from another thread, or from the handler of Ctrl-C."""
        presses, patience = self._presses, self._patience

        def when_over() -> None:
            if presses.count >= patience:
                stop()

        presses.stops.append(when_over)
        timer = Timer(min(self.seconds_left, LONGEST_WAIT_S), stop)
        timer.daemon = True
        if self._until < inf or self.over:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()
            presses.stops.remove(when_over)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within, Ctrl-C, or SIGTERM, ends the work in order.  Where neither is to be heard (not the main thread;
        ignored, as Ctrl-C is by `nohup`), nothing changes."""

        def pressed(_number: int, _frame: FrameType | None) -> None:
            self.interrupt()
            if self._presses.count >= IMPATIENT:
                raise KeyboardInterrupt

        heard = HEARD if current_thread() is main_thread() else ()
        before = {each: signal.getsignal(each) for each in heard}
        listened = [each for each, handler in before.items() if handler not in (signal.SIG_IGN, None)]
        for each in listened:
            signal.signal(each, pressed)
        try:
            yield
        finally:
            for each in listened:
                signal.signal(each, before[each])
