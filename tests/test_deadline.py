"""Deadlines: the clock is injected, Ctrl-C is a real signal, nothing sleeps."""

from __future__ import annotations

import os
import signal
import threading
from math import inf

import pytest

from hdl.errors import OutOfTimeError
from placement.problem.deadline import Deadline, Ended
from tests.flow_support import Clock


def test_time_counts_from_the_beginning_and_ends_at_the_limit() -> None:
    clock = Clock()
    deadline = Deadline(10.0, clock)
    clock.now += 4.0
    assert (deadline.spent_seconds, deadline.seconds_left, deadline.over) == (4.0, 6.0, False)
    deadline.check()
    clock.now += 6.0
    assert (deadline.seconds_left, deadline.over, deadline.interrupted) == (0.0, True, False)
    with pytest.raises(Ended, match="the time limit of 10 s is over"):
        deadline.check()
    assert issubclass(Ended, OutOfTimeError), "who knows of no deadlines sees a search without time"


def test_without_a_limit_only_an_interrupt_ends() -> None:
    clock = Clock()
    deadline = Deadline(None, clock)
    clock.now += 1e9
    assert deadline.seconds_left == inf
    deadline.check()
    deadline.interrupt()
    assert (deadline.seconds_left, deadline.interrupted) == (0.0, True)
    with pytest.raises(Ended, match="interrupted"):
        deadline.check()


def test_parts_end_sooner_and_never_later_than_the_whole() -> None:
    clock = Clock()
    deadline = Deadline(10.0, clock)
    soon, late, early = deadline.within(3.0), deadline.within(30.0), deadline.leaving(4.0)
    clock.now += 3.0
    assert (soon.over, late.over, early.over, deadline.over) == (True, False, False, False)
    assert late.seconds_left == 7.0
    clock.now += 3.0
    assert early.over
    assert deadline.spent_seconds == late.spent_seconds == 6.0
    deadline.interrupt()
    assert late.over, "Ctrl-C ends the whole and its parts"
    unlimited = Deadline(None, clock)
    assert unlimited.leaving(5.0).seconds_left == inf
    assert unlimited.within(5.0).seconds_left == 5.0


def test_what_closes_the_work_goes_on_until_ctrl_c_comes_once_more() -> None:
    clock = Clock()
    deadline = Deadline(10.0, clock)
    deadline.interrupt()
    closing = deadline.closing()
    assert deadline.over
    assert closing.seconds_left == 10.0
    deadline.interrupt()
    assert closing.over
    again = Deadline(10.0, clock).closing()
    clock.now += 10.0
    assert again.over, "the limit holds"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_is_noted_and_the_third_is_an_interrupt_like_any_other(number: signal.Signals) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    deadline = Deadline()
    with deadline.listening():
        os.kill(os.getpid(), number)
        assert deadline.interrupted
        os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert all(signal.getsignal(each) is handler for each, handler in before.items())
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_who_ignores_ctrl_c_goes_on_doing_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        deadline = Deadline()
        with deadline.listening():
            os.kill(os.getpid(), signal.SIGINT)
        assert not deadline.over
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_ctrl_c_alone() -> None:
    seen = []

    def work() -> None:
        with Deadline().listening():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


def test_what_takes_long_is_stopped_by_ctrl_c_and_by_the_limit_and_by_nothing_else() -> None:
    stopped = threading.Event()
    deadline = Deadline()
    with deadline.ending(stopped.set):
        pass
    deadline.interrupt()
    assert not stopped.is_set(), "it had ended before"

    deadline = Deadline()
    with deadline.ending(stopped.set):
        deadline.interrupt()
        assert stopped.is_set()

    stopped.clear()
    with deadline.closing().ending(stopped.set):
        assert not stopped.is_set(), "the first Ctrl-C is not its end"
        deadline.interrupt()
        assert stopped.is_set()

    stopped.clear()
    with Deadline(0.01).ending(stopped.set):
        assert stopped.wait(60.0)

    stopped.clear()
    ended = Deadline()
    ended.interrupt()
    with ended.ending(stopped.set):
        assert stopped.wait(60.0), "what begins after the end is stopped too"
