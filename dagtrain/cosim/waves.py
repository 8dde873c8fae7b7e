"""Waveforms of streams: valid, ready, the payload, each lane as the number that it means, and the frame that passes;
beside them signals inside the circuits that send and get them (`dagtrain.cosim.inside`).

The bench writes a line whenever a stream's handshake or payload changes; what is chosen of that becomes a VCD file, or
an FST file, beside what tells viewers how to show it (`dagtrain.cosim.viewers`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from string import hexdigits
from typing import Any, Protocol

from vcd import VCDWriter
from vcd.writer import RealVariable

from dagtrain.cosim.inside import Inner
from dagtrain.cosim.trace import WAVES_FILE, Traced, beats_of
from dagtrain.graph.ir import Graph
from hdl.errors import DagtrainError
from hdl.layers.beats import unpack
from hdl.tensor import Port

# lanes of a payload that have a line of their own
SHOWN_LANES = 16
# the scope of signals inside a node's circuit, beside those of its streams
INSIDE = "inside"
HEX = frozenset(hexdigits)


class WaveKind(Enum):
    """A format of waveforms, by the name of its files."""

    VCD = "vcd"
    FST = "fst"


@dataclass(frozen=True)
class Window:
    """Cycles of a run, both ends among them."""

    first: int = 0
    last: int = 2**62

    @property
    def arguments(self) -> tuple[str, ...]:
        """What tells the bench to write them."""
        return f"+waves_from={self.first}", f"+waves_to={self.last}"


@dataclass(frozen=True)
class Change:
    """What a stream shows from a cycle on."""

    cycle: int
    valid: bool
    ready: bool
    # None: unknown, since nobody has written it yet
    payload: int | None


@dataclass(frozen=True)
class Wave:
    """A stream over a stretch of a run."""

    traced: Traced
    port: Port
    changes: tuple[Change, ...]
    # cycles in which its beats passed, from the first one of the run on
    passed: Sequence[int]
    # that was chosen
    window: Window = Window()

    @property
    def scope(self) -> tuple[str, ...]:
        """Where its variables stand: the port, with what stands behind it, in the node."""
        one = self.traced
        return *node_scope(one.device, one.node), f"{one.port}_{'sent' if one.produced else 'got'}"

    def tensor_at(self, cycle: int) -> int:
        """How many tensors had passed whole before a cycle."""
        return bisect_left(self.passed, cycle) // self.port.beats

    def cycles_of(self, first: int, last: int) -> Window | None:
        """When tensors passed, counted from 0, both ends among them; None if none of them did."""
        beats = self.passed[first * self.port.beats : (last + 1) * self.port.beats]
        return Window(beats[0], beats[-1]) if beats else None


def node_scope(device: str, node: str) -> tuple[str, ...]:
    """Scopes of what is shown of a node: viewers take a point for the end of a scope's name."""
    return device, *node.split(".")


def inner_scope(one: Inner) -> tuple[str, ...]:
    """Where a signal inside a circuit stands."""
    return *node_scope(one.device, one.node), INSIDE, *one.scope


def parse_range(text: str | None, option: str, least: int) -> tuple[int, int] | None:
    """Of "3" or "3:8", both ends; None of None.  Raises `DagtrainError` for anything else, or below ``least``."""
    if text is None:
        return None
    first, _, last = text.partition(":")
    if not (first.isdecimal() and (last or first).isdecimal()) or not least <= int(first) <= int(last or first):
        raise DagtrainError(f"{option} {text}: no range", f"write 3 or 3:8, counted from {least}")
    return int(first), int(last or first)


def read_waves(folder: Path, traced: Sequence[Traced], graph: Graph) -> list[Wave]:
    """What the bench wrote of streams in the cycles that it was told."""
    found: list[list[Change]] = [[] for _ in traced]
    with (folder / WAVES_FILE).open() as file:
        for line in file:
            number, change = change_of(line)
            found[number].append(change)
    passed = beats_of(folder, len(traced))
    return [
        Wave(one, graph.by_name[one.node].layer.port(one.port), tuple(changes), cycles)
        for one, changes, (cycles, _) in zip(traced, found, passed, strict=True)
    ]


def change_of(line: str) -> tuple[int, Change]:
    """A line that the bench wrote: the number of the stream, and what it shows."""
    number, cycle, valid, ready, payload = line.split()
    bits = int(payload, 16) if set(payload) <= HEX else None
    return int(number), Change(int(cycle), valid == "1", ready == "1", bits)


def chosen_waves(
    waves: Sequence[Wave], nodes: Sequence[str], frames: tuple[int, int] | None, cycles: Window
) -> list[Wave]:
    """Streams of nodes whose names match, while frames pass, and in cycles.

    ``nodes``: patterns; none: all.  ``frames``: counted from 0 over the whole run, both ends among them.
    Raises `DagtrainError` where that leaves nothing."""
    found = []
    for wave in waves:
        if nodes and not any(fnmatchcase(wave.traced.node, pattern) for pattern in nodes):
            continue
        window = cycles
        if frames is not None and not wave.port.tensor.kind.per_batch:
            theirs = wave.cycles_of(*frames)
            if theirs is None:
                continue
            window = Window(max(cycles.first, theirs.first), min(cycles.last, theirs.last))
        kept = _within(wave.changes, window)
        if kept:
            found.append(Wave(wave.traced, wave.port, kept, wave.passed, window))
    if not found:
        known = sorted({wave.traced.node for wave in waves})
        raise DagtrainError("no stream moves in what was chosen for waves", f"there are the nodes {', '.join(known)}")
    return found


def chosen_inside(inner: Sequence[Inner], waves: Sequence[Wave], period_ps: int) -> list[Inner]:
    """Signals inside circuits, from the first to the last cycle in which a stream of their node was chosen."""
    windows: dict[str, Window] = {}
    for wave in waves:
        now = wave.window
        before = windows.get(wave.traced.node, now)
        windows[wave.traced.node] = Window(min(before.first, now.first), max(before.last, now.last))
    found = []
    for one in inner:
        if one.node in windows:
            window = windows[one.node]
            found.append(one.within(window.first * period_ps, window.last * period_ps))
    return found


def _within(changes: Sequence[Change], window: Window) -> tuple[Change, ...]:
    """Changes in a stretch, what holds at its beginning first; none in one that ends before it begins."""
    if window.first > window.last:
        return ()
    before = [change for change in changes if change.cycle < window.first][-1:]
    held = [Change(window.first, change.valid, change.ready, change.payload) for change in before]
    inside = [change for change in changes if window.first <= change.cycle <= window.last]
    return (*(held if not inside or inside[0].cycle > window.first else ()), *inside)


def write_waves(path: Path, waves: Sequence[Wave], kind: WaveKind, period_ps: int, inner: Sequence[Inner] = ()) -> Path:
    """The waveform at ``path`` with the ending of its kind; returns that.

    A cycle of the clock is ``period_ps`` long; names are device, node, port, or what is inside of a node's circuit.
    Raises `DagtrainError` where the library for FST is missing."""
    file = path.with_suffix(f".{kind.value}")
    with _vcd(file) if kind is WaveKind.VCD else _fst(file) as sink:
        events = [*_stream_events(sink, waves, period_ps), *_inner_events(sink, inner)]
        for time, variable, value in sorted(events, key=lambda event: event[0]):
            sink.change(variable, time, value)
    return file


# ---- files of both kinds


class _Sink(Protocol):
    """A waveform that is being written."""

    def variable(self, scope: tuple[str, ...], name: str, bits: int | None) -> Any:
        """A wire of so many bits, or a real number."""

    def change(self, variable: Any, time: int, value: int | float | None) -> None:
        """A variable has a value from a time on, None an unknown one; times never go back."""


# (picoseconds, variable, value)
_Event = tuple[int, Any, int | float | None]


def _stream_events(sink: _Sink, waves: Sequence[Wave], period_ps: int) -> Iterator[_Event]:
    for wave in waves:
        fixed, scope = wave.port.tensor.fixed, wave.scope
        valid, ready = sink.variable(scope, "valid", 1), sink.variable(scope, "ready", 1)
        frame = sink.variable(scope, "tensor", 32)
        payload = sink.variable(scope, "payload", wave.port.payload_bits)
        lanes = [sink.variable(scope, f"lane{lane}", None) for lane in range(min(wave.port.lanes, SHOWN_LANES))]
        last: list[int | float | None] = []
        for change in wave.changes:
            numbers: list[float | None] = [None] * wave.port.lanes
            if change.payload is not None:
                numbers = [float(code) * fixed.step for code in unpack([change.payload], fixed, wave.port.lanes)]
            tensor = wave.tensor_at(change.cycle)
            now = [int(change.valid), int(change.ready), tensor, change.payload, *numbers[: len(lanes)]]
            for place, (variable, value) in enumerate(zip((valid, ready, frame, payload, *lanes), now, strict=True)):
                if not last or last[place] != value:
                    yield change.cycle * period_ps, variable, value
            last = now


def _inner_events(sink: _Sink, inner: Sequence[Inner]) -> Iterator[_Event]:
    for one in inner:
        variable = sink.variable(inner_scope(one), one.name, one.bits)
        for time, value in one.changes:
            yield time, variable, value


class _Vcd:
    def __init__(self, writer: VCDWriter) -> None:
        self._writer = writer

    def variable(self, scope: tuple[str, ...], name: str, bits: int | None) -> Any:
        kind = "real" if bits is None else "wire"
        return self._writer.register_var(scope, name, kind, size=64 if bits is None else bits)

    def change(self, variable: Any, time: int, value: int | float | None) -> None:
        unknown = math.nan if isinstance(variable, RealVariable) else "x"
        self._writer.change(variable, time, unknown if value is None else value)


@contextmanager
def _vcd(path: Path) -> Iterator[_Sink]:
    with path.open("w") as file, VCDWriter(file, timescale="1 ps", date="", version="dagtrain") as writer:
        yield _Vcd(writer)


class _Fst:
    def __init__(self, path: Path) -> None:
        try:
            import pylibfst
        except ImportError:
            raise DagtrainError(
                "FST files need the package pylibfst", "pip install dagtrain[waves], or use vcd"
            ) from None
        self._fst, self._lib, self._ffi = pylibfst, pylibfst.lib, pylibfst.ffi
        self._context = self._lib.fstWriterCreate(str(path).encode(), 1)
        self._lib.fstWriterSetTimescale(self._context, -12)
        self._bits: dict[Any, int | None] = {}
        self._time = -1

    def variable(self, scope: tuple[str, ...], name: str, bits: int | None) -> Any:
        for part in scope:
            self._lib.fstWriterSetScope(self._context, self._lib.FST_ST_VCD_MODULE, part.encode(), self._ffi.NULL)
        kind = self._lib.FST_VT_VCD_REAL if bits is None else self._lib.FST_VT_VCD_WIRE
        implicit = self._lib.FST_VD_IMPLICIT
        handle = self._lib.fstWriterCreateVar(self._context, kind, implicit, bits or 64, name.encode(), 0)
        for _ in scope:
            self._lib.fstWriterSetUpscope(self._context)
        self._bits[handle] = bits
        return handle

    def change(self, variable: Any, time: int, value: int | float | None) -> None:
        if time != self._time:
            self._lib.fstWriterEmitTimeChange(self._context, time)
            self._time = time
        bits = self._bits[variable]
        if bits is None:
            self._lib.fstWriterEmitValueChange(
                self._context, variable, self._ffi.new("double *", math.nan if value is None else value)
            )
        else:
            digits = "x" * bits if value is None else f"{int(value):0{bits}b}"
            self._lib.fstWriterEmitValueChange(self._context, variable, self._ffi.new("char[]", digits.encode()))

    def close(self) -> None:
        self._lib.fstWriterClose(self._context)


@contextmanager
def _fst(path: Path) -> Iterator[_Sink]:
    sink = _Fst(path)
    try:
        yield sink
    finally:
        sink.close()
