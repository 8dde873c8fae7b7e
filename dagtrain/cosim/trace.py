"""Every beat of every stream of a co-simulation beside the emulator: the first wrong word, and where it came from.

The bench writes a line a beat: number of the stream, cycle, payload.  What must have stood there is every tensor that
the emulator makes.  A word is wrong first if it is of the earliest batch, then of the earliest node in topological
order: within a batch a node's words follow from those of the nodes before it, and from nothing else that is new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dagtrain.cosim.clocks import clock_of
from dagtrain.emission.delivered import DeliveredDevice
from dagtrain.emission.device import consumed_net, produced_net
from dagtrain.graph.executor import Array
from dagtrain.graph.ir import Graph, Node, Role
from hdl.fixed import Fixed, IntArray
from hdl.layers.beats import unpack
from hdl.tensor import Port, from_order

# what the bench writes: number of the stream, cycle, payload
TRACE_FILE = "trace.txt"
# what it writes of changes: number of the stream, cycle, valid, ready, payload
WAVES_FILE = "waves.txt"


@dataclass(frozen=True)
class Traced:
    """An end of an edge whose beats are written."""

    edge: str
    device: str
    # Verilog prefix of the stream's nets below the bench
    net: str
    # whose beats they are: the source of the producer, or the sink of a consumer
    node: str
    port: str
    # at the producer's end; else behind forks, FIFOs and links, at the consumer's
    produced: bool
    # of the payload
    bits: int
    # at which its beats pass
    clk: str = "clk"


@dataclass(frozen=True)
class Element:
    """Where a number stands."""

    # from 0; None: of weights that pass when state is loaded, before those of the first one; frame: None for tensors of
    # a batch
    batch: int | None
    frame: int | None
    # in the tensor: row, column, channel of a map; as the parameter has it of weights and gradients
    index: tuple[int, ...]

    def __str__(self) -> str:
        words = ["as loaded" if self.batch is None else f"batch {self.batch + 1}"]
        if self.frame is None:
            return f"{words[0]}, element [{', '.join(map(str, self.index))}]"
        names = ("row", "column", "channel") if len(self.index) == 3 else tuple(f"axis {i}" for i in range(9))
        words += [f"frame {self.frame + 1}", *(f"{name} {at}" for name, at in zip(names, self.index, strict=False))]
        return ", ".join(words)


@dataclass(frozen=True)
class Wrong:
    """The first wrong number of a stream."""

    traced: Traced
    element: Element
    # codes
    found: int
    expected: int
    fixed: Fixed
    # in which the beat passed
    cycle: int
    # position of the node in topological order; ends of consumers come before them
    order: tuple[int, int]

    @property
    def rank(self) -> tuple[object, ...]:
        """Causes come before what follows from them."""
        batch, frame = (-1 if at is None else at for at in (self.element.batch, self.element.frame))
        return batch, *self.order, frame, self.element.index

    @property
    def numbers(self) -> str:
        """Both numbers, as codes and as values."""
        both = (self.found, self.expected)
        codes = ", not ".join(f"{code & (1 << self.fixed.width) - 1:#x}" for code in both)
        values = ", not ".join(f"{code * self.fixed.step:g}" for code in both)
        return f"{codes} (as a value {values})"


@dataclass(frozen=True)
class Traces:
    """What was held against the emulator."""

    streams: int
    words: int
    # streams with a wrong word, earliest cause first
    wrong: tuple[Wrong, ...]
    # streams that ended before all their beats had come: (stream, beats, beats expected)
    short: tuple[tuple[Traced, int, int], ...]
    # edge -> codes of all its whole tensors, as its producer sent them
    sent: Mapping[str, IntArray]


def traced_streams(devices: Sequence[DeliveredDevice], graph: Graph) -> tuple[Traced, ...]:
    """Both ends of every edge that are streams of a top."""
    homes = {name: device for device in devices for name in device.manifest.nodes}
    nets = {device.manifest.device: {stream.net for stream in device.manifest.streams} for device in devices}
    found: dict[str, Traced] = {}

    def add(net: str, edge: str, node: Node, port: Port, produced: bool) -> None:
        device, clk = homes[node.name].manifest, clock_of(homes[node.name])
        if net in nets[device.device]:
            path = f"dut.fpga_{device.top}.{net}"
            one = Traced(edge, device.device, path, node.name, port.name, produced, port.payload_bits, clk)
            found.setdefault(path, one)

    for edge, producer, source, consumer, sink in graph.streams:
        if source.tensor.kind.of_store:
            # the emulator has no such streams
            continue
        add(produced_net(edge), edge, producer, source, True)
        # the order of weights and gradients is agreed on by both ends, behind loads and homes it may be another
        if not source.tensor.kind.per_batch:
            add(consumed_net(edge), edge, consumer, sink, False)
    return tuple(found.values())


def trace_text(traced: Sequence[Traced]) -> str:
    """Verilog that writes a line a beat; for the outermost module."""
    texts = {"clk": "    trace_cycle <= trace_cycle + 1;"}
    for number, one in enumerate(traced):
        statement = _stream_text(number, one)
        texts[one.clk] = f"{texts[one.clk]}\n{statement}" if one.clk in texts else statement
    processes = "\n".join(f"always @(posedge {clk}) begin\n{text}\nend" for clk, text in texts.items())
    shown = "\n".join(f"reg [{one.bits + 2}:0] waved_{number} = 0;" for number, one in enumerate(traced))
    return f"""integer trace, waves;
reg [63:0] trace_cycle = 0, waves_from = 1, waves_to = 0;
initial begin
    trace = $fopen("{TRACE_FILE}", "w");
    if ($value$plusargs("waves_from=%d", waves_from) && $value$plusargs("waves_to=%d", waves_to))
        waves = $fopen("{WAVES_FILE}", "w");
end
wire waving = trace_cycle + 1 >= waves_from && trace_cycle + 1 <= waves_to;
{shown}
{processes}
"""


def _stream_text(number: int, one: Traced) -> str:
    """Verilog that writes a stream's beats, and in the cycles of waveforms what is new of it."""
    valid, ready, payload = (f"{one.net}_{part}" for part in ("valid", "ready", "payload"))
    now = f"{{1'b1, {valid}, {ready}, {payload}}}"
    return f"""    if ({valid} && {ready} && !rst) $fdisplay(trace, "{number} %0d %h", trace_cycle + 1, {payload});
    if (waving) begin
        if (waved_{number} != {now})
            $fdisplay(waves, "{number} %0d %b %b %h", trace_cycle + 1, {valid}, {ready}, {payload});
        waved_{number} <= {now};
    end else waved_{number} <= 0;"""


def compare_traces(folder: Path, traced: Sequence[Traced], graph: Graph, made: Made) -> Traces:
    """The beats that a bench wrote in ``folder`` beside the tensors of the emulator."""
    beats = beats_of(folder, len(traced))
    position = {node.name: place for place, node in enumerate(graph.nodes)}
    wrong: list[Wrong] = []
    short: list[tuple[Traced, int, int]] = []
    sent: dict[str, IntArray] = {}
    words = 0
    for one, (cycles, got) in zip(traced, beats, strict=True):
        stream = _Stream.of(graph, one)
        before = len(made.loaded.get(one.edge, ()))
        arrays = [stream.tensors(array) for array in made.arrays[one.edge]]
        want = np.concatenate(arrays)
        whole = len(got) // stream.port.beats
        if whole < len(want):
            short.append((one, len(got), len(want) * stream.port.beats))
        count = min(whole, len(want))
        found = stream.read(got[: count * stream.port.beats])
        words += count * stream.port.beats
        if one.produced:
            sent[one.edge] = found[before:]
        different = np.flatnonzero((found != want[:count]).reshape(count, stream.port.tensor.elements).any(axis=1))
        if len(different):
            order = (position[one.node], 1 if one.produced else 0)
            wrong.append(_wrong(stream, one, int(different[0]), found, want, cycles, order, len(arrays[-1]), before))
    return Traces(len(traced), words, tuple(sorted(wrong, key=lambda each: each.rank)), tuple(short), sent)


class Made:
    """The arrays of edges, of one batch after the other, as an executor shows them.

    ``loaded``: edge -> weights that pass it before those of batches, when state is loaded (`passed_on`)."""

    def __init__(self, traced: Iterable[Traced], loaded: Mapping[str, Sequence[Array]]) -> None:
        self.loaded = loaded
        self.arrays: dict[str, list[Array]] = {one.edge: [*loaded.get(one.edge, ())] for one in traced}

    def __call__(self, edge: str, array: Array) -> None:
        """See `dagtrain.graph.executor.Observer`."""
        if edge in self.arrays:
            self.arrays[edge].append(array)


def passed_on(graph: Graph, loaded: Mapping[str, Sequence[Array]]) -> dict[str, Sequence[Array]]:
    """Edge -> weights that pass it when state is loaded, in front of forks too; ``loaded``: those of engines' edges."""
    found = dict(loaded)
    for node in reversed(graph.nodes):
        handed_on = [found[edge] for edge in node.outputs.values() if edge in found]
        if handed_on and node.role is Role.FORK:
            found |= dict.fromkeys(node.inputs.values(), handed_on[0])
    return found


@dataclass(frozen=True)
class _Stream:
    """How an end of an edge is read."""

    port: Port
    # position in the stream -> element; None: as they lie
    order: IntArray | None

    @classmethod
    def of(cls, graph: Graph, one: Traced) -> _Stream:
        node = graph.by_name[one.node]
        port = node.layer.port(one.port)
        if not port.tensor.kind.per_batch:
            return cls(port, node.layer.stream_order(one.port))
        # the order is that of the reader, also behind a fork
        reader, sink = graph.consumers[one.edge][0]
        return cls(port, reader.layer.stream_order(sink.name))

    def tensors(self, array: Array) -> Array:
        """(tensors, *shape) of what a batch made."""
        return array.reshape(-1, *self.port.tensor.shape)

    def read(self, beats: Sequence[int]) -> IntArray:
        """(tensors, *shape) of whole tensors' beats."""
        flat = unpack(beats, self.port.tensor.fixed, self.port.lanes).reshape(-1, self.port.beats * self.port.lanes)
        return from_order(flat, self.order).reshape(-1, *self.port.tensor.shape)

    def beat(self, element: int) -> int:
        """In which beat of a tensor an element passes."""
        places = np.arange(self.port.beats * self.port.lanes)
        return int(from_order(places, self.order)[element]) // self.port.lanes


def _wrong(
    stream: _Stream,
    one: Traced,
    tensor: int,
    found: IntArray,
    want: Array,
    cycles: Sequence[int],
    order: tuple[int, int],
    tensors_a_batch: int,
    before: int,
) -> Wrong:
    index = tuple(int(at) for at in np.argwhere(found[tensor] != want[tensor])[0])
    # what is loaded is of none
    batch, frame = divmod(tensor - before, tensors_a_batch) if tensor >= before else (None, 0)
    per_batch = stream.port.tensor.kind.per_batch
    place = int(np.ravel_multi_index(index, stream.port.tensor.shape))
    cycle = cycles[tensor * stream.port.beats + stream.beat(place)]
    codes = int(found[tensor][index]), int(want[tensor][index])
    return Wrong(
        one, Element(batch, None if per_batch else frame, index), *codes, stream.port.tensor.fixed, cycle, order
    )


def beats_of(folder: Path, streams: int) -> list[tuple[list[int], list[int]]]:
    """(cycles, payloads) of the beats of every stream."""
    found: list[tuple[list[int], list[int]]] = [([], []) for _ in range(streams)]
    for number, cycle, payload in _lines(folder / TRACE_FILE):
        cycles, payloads = found[number]
        cycles.append(cycle)
        payloads.append(payload)
    return found


def _lines(path: Path) -> Iterator[tuple[int, int, int]]:
    with path.open() as file:
        for line in file:
            number, cycle, payload = line.split()
            yield int(number), int(cycle), int(payload, 16)
