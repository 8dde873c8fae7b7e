"""What a bench without values tells of nodes, cables and batches: lines of numbers, as they happen and at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from dagtrain.cosim.bench import words_carried
from dagtrain.cosim.clocks import clock_of
from dagtrain.cosim.cluster import counted_nets
from dagtrain.cosim.parts import WeightLog
from dagtrain.cosim.timeline import Engine, engines
from dagtrain.emission.delivered import DeliveredDevice
from dagtrain.graph.ir import Graph
from dagtrain.simulate.result import NodeWork, Span
from dagtrain.training.feeds import host_ports

# what the bench writes: number of a stream, 0 for the first or 1 for the last beat of a tensor, cycle; how long all
# engines were busy and what lanes carried, at the end; the first of these at the results of each frame
SPANS_FILE, TOTALS_FILE, WORKS_FILE = "spans.txt", "totals.txt", "works.txt"


@dataclass(frozen=True)
class Passing:
    """A stream that a node reads or writes."""

    node: str
    device: str
    clk: str
    # prefix of its nets below the bench
    net: str
    # of a tensor
    beats: int
    per_batch: bool


@dataclass(frozen=True)
class Lane:
    """What a device sends to another one over a network of words; where cables join them, what goes over a cable,
    whomever it is for."""

    source: str
    target: str
    # whether a word leaves for it in a cycle of the network
    sent: str
    # words a cycle that its cable carries
    carries: Fraction = Fraction(1)


@dataclass(frozen=True)
class Told:
    """All that a bench tells."""

    passing: tuple[Passing, ...]
    engines: tuple[Engine, ...]
    lanes: tuple[Lane, ...]
    weights: tuple[WeightLog, ...]
    # of a frame's results
    result_beats: int
    # device -> cycles of the network in one of its own
    periods: Mapping[str, Fraction]

    def multiplier_cycles(self, engine: Engine, busy: int, graph: Graph) -> int:
        """Of the network's clock, in which an engine was busy for so many of its own."""
        return round(int(graph.by_name[engine.node].layer.multipliers) * busy * self.periods[engine.device])

    @property
    def text(self) -> str:
        """Items of the bench's outermost module."""
        clocks = dict.fromkeys(
            [*(p.clk for p in self.passing), *(e.clk for e in self.engines), *(log.clk for log in self.weights)]
        )
        lines = [
            "integer spans, totals, works;",
            f'initial spans = $fopen("{SPANS_FILE}", "w");',
            f'initial works = $fopen("{WORKS_FILE}", "w");',
            "reg [63:0] now = 1;",
            "always @(posedge clk) now <= now + 1;",
            *(f"reg [31:0] beat_{n} = 0;" for n in range(len(self.passing))),
            *(f"reg [63:0] worked_{n} = 0;" for n in range(len(self.engines))),
            *(f"reg [63:0] words_{n} = 0;" for n in range(len(self.lanes))),
            *(f"reg [31:0] version_{n} = 0;" for n in range(len(self.weights))),
            *(self._process(clk) for clk in clocks),
            "always @(posedge clk) begin",
            *(f"    if ({lane.sent} && !rst) words_{n} <= words_{n} + 1;" for n, lane in enumerate(self.lanes)),
            "end",
            *self._works(),
            "final begin",
            # the run may end by then
            f"    if ({self._came}) begin",
            *self._busy,
            "    end",
            f'    totals = $fopen("{TOTALS_FILE}", "w");',
            *(f'    $fdisplay(totals, "%0d", worked_{n});' for n in range(len(self.engines))),
            *(f'    $fdisplay(totals, "%0d", words_{n});' for n in range(len(self.lanes))),
            "    $fclose(totals);",
            "    $fclose(spans);",
            "    $fclose(works);",
            "end",
            "",
        ]
        return "\n".join(lines)

    def _works(self) -> list[str]:
        """How long every engine has been busy is written in a cycle behind the last result of each frame."""
        return [
            "reg [31:0] told_frames = 0;",
            "always @(posedge clk) begin",
            f"    if ({self._came}) begin",
            "        told_frames <= told_frames + 1;",
            *self._busy,
            "    end",
            "end",
        ]

    @property
    def _came(self) -> str:
        """Whether a frame has come whose results were not told of."""
        return f"progress >= (told_frames + 1) * {self.result_beats}"

    @property
    def _busy(self) -> list[str]:
        written = [f'        $fwrite(works, "%0d ", worked_{n});' for n in range(len(self.engines))]
        return [*written, '        $fdisplay(works, "");']

    def _process(self, clk: str) -> str:
        """What happens at a clock."""
        lines = [f"always @(posedge {clk}) begin"]
        for n, one in enumerate(self.passing):
            if one.clk == clk:
                lines += self._tensor(n, f"beat_{n}", one.net, one.beats, both=True)
        for n, log in enumerate(self.weights):
            if log.clk == clk:
                lines += self._tensor(len(self.passing) + n, f"version_{n}", log.net, log.beats, both=False)
        for n, engine in enumerate(self.engines):
            if engine.clk == clk:
                lines.append(f"    if ({engine.busy} && !rst) worked_{n} <= worked_{n} + 1;")
        return "\n".join([*lines, "end"])

    def _tensor(self, number: int, counter: str, net: str, beats: int, both: bool) -> list[str]:
        first = f'        if ({counter} == 0) $fdisplay(spans, "{number} 0 %0d", now);'
        return [
            f"    if ({net}_valid && {net}_ready && !rst) begin",
            f"        {counter} <= {counter} == {beats - 1} ? 0 : {counter} + 1;",
            *([first] if both else []),
            f'        if ({counter} == {beats - 1}) $fdisplay(spans, "{number} 1 %0d", now);',
            "    end",
        ]


def told_of(devices: Sequence[DeliveredDevice], graph: Graph, weights: Sequence[WeightLog]) -> Told:
    """Of all nodes on delivered FPGAs."""
    working = [one for one in engines(devices, graph, "") if graph.by_name[one.node].layer.multipliers]
    results = graph.by_name[host_ports(graph)[2]].layer.sinks[0]
    return Told(
        tuple(_passing(devices, graph)), tuple(working), tuple(_lanes(devices)), tuple(weights), results.beats,
        {device.manifest.device: _period(device) for device in devices},
    )  # fmt: skip


def _period(device: DeliveredDevice) -> Fraction:
    manifest = device.manifest
    return Fraction(manifest.network_mhz or manifest.clock_mhz) / Fraction(manifest.clock_mhz)


def _passing(devices: Sequence[DeliveredDevice], graph: Graph) -> Iterable[Passing]:
    counted = counted_nets(graph)
    for device in devices:
        for stream in device.manifest.streams:
            for node in dict.fromkeys((stream.writer, stream.reader)):
                if node in graph.by_name and stream.net in counted:
                    beats, tensors = counted[stream.net]
                    net = f"dut.fpga_{device.manifest.top}.{stream.net}"
                    yield Passing(
                        node, device.manifest.device, clock_of(device), net, beats, tensors != graph.recipe.batch
                    )


def _lanes(devices: Sequence[DeliveredDevice]) -> Iterable[Lane]:
    """Between all devices with ports for words."""
    for source in devices:
        record = source.manifest.network
        if record is None or source.manifest.ethernet or len(devices) == 1:
            continue
        low, bits = record.format.fields["device"]
        net = f"dut.{source.manifest.top}_leaving"
        for cable in record.cables or ():
            passes = f"{net}_{cable.port}_valid && {net}_{cable.port}_ready"
            yield Lane(source.manifest.device, cable.device, passes, words_carried(source, cable))
        if record.cables is not None:
            continue
        for number, target in enumerate(devices):
            if target is not source:
                sent = f"{net}_valid && {net}_ready && {net}_payload[{low + bits - 1}:{low}] == {number}"
                yield Lane(source.manifest.device, target.manifest.device, sent)


@dataclass(frozen=True)
class Heard:
    """What a run told."""

    nodes: tuple[NodeWork, ...]
    # of each lane
    words: tuple[int, ...]
    # of each stream of weights, the cycle in which each version had been sent
    versions: tuple[tuple[int, ...], ...]
    # node -> multiplier cycles at the results of each frame
    works: Mapping[str, tuple[int, ...]]


def read_told(folder: Path, told: Told, graph: Graph) -> Heard:
    """What a bench wrote into ``folder``."""
    begun: dict[int, list[int]] = {}
    ended: dict[int, list[int]] = {}
    for line in (folder / SPANS_FILE).read_text().splitlines():
        number, last, cycle = map(int, line.split())
        (ended if last else begun).setdefault(number, []).append(cycle)
    totals = [int(line) for line in (folder / TOTALS_FILE).read_text().split()]
    worked = {
        engine.node: told.multiplier_cycles(engine, total, graph)
        for engine, total in zip(told.engines, totals, strict=False)
    }
    streams: dict[str, list[int]] = {}
    for number, one in enumerate(told.passing):
        streams.setdefault(one.node, []).append(number)
    nodes = []
    for name, numbers in streams.items():
        # weights and gradients of what works on frames do not say when it does
        frames = [number for number in numbers if not told.passing[number].per_batch]
        chosen = [number for number in frames or numbers if number in begun]
        nodes.append(
            NodeWork(
                node=name,
                device=told.passing[numbers[0]].device,
                per_batch=not frames,
                spans=_spans([begun[number] for number in chosen], [ended.get(number, []) for number in chosen]),
                multipliers=int(graph.by_name[name].layer.multipliers),
                busy_multiplier_cycles=worked.get(name, 0),
            )
        )
    first = len(told.passing)
    versions = tuple(tuple(ended.get(first + number, ())) for number in range(len(told.weights)))
    rows = [map(int, line.split()) for line in (folder / WORKS_FILE).read_text().splitlines()]
    works = {
        engine.node: tuple(told.multiplier_cycles(engine, busy, graph) for busy in column)
        for engine, column in zip(told.engines, zip(*rows, strict=True), strict=False)
    }
    return Heard(tuple(nodes), tuple(totals[len(told.engines) :]), versions, works)


def _spans(begun: Sequence[Sequence[int]], ended: Sequence[Sequence[int]]) -> tuple[Span, ...]:
    """Of tensors that passed whole on every stream."""
    whole = min((len(cycles) for cycles in ended), default=0)
    return tuple(Span(min(cycles[at] for cycles in begun), max(cycles[at] for cycles in ended)) for at in range(whole))
