"""Words that pass from cable to cable, against a model: nothing lost, order kept, a word a cycle."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from myhdl import Signal, always_comb, block

from dagtrain.emission.cables import device_cables
from hdl.convert.tools import check_yosys, compile_icarus, lint_verilog
from hdl.convert.verilog import convert
from hdl.link.format import LinkFormat, Word
from hdl.link.forward import Forward, forward
from hdl.signals import ClockReset
from hdl.simulate import Backend, Design, Direction, StreamPort, run_streams
from hdl.simulate.models.link import LEAST_LATENCY, link_wire
from hdl.stream import Stream
from placement.problem.instance import Cable
from placement.problem.routes import Routing
from tests.test_routes import GBIT, chain, drawn, mesh, pairs_of

SHAPES = {
    "chain": chain(3), "ring": chain(4, closed=True), "mesh": mesh(2, 3),
    **{f"cables of seed {seed}": drawn(seed) for seed in (3, 5, 17)},
}  # fmt: skip


def format_of(routing: Routing) -> LinkFormat:
    return LinkFormat(word_bits=16, streams=len(routing.devices), devices=len(routing.devices))


def units_of(routing: Routing) -> list[Forward]:
    form = format_of(routing)
    return [device_cables(routing, routing.devices, name, form).unit for name in routing.devices]


def sent_words(routing: Routing, seed: int, count: int) -> dict[int, list[Word]]:
    """Device -> words to all others in any order: their stream is where they come from, their data a running number."""
    rng = random.Random(f"{seed}/words")
    found: dict[int, list[Word]] = {}
    for source in range(len(routing.devices)):
        targets = [target for target in range(len(routing.devices)) if target != source]
        found[source] = [
            Word(data=at, last=0, sequence=0, stream=source, credit=rng.getrandbits(1), device=rng.choice(targets))
            for at in range(count)
        ]
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_an_output_has_the_inputs_whose_words_leave_by_it(shape: str) -> None:
    routing, units = SHAPES[shape], units_of(SHAPES[shape])
    used: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for source, target in pairs_of(routing):
        if source == target:
            continue
        at, entered = source, 0
        for wire in routing.way(source, target):
            used[at].add((entered, 1 + routing.leaving[at].index(wire)))
            at = routing.wires[wire].target
            entered = 1 + routing.arriving[at].index(wire)
        used[at].add((entered, 0))
    for at, unit in enumerate(units):
        assert {(way, out) for out, ways in enumerate(unit.merged) for way in ways} == used[at]


def test_nothing_is_passed_on_at_the_end_of_a_chain_and_at_the_dateline_of_a_ring() -> None:
    for routing, at in ((chain(3), 0), (chain(3), 2), (chain(4, closed=True), 2)):
        unit = units_of(routing)[at]
        cables = range(1, len(routing.leaving[at]) + 1)
        assert unit.merged == (tuple(cables), *((0,) for _ in cables))


def test_ports_have_the_numbers_of_the_cluster_file() -> None:
    ends = (("d1", 3, "d0", 2), ("d1", 1, "d2", 0))
    cables = tuple(Cable(a=a, a_port=m, b=b, b_port=n, bits_per_s=GBIT) for a, m, b, n in ends)
    routing = Routing(("d0", "d1", "d2"), cables)
    found = device_cables(routing, routing.devices, "d1", format_of(routing))
    assert [(port.sends, port.receives, port.peer, port.peer_port) for port in found.ports] == [
        ("net_tx_1", "net_rx_1", "d2", 0), ("net_tx_3", "net_rx_3", "d0", 2),
    ]  # fmt: skip
    assert found.unit.table == (2, 0, 1)


UNITS = {"chain": units_of(chain(3))[1], "mesh": units_of(mesh(3, 3))[4], "end": units_of(chain(2))[0]}


@pytest.mark.parametrize("name", UNITS)
def test_the_ports_of_a_unit_are_those_it_declares_and_its_verilog_is_clean(name: str, tmp_path: Path) -> None:
    unit = UNITS[name]
    streams = {stream: Stream(width) for stream, width in unit.streams.items()}
    module = convert(unit.build(ClockReset(), streams), "unit")
    expected = {"clk": 1, "rst": 1, "error": 1}
    for stream, width in unit.streams.items():
        expected |= {f"{stream}_valid": 1, f"{stream}_ready": 1, f"{stream}_payload": width}
    assert {port.name: port.width for port in module.ports} == expected
    path = module.write(tmp_path)
    lint_verilog([path], "unit")
    compile_icarus([path], "unit")
    check_yosys([path], "unit")


@block
def watched(
    domain: ClockReset, own: Stream, rx: list[Stream], mine: Stream, tx: list[Stream], errors: Stream, unit: Forward
) -> Any:
    """A device whose error flag is a stream."""
    error = Signal(bool(0))
    inside = forward(domain, own, rx, mine, tx, error, unit=unit)

    @always_comb
    def watch() -> None:
        errors.valid.next = error
        errors.payload.next = 1

    return inside, watch


def one_device(unit: Forward) -> Design:
    ports = [
        StreamPort(name, width, Direction.IN if name == "own" or name.startswith("rx") else Direction.OUT)
        for name, width in unit.streams.items()
    ]

    def factory(_images: Any) -> Any:
        xs, ys = ([Stream(unit.format.payload_bits) for _ in unit.merged] for _ in range(2))
        return watched(ClockReset(), xs[0], xs[1:], ys[0], ys[1:], Stream(1), unit)

    return Design("watched", factory, (*ports, StreamPort("errors", 1, Direction.OUT)))


def ins(unit: Forward) -> list[str]:
    """Names of inputs."""
    return ["own", *(f"rx{at}" for at in range(len(unit.merged) - 1))]


def outs(unit: Forward) -> list[str]:
    return ["mine", *(f"tx{at}" for at in range(len(unit.merged) - 1))]


@pytest.mark.parametrize("backend", [Backend.MYHDL, Backend.ICARUS])
@pytest.mark.parametrize("name", UNITS)
def test_words_leave_where_the_table_says_and_in_order(name: str, backend: Backend) -> None:
    unit, form = UNITS[name], UNITS[name].format
    for seed in range(2):
        rng = random.Random(f"{seed}/forward")
        sent: dict[str, list[int]] = {}
        wanted: dict[str, dict[int, list[int]]] = {out: defaultdict(list) for out in outs(unit)}
        for way, x in enumerate(ins(unit)):
            targets = [device for device, out in enumerate(unit.table) if out in unit.outputs_of[way]]
            words = [word_to(rng.choice(targets), data=at, sequence=way) for at in range(60)]
            sent[x] = [form.encode(word) for word in words]
            for word in words:
                wanted[outs(unit)[unit.table[word.device]]][way].append(form.encode(word))
        counts = {y: sum(map(len, found.values())) for y, found in wanted.items()}
        run = run_streams(backend, one_device(unit), sent, {**counts, "errors": 0}, seed=seed, stall_probability=0.3)
        assert run.outputs["errors"] == []
        for y, by_input in wanted.items():
            found: dict[int, list[int]] = defaultdict(list)
            for payload in run.outputs[y]:
                found[form.decode(payload).sequence].append(payload)
            assert found == by_input, f"seed {seed}: {y}"


def word_to(device: int, data: int = 0, sequence: int = 0) -> Word:
    return Word(data=data, last=0, sequence=sequence, stream=0, credit=0, device=device)


def test_a_word_a_cycle_leaves_by_each_output_after_as_many_cycles_as_are_told() -> None:
    unit, form = UNITS["mesh"], UNITS["mesh"].format
    for way, x in enumerate(ins(unit)):
        for out in unit.outputs_of[way]:
            y, words = outs(unit)[out], [form.encode(word_to(unit.table.index(out), at)) for at in range(40)]
            sent = {**dict.fromkeys(ins(unit), ()), x: words}
            counts = {**dict.fromkeys(outs(unit), 0), y: len(words), "errors": 0}
            run = run_streams(Backend.MYHDL, one_device(unit), sent, counts, seed=1)
            came, left = run.fire_cycles[x], run.fire_cycles[y]
            assert left[-1] - left[0] == len(words) - 1
            assert left[0] - came[0] == unit.latency_cycles(way, out)


@pytest.mark.parametrize("device", [0, 3])
def test_a_word_by_a_cable_from_which_none_goes_there_is_told(device: int) -> None:
    # the middle of a chain has nothing to send back to where it came from, and there is no fourth device
    unit = UNITS["chain"]
    sent = {"own": [], "rx0": [unit.format.encode(word_to(device)), unit.format.encode(word_to(1))], "rx1": []}
    counts = {**dict.fromkeys(outs(unit), 0), "mine": 1}
    run = run_streams(Backend.MYHDL, one_device(unit), sent, counts, seed=1)
    assert run.outputs["errors"]


def test_tables_that_do_not_fit_are_refused() -> None:
    form = LinkFormat(word_bits=16, streams=1, devices=3)
    with pytest.raises(ValueError, match=r"needs one of 2 outputs for each of 3 devices$"):
        Forward(format=form, table=(0, 1), merged=((1,), (0,)))
    for merged in (((1,), ()), ((1,), (1,))):
        with pytest.raises(
            ValueError, match=r"each of 2 outputs has inputs, and each of as many inputs leads to some$"
        ):
            Forward(format=form, table=(0, 1, 1), merged=merged)


@block
def fabric(domain: ClockReset, sends: list[Stream], mines: list[Stream], routing: Routing, seed: int) -> Any:
    """All devices with their cables, which are slow, stall and take time."""
    units, bits = units_of(routing), format_of(routing).payload_bits
    leaving, arriving = ([Stream(bits) for _ in routing.wires] for _ in range(2))
    parts = []
    for at, unit in enumerate(units):
        rx, tx = [arriving[wire] for wire in routing.arriving[at]], [leaving[wire] for wire in routing.leaving[at]]
        parts.append(forward(domain, sends[at], rx, mines[at], tx, Signal(bool(0)), unit=unit))
    for number, (x, y) in enumerate(zip(leaving, arriving, strict=True)):
        stalls = {"stall_256": 60, "seed": seed + number}
        parts.append(link_wire(domain, x, y, latency=LEAST_LATENCY, words=2, cycles=3, **stalls))
    return parts


@pytest.mark.parametrize("shape", SHAPES)
def test_every_word_comes_to_its_device_in_order_over_any_cables(shape: str) -> None:
    routing = SHAPES[shape]
    form, count = format_of(routing), len(routing.devices)
    for seed in range(2):
        words = sent_words(routing, seed, 40)
        wanted = {
            (source, target): [form.encode(word) for word in words[source] if word.device == target]
            for source, target in pairs_of(routing)
        }

        def factory(_images: Any, seed: int = seed) -> Any:
            sends, mines = ([Stream(form.payload_bits) for _ in range(count)] for _ in range(2))
            return fabric(ClockReset(), sends, mines, routing, seed)

        starts = [StreamPort(f"sends{at}", form.payload_bits, Direction.IN) for at in range(count)]
        ends = [StreamPort(f"mines{at}", form.payload_bits, Direction.OUT) for at in range(count)]
        sent = {f"sends{at}": [form.encode(word) for word in words[at]] for at in range(count)}
        counts = {f"mines{at}": sum(len(wanted[source, at]) for source in range(count)) for at in range(count)}
        design = Design("fabric", factory, (*starts, *ends))
        run = run_streams(Backend.MYHDL, design, sent, counts, seed=seed, stall_probability=0.3)
        for source, target in pairs_of(routing):
            came = [payload for payload in run.outputs[f"mines{target}"] if form.decode(payload).stream == source]
            assert came == wanted[source, target], f"seed {seed}: {source} to {target}"
