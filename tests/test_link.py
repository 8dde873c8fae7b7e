"""Link units and the network model: several streams over one word port, against queues of elements."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from myhdl import Signal, always_comb, block, intbv

from dagtrain.emission.links import Crossing, link_words, receiver_beats
from hdl.convert.tools import check_yosys, compile_icarus, lint_verilog
from hdl.convert.verilog import convert
from hdl.errors import DeadlockError
from hdl.fixed import Fixed
from hdl.link.egress import Egress, link_egress
from hdl.link.format import (
    COUNT_BITS,
    CREDIT_WORDS,
    LinkFormat,
    LinkUnit,
    Word,
    credit_batch,
    depth_for,
    merge_tree,
    merges_passed,
    turns_taken,
)
from hdl.link.ingress import Ingress, link_ingress
from hdl.link.routing import BurstStage, CreditWord, Drain, Merge, Split, credit_word, link_drain, link_split
from hdl.memory import unsimulated
from hdl.signals import ClockReset
from hdl.simulate import Backend, Design, Direction, StreamPort, run_streams
from hdl.simulate.models.link import LEAST_LATENCY, link_switch, link_wire
from hdl.stream import Stream
from hdl.streams.merge import merge
from hdl.streams.width import wire_words
from hdl.tensor import Kind, Port, Tensor
from tests.suites import quick

FORM = LinkFormat(word_bits=32, streams=3, devices=2, sequence_bits=3)


def test_a_word_survives_encoding() -> None:
    word = Word(data=0xDEADBEEF, last=1, sequence=5, stream=2, credit=1, device=1)
    assert FORM.decode(FORM.encode(word)) == word
    assert FORM.payload_bits == 32 + 1 + 3 + 2 + 1 + 1


@pytest.mark.parametrize(
    ("elements", "element_bits", "word_bits", "words"),
    [(10, 16, 64, 3), (8, 16, 64, 2), (1, 1, 64, 1), (65, 1, 64, 2), (10, 24, 64, 5), (3, 64, 64, 3)],
)
def test_wire_words_count_whole_elements_a_word(elements: int, element_bits: int, word_bits: int, words: int) -> None:
    assert wire_words(elements, element_bits, word_bits) == words


def test_an_element_wider_than_a_word_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^an element of 33 bits does not fit a link word of 32 bits$"):
        wire_words(4, 33, 32)


UNITS: list[LinkUnit] = [
    Egress(format=FORM, element_bits=5, lanes=2, elements=8, credits=6),
    Egress(format=FORM, element_bits=16, lanes=4, elements=8, credits=6),
    Ingress(format=FORM, element_bits=5, lanes=2, elements=8, depth=6),
    Ingress(format=FORM, element_bits=16, lanes=1, elements=1, depth=2),
    Ingress(format=FORM, element_bits=32, lanes=1, elements=0, depth=6),
    Egress(format=FORM, element_bits=32, lanes=1, elements=0, credits=6),
    Egress(format=FORM, element_bits=5, lanes=2, elements=8, credits=6, queued=8),
    Ingress(format=FORM, element_bits=5, lanes=2, elements=8, depth=8, spare=2),
    Merge(format=FORM),
    Merge(format=FORM, sides=3, longest=3),
    Merge(format=FORM, sides=2, returned=True),
    CreditWord(format=FORM),
    BurstStage(format=FORM, words=32),
    Split(format=FORM),
    Split(format=FORM, taps=1),
    Drain(format=FORM),
]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: type(unit).__name__)
def test_the_ports_of_a_unit_are_those_it_declares_and_its_verilog_is_clean(unit: LinkUnit, tmp_path: Path) -> None:
    streams = {name: Stream(width) for name, width in unit.streams.items()}
    module = convert(unit.build(ClockReset(), streams), "unit")
    found = {port.name: port for port in module.ports}
    # wires have no clock
    clocked = {} if isinstance(unit, CreditWord) else {"clk": 1, "rst": 1}
    expected = {**clocked, **unit.inputs, **unit.outputs}
    for name, width in unit.streams.items():
        expected |= {f"{name}_valid": 1, f"{name}_ready": 1, f"{name}_payload": width}
    assert {name: port.width for name, port in found.items()} == expected
    assert all(found[name].direction is Direction.IN for name in unit.inputs)
    assert all(found[name].direction is Direction.OUT for name in unit.outputs)
    path = module.write(tmp_path)
    lint_verilog([path], "unit")
    compile_icarus([path], "unit")
    check_yosys([path], "unit")


# ------------------------------------------------------------------------------------------------ network

SHAPES = ((5, 2, 8), (16, 1, 5), (3, 4, 12))  # bits, lanes, elements of a tensor


@block
def network(
    domain: ClockReset, n0: Any, n1: Any, n2: Any, d0: Any, d1: Any,
    s0: Any, s1: Any, s2: Any, b0: Any, b1: Any, b2: Any,
    a: Stream, b: Stream, c: Stream, p: Stream, q: Stream, r: Stream, errors: Stream,
    depth: int, stolen: int, latency: int, words: int, cycles: int, stall_256: int, seed: int, queued: int, spare: int,
) -> Any:  # fmt: skip
    """Streams 0 and 1 go from device 0 to device 1, stream 2 the other way; ``errors`` is valid after any error.

    ``s0`` …, ``b0`` …: what splits take out, ``stolen``: credits that senders have beyond the FIFO of the receiver."""

    def word() -> Stream:
        return Stream(FORM.payload_bits)

    numbers, devices = (n0, n1, n2), (d0, d1)
    xs, ys = (a, b, c), (p, q, r)
    sends, credits, arrivals = ([word() for _ in range(3)] for _ in range(3))
    backs = [Stream(FORM.returned_bits) for _ in range(4)]
    flags = [Signal(bool(0)) for _ in range(5)]
    egress, ingress = [], []
    for i, (element_bits, lanes, elements) in enumerate(SHAPES):
        there, here = (devices[1], devices[0]) if i < 2 else (devices[0], devices[1])
        carried = {"element_bits": element_bits, "lanes": lanes, "elements": elements}
        sender = Egress(format=FORM, **carried, credits=depth + stolen, queued=queued)
        receiver = Ingress(format=FORM, **carried, depth=depth, spare=spare)
        egress.append(link_egress(domain, numbers[i], there, xs[i], credits[i], sends[i], unit=sender))
        ingress.append(link_ingress(domain, numbers[i], here, arrivals[i], ys[i], backs[i], flags[i], unit=receiver))
    both, repaid = Split(format=FORM, taps=2), CreditWord(format=FORM)
    out0, out1, in0, in1, m0, w0, w1, rest0, rest1, stray0, stray1 = (word() for _ in range(11))
    wires = [
        merge(domain, sends[:2], m0),
        credit_word(backs[2], w0, unit=repaid),
        merge(domain, [m0, w0], out0),
        merge(domain, backs[:2], backs[3]),
        credit_word(backs[3], w1, unit=repaid),
        merge(domain, [sends[2], w1], out1),
        link_switch(
            domain, [out0, out1], [in0, in1],
            form=FORM, latency=latency, rates=[(words, cycles)] * 2, stall_256=stall_256, seed=seed,
        ),
        # data of stream 2 and credits of 0, then those of 1, which are nobody else's
        link_split(domain, s2, b2, in0, [arrivals[2], credits[0]], rest0, unit=both),
        link_split(domain, s1, b1, rest0, [credits[1]], stray0, unit=replace(both, taps=1)),
        link_drain(domain, stray0, flags[3]),
        link_split(domain, s0, b0, in1, arrivals[:2], rest1, unit=both),
        link_split(domain, n2, b1, rest1, [credits[2]], stray1, unit=replace(both, taps=1)),
        link_drain(domain, stray1, flags[4]),
    ]  # fmt: skip
    f0, f1, f2, f3, f4 = flags

    @always_comb
    def watch() -> None:
        errors.valid.next = f0 or f1 or f2 or f3 or f4
        errors.payload.next = 1

    return egress, ingress, wires, watch


@block
def two_ports(domain: ClockReset, a: Stream, b: Stream, p: Stream, q: Stream, rates: Sequence[tuple[int, int]]) -> Any:
    """A switch of two devices."""
    return link_switch(domain, [a, b], [p, q], form=FORM, latency=LEAST_LATENCY, rates=rates)


def switch_design(rates: Sequence[tuple[int, int]]) -> Design:
    def factory(_images: Any) -> Any:
        return two_ports(ClockReset(), *(Stream(FORM.payload_bits) for _ in range(4)), rates)

    ways = {"a": Direction.IN, "b": Direction.IN, "p": Direction.OUT, "q": Direction.OUT}
    return Design("switch", factory, [StreamPort(name, FORM.payload_bits, way) for name, way in ways.items()])


@pytest.mark.parametrize("source", [0, 1])
@pytest.mark.parametrize("rates", [[(1, 1), (1, 4)], [(2, 3), (1, 1)], [(1, 1), (1, 1)]])
def test_every_device_of_a_switch_has_its_own_rate_both_ways(rates: list[tuple[int, int]], source: int) -> None:
    low, _ = FORM.fields["device"]
    words = [1 - source << low | number for number in range(40)]
    sent: dict[str, list[int]] = {"a": [], "b": []} | {"ab"[source]: words}
    counts = {"p": 0, "q": 0} | {"qp"[source]: len(words)}
    run = run_streams(Backend.MYHDL, switch_design(rates), sent, counts, seed=1, stall_probability=0.0, max_cycles=1000)
    assert run.outputs["qp"[source]] == words
    came = run.fire_cycles["qp"[source]]
    slowest = max(Fraction(cycles, several) for several, cycles in rates)
    assert abs(came[-1] - came[0] - 39 * slowest) <= slowest


# numbers of two streams side by side, and whether it is their credits
CONSTANTS = {
    "n0": 0,
    "n1": 1,
    "n2": 2,
    "d0": 0,
    "d1": 1,
    "s0": 0b0100,
    "s1": 1,
    "s2": 0b0010,
    "b0": 0,
    "b1": 1,
    "b2": 2,
}


def network_design(
    depth: int = 4,
    stolen: int = 0,
    latency: int = 3,
    words: int = 1,
    cycles: int = 1,
    stall_256: int = 0,
    seed: int = 1,
    queued: int = 0,
    spare: int = 0,
) -> Design:
    widths = [bits * lanes for bits, lanes, _ in SHAPES]

    def factory(_images: Any) -> Any:
        numbers = [Signal(intbv(0)[width:]) for width in (2, 2, 2, 1, 1, 4, 2, 4, 2, 1, 2)]
        streams = [Stream(width) for width in (*widths, *widths, 1)]
        domain = ClockReset()
        link = depth, stolen, latency, words, cycles, stall_256, seed
        return network(domain, *numbers, *streams, *link, queued, spare)

    ins = [StreamPort(name, width, Direction.IN) for name, width in zip("abc", widths, strict=True)]
    outs = [StreamPort(name, width, Direction.OUT) for name, width in zip("pqr", widths, strict=True)]
    return Design("network", factory, (*ins, *outs, StreamPort("errors", 1, Direction.OUT)), constants=CONSTANTS)


def traffic(tensors: int, seed: int) -> dict[str, list[int]]:
    rng = random.Random(seed)
    return {
        name: [rng.getrandbits(bits * lanes) for _ in range(tensors * elements // lanes)]
        for name, (bits, lanes, elements) in zip("abc", SHAPES, strict=True)
    }


def delivers(design: Design, backend: Backend, seed: int, stall: float, tensors: int = 12) -> int:
    """Every stream arrives whole and in order, without errors; returns the cycles it took."""
    sent = traffic(tensors, seed)
    counts = {out: len(sent[name]) for name, out in zip("abc", "pqr", strict=True)}
    run = run_streams(backend, design, sent, counts, seed=seed, stall_probability=stall, max_cycles=20_000)
    for name, out in zip("abc", "pqr", strict=True):
        assert run.outputs[out] == sent[name], f"stream {name}, seed {seed}"
    assert run.outputs["errors"] == [], f"seed {seed}"
    return run.cycles


@pytest.mark.parametrize("position", range(3))
@pytest.mark.parametrize("depth", [2, 4, 16])
def test_a_word_alone_takes_the_cycles_that_its_units_declare(position: int, depth: int) -> None:
    latency, name, out = 7, "abc"[position], "pqr"[position]
    bits, lanes, elements = SHAPES[position]
    per_word = 32 // bits
    ends = (
        Egress(format=FORM, element_bits=bits, lanes=lanes, elements=elements, credits=depth),
        Ingress(format=FORM, element_bits=bits, lanes=lanes, elements=elements, depth=depth),
    )
    # device 0 sends two streams, device 1 one, and both of them credits, which meet them in one merge more
    merges = merges_passed((0, 1, 0)[position], (2, 2, 1)[position]) + 1
    splits = 1
    # see `link_switch`
    switch = latency + LEAST_LATENCY + 1
    sent = {stream: (traffic(1, 1)[stream] if stream == name else []) for stream in "abc"}
    counts = {port: (len(sent[name]) if port == out else 0) for port in "pqr"}
    run = run_streams(
        Backend.MYHDL, network_design(depth, 0, latency), sent, counts, seed=1, stall_probability=0.0, max_cycles=2_000
    )
    first_word = -(-min(per_word, elements) // lanes)
    took = run.fire_cycles[out][0] - run.fire_cycles[name][first_word - 1]
    assert took == ends[0].latency_cycles + merges + switch + splits + ends[1].latency_cycles


def test_merges_of_a_tree_are_counted_along_each_way() -> None:
    assert merge_tree(5) == ((0, 1, 2, 3), (5, 4))
    assert merge_tree(1) == ()
    assert [merges_passed(0, count) for count in (1, 2, 3, 4, 5, 8, 9, 16, 17)] == [0, 1, 1, 1, 2, 2, 2, 2, 3]
    assert [merges_passed(at, 5) for at in range(5)] == [2, 2, 2, 2, 1]
    assert [merges_passed(at, 7) for at in range(7)] == [2] * 7
    assert merge_tree(7) == ((0, 1, 2, 3), (4, 5, 6), (7, 8))


def test_the_sides_of_a_merge_take_turns_as_the_twos_of_a_tree() -> None:
    """What the schedule takes for the order of words is that of the circuit."""
    assert turns_taken(5) == ((0, 1), (2, 3), (5, 6), (7, 4))
    for streams in range(1, 70):
        below: dict[int, object] = {number: number for number in range(streams)}
        for number, pair in enumerate(turns_taken(streams), streams):
            below[number] = tuple(below.pop(side) for side in pair)
        joined: dict[int, object] = {number: number for number in range(streams)}
        for number, sides in enumerate(merge_tree(streams), streams):
            first, *others = [joined.pop(side) for side in sides]
            if len(others) == 3:
                joined[number] = (first, others[0]), (others[1], others[2])
            else:
                joined[number] = ((first, others[0]), others[1]) if len(others) == 2 else (first, others[0])
        assert [*joined.values()] == [*below.values()], streams


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize(
    ("latency", "words", "cycles", "stall_256"), [(3, 1, 1, 0), (20, 1, 1, 100), (5, 1, 3, 0), (7, 2, 3, 60)]
)
@pytest.mark.parametrize("depth", quick(2, [2, 16, 3]))
def test_streams_cross_the_network_whole_whatever_its_latency_and_stalls(
    depth: int, latency: int, words: int, cycles: int, stall_256: int, stall: float
) -> None:
    design = network_design(depth, 0, latency, words, cycles, stall_256)
    delivers(design, Backend.MYHDL, depth + latency, stall)


@pytest.mark.parametrize("backend", [Backend.ICARUS, Backend.VERILATOR])
def test_the_verilog_of_a_whole_network_delivers_too(backend: Backend) -> None:
    design = network_design(5, 0, 9, 2, 3, 40, 7)
    for seed in range(3):
        delivers(design, backend, seed, 0.3, tensors=40 if backend is Backend.VERILATOR else 12)


@pytest.mark.parametrize(("queued", "spare"), [(1, 0), (4, 3), (9, 1), (40, 11)])
def test_streams_that_wait_at_their_senders_cross_whole_too(queued: int, spare: int) -> None:
    for stall in (0.0, 0.6):
        design = network_design(4 + spare, 0, 5, 2, 3, 60, 7, queued, spare)
        delivers(design, Backend.MYHDL, queued, stall)
    delivers(network_design(4 + spare, 0, 5, 2, 3, 60, 7, queued, spare), Backend.ICARUS, queued, 0.3)


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("queued", [2, 10, 40])
def test_so_many_words_more_wait_at_a_sender_whose_receiver_gives_no_credits_back(queued: int, lanes: int) -> None:
    taken = {}
    for room in (0, queued):
        unit = Egress(format=FORM, element_bits=16, lanes=lanes, elements=64, credits=3, queued=room)
        sent = {"x": range(200), "credits": []}
        run = run_streams(Backend.MYHDL, sending(unit), sent, {"y": 3}, seed=1, stall_probability=0, drain_cycles=300)
        taken[room] = len(run.fire_cycles["x"]) * lanes // 2
        # a word that waits for nothing leaves after the cycles that are declared
        assert run.fire_cycles["y"][0] - run.fire_cycles["x"][max(0, 2 // lanes - 1)] == unit.latency_cycles
    assert taken[queued] - taken[0] == queued


def test_a_receiver_has_no_more_to_spare_than_all_but_two_words() -> None:
    carried = {"element_bits": 5, "lanes": 2, "elements": 8}
    assert Ingress(format=FORM, **carried, depth=8, spare=6).batch == 1
    for spare in (7, -1):
        with pytest.raises(ValueError, match=rf"needs at least 2 words, .* not 8 words with {spare} to spare$"):
            Ingress(format=FORM, **carried, depth=8, spare=spare)


def test_credits_for_words_that_the_receiver_cannot_hold_are_reported() -> None:
    design = network_design(depth=2, stolen=30)
    sent = traffic(12, 1)
    with pytest.raises((AssertionError, DeadlockError)):
        delivers(design, Backend.MYHDL, 1, 0.8)
    run = run_streams(Backend.MYHDL, design, sent, {"errors": 1}, seed=1, stall_probability=0.8, drain_cycles=0)
    assert run.outputs["errors"] == [1]


def test_deep_credits_hide_the_round_trip_and_shallow_ones_do_not() -> None:
    shallow = delivers(network_design(depth=2, latency=20), Backend.MYHDL, 1, 0.0)
    deep = delivers(network_design(depth=60, latency=20), Backend.MYHDL, 1, 0.0)
    assert deep * 3 < shallow


@pytest.mark.parametrize("words_cycles", [(1, 4), (1, 2), (1, 1)])
def test_the_wire_keeps_its_latency_and_its_bandwidth(words_cycles: tuple[int, int]) -> None:
    words, cycles = words_cycles

    def factory(_images: Any) -> Any:
        return link_wire(ClockReset(), Stream(8), Stream(8), latency=11, words=words, cycles=cycles)

    ports = (StreamPort("x", 8, Direction.IN), StreamPort("y", 8, Direction.OUT))
    run = run_streams(Backend.MYHDL, Design("wire", factory, ports), {"x": list(range(50))}, {"y": 50}, seed=1)
    assert run.outputs["y"] == list(range(50))
    entered, left = run.fire_cycles["x"], run.fire_cycles["y"]
    assert {b - a for a, b in zip(entered, left, strict=True)} == {11}
    assert (entered[-1] - entered[0]) * words == 49 * cycles


# ---------------------------------------------------------------------------------------------- ingress


@block
def receiving(
    domain: ClockReset, number: Any, device: Any, x: Stream, y: Stream, credits: Stream, errors: Stream, unit: Ingress
) -> Any:
    """An ingress whose error flag is a stream."""
    error = Signal(bool(0))
    inside = link_ingress(domain, number, device, x, y, credits, error, unit=unit)

    @always_comb
    def watch() -> None:
        errors.valid.next = error
        errors.payload.next = 1

    return inside, watch


def ingress_design(unit: Ingress) -> Design:
    def factory(_images: Any) -> Any:
        ports = [Signal(intbv(0)[width:]) for width in unit.inputs.values()]
        streams = [Stream(width) for width in (*unit.streams.values(), 1)]
        return receiving(ClockReset(), *ports, *streams, unit)

    bits = unit.streams
    ports = (
        StreamPort("x", bits["x"], Direction.IN),
        StreamPort("y", bits["y"], Direction.OUT),
        StreamPort("credits", bits["credits"], Direction.OUT),
        StreamPort("errors", 1, Direction.OUT),
    )
    return Design("receiving", factory, ports, constants={"number": 2, "device": 1})


# takes a word a cycle, so that it never stalls a sender without credits
RECEIVER = Ingress(format=FORM, element_bits=8, lanes=4, elements=12, depth=4)


def words_of(tensors: int) -> list[Word]:
    """Three words of four bytes a tensor."""
    return [
        Word(data=i, last=int(i % 3 == 2), sequence=i % 8, stream=2, credit=0, device=0) for i in range(3 * tensors)
    ]


@pytest.mark.parametrize(("depth", "spare"), [(4, 0), (16, 0), (70, 0), (600, 0), (64, 48), (512, 312)])
def test_an_ingress_returns_every_credit_addressed_to_the_sender(depth: int, spare: int) -> None:
    """Of a FIFO that is deeper than it needs to be, as many at a time as without what it has to spare."""
    batch = credit_batch(depth - spare)
    sent = words_of(2 * batch)
    run = run_streams(
        Backend.MYHDL,
        ingress_design(replace(RECEIVER, depth=depth, spare=spare)),
        {"x": [FORM.encode(word) for word in sent]},
        {"y": len(sent), "credits": len(sent) // batch},
        seed=1,
    )
    returned = batch | 2 << COUNT_BITS | 1 << COUNT_BITS + FORM.width("stream")
    assert run.outputs["credits"] == [returned] * (len(sent) // batch)
    assert run.outputs["errors"] == []
    assert run.outputs["y"] == list(range(len(sent)))


def test_returned_credits_become_words_for_the_sender() -> None:
    def factory(_images: Any) -> Any:
        return repaying(ClockReset(), Stream(FORM.returned_bits), Stream(FORM.payload_bits))

    ports = (
        StreamPort("x", FORM.returned_bits, Direction.IN), StreamPort("y", FORM.payload_bits, Direction.OUT),
    )  # fmt: skip
    rng = random.Random("1/repaid")
    cases = [(rng.getrandbits(COUNT_BITS), rng.randrange(3), rng.randrange(2)) for _ in range(40)]
    sent = [count | stream << COUNT_BITS | device << COUNT_BITS + 2 for count, stream, device in cases]
    run = run_streams(Backend.MYHDL, Design("repaying", factory, ports), {"x": sent}, {"y": 40}, seed=1)
    assert [FORM.decode(payload) for payload in run.outputs["y"]] == [
        Word(data=count, last=1, sequence=0, stream=stream, credit=1, device=device) for count, stream, device in cases
    ]


@block
def repaying(domain: ClockReset, x: Stream, y: Stream) -> Any:
    """A design has a clock."""
    del domain
    return credit_word(x, y, unit=CreditWord(format=FORM))


def test_credits_that_nobody_can_count_are_refused() -> None:
    narrow = replace(RECEIVER, format=LinkFormat(word_bits=8, streams=3, devices=2), element_bits=8)
    with pytest.raises(
        ValueError, match=r"^a link FIFO needs at least 2 words, and credits that 8 bits can count, not 4096 words"
    ):
        replace(narrow, depth=1 << 12)
    assert replace(RECEIVER, depth=1 << 21).depth == 1 << 21
    with pytest.raises(ValueError, match=r"^a link FIFO needs at least 2 words"):
        replace(RECEIVER, depth=1)


def test_a_sender_finds_room_for_the_words_that_a_depth_is_for() -> None:
    # up to where a credit word counts no more
    deep = range(15 << COUNT_BITS, (15 << COUNT_BITS) + 40_000, 7)
    for words in (*range(1, 20_000), *deep, 10_000_000):
        depth = depth_for(words)
        assert 0 < credit_batch(depth) < 1 << COUNT_BITS
        # freed, but not enough for a credit word
        withheld = credit_batch(depth) - 1
        assert depth - withheld >= words, words
        # no deeper than credits want
        assert depth <= max(2, min(2 * words, words + CREDIT_WORDS), words * 16 / 15 + 1), words


@pytest.mark.parametrize(("shape", "lanes", "frames"), [((1, 1, 1), 1, 40), ((1, 1, 5), 5, 40), ((8, 8, 16), 2, 6)])
def test_a_receiver_has_room_for_all_that_waits_behind_the_network(
    shape: tuple[int, int, int], lanes: int, frames: int
) -> None:
    port = Port("y", Tensor(shape, Fixed(16, 8), Kind.STASH), lanes)
    crossing = Crossing("stash", 0, "alpha", "beta", 0, 1, port, port)
    depth = link_words(crossing, frames * port.beats, 64)
    assert depth - (credit_batch(depth) - 1) >= frames * wire_words(port.tensor.elements, 16, 64)


@pytest.mark.parametrize(
    ("elements", "lanes", "cycles", "beats"),
    # within a frame's time; no more than comes in a cycle each; no more than there is; as few as there were
    [(4096, 4, 2048, 256), (65_536, 4, 4096, 512), (64, 4, 16, 16), (64, 4, 65_536, 2)],
)
def test_a_receiver_takes_what_comes_once_a_batch_within_a_frame(
    elements: int, lanes: int, cycles: int, beats: int
) -> None:
    port = Port("g", Tensor((1, 1, elements), Fixed(16, 8), Kind.GRADIENT), lanes)
    for stored in (False, True):
        assert receiver_beats(port, 2, stored, cycles, 512) == beats


def broken(words: list[Word], fault: str) -> list[Word]:
    at = 5
    if fault == "drop":
        return words[:at] + words[at + 1 :]
    if fault == "duplicate":
        return words[: at + 1] + words[at:]
    if fault == "reorder":
        return [*words[:at], words[at + 1], words[at], *words[at + 2 :]]
    word = words[at]
    if fault == "last":
        return [*words[:at], Word(**{**vars(word), "last": 1 - word.last}), *words[at + 1 :]]
    return [*words[:at], Word(**{**vars(word), "sequence": word.sequence ^ 4}), *words[at + 1 :]]


@pytest.mark.parametrize("fault", ["drop", "duplicate", "reorder", "last", "sequence"])
def test_an_ingress_reports_every_seeded_fault(fault: str) -> None:
    words = broken(words_of(8), fault)
    run = run_streams(
        Backend.MYHDL,
        ingress_design(RECEIVER),
        {"x": [FORM.encode(word) for word in words]},
        {"errors": 1},
        seed=1,
        drain_cycles=0,
    )
    assert run.outputs["errors"] == [1]


def test_streams_without_tensors_have_no_last_word() -> None:
    unit = Ingress(format=FORM, element_bits=32, lanes=1, elements=0, depth=4)
    words = [Word(data=i, last=0, sequence=i % 8, stream=2, credit=0, device=0) for i in range(20)]
    sent = {"x": [FORM.encode(word) for word in words]}
    run = run_streams(Backend.MYHDL, ingress_design(unit), sent, {"y": 20}, seed=1, stall_probability=0.3)
    assert run.outputs["y"] == list(range(20))
    assert run.outputs["errors"] == []
    ended = [replace(words[0], last=1), *words[1:]]
    sent = {"x": [FORM.encode(word) for word in ended]}
    run = run_streams(Backend.MYHDL, ingress_design(unit), sent, {"errors": 1}, seed=1, drain_cycles=0)
    assert run.outputs["errors"] == [1]
    sender = Egress(format=FORM, element_bits=32, lanes=1, elements=0, credits=20)
    design = sending(sender)
    run = run_streams(Backend.MYHDL, design, {"x": range(20), "credits": []}, {"y": 20}, seed=2, stall_probability=0.3)
    assert [FORM.decode(payload) for payload in run.outputs["y"]] == words


def sending(sender: Egress) -> Design:
    """A sender alone."""

    def factory(_images: Any) -> Any:
        numbers = [Signal(intbv(0)[width:]) for width in sender.inputs.values()]
        return link_egress(ClockReset(), *numbers, *(Stream(width) for width in sender.streams.values()), unit=sender)

    ports = (
        StreamPort("x", sender.streams["x"], Direction.IN),
        StreamPort("credits", FORM.payload_bits, Direction.IN),
        StreamPort("y", FORM.payload_bits, Direction.OUT),
    )
    return Design("sending", factory, ports, constants={"number": 2, "device": 0})


def merging(sides: int, longest: int = 1) -> Design:
    """A merge of beats of 8 bits."""

    def factory(_images: Any) -> Any:
        return merge(ClockReset(), [Stream(8) for _ in range(sides)], Stream(8), longest=longest)

    ports = [StreamPort(f"xs{side}", 8, Direction.IN) for side in range(sides)]
    return Design("merging", factory, (*ports, StreamPort("y", 8, Direction.OUT)))


def from_sides(sides: int, beats: int) -> dict[str, list[int]]:
    """Beats that say in their upper bits which side they come from."""
    return {f"xs{side}": [side << 6 | beat for beat in range(beats)] for side in range(sides)}


@pytest.mark.parametrize("longest", [1, 2, 5])
def test_a_side_keeps_its_turn_for_as_many_words_as_the_longest_burst(longest: int) -> None:
    sent = from_sides(2, 20)
    run = run_streams(Backend.MYHDL, merging(2, longest), sent, {"y": 40}, seed=1)
    sides = [beat >> 6 for beat in run.outputs["y"]]
    runs = [len(list(group)) for _, group in groupby(sides)]
    # what comes first may have had its turn a cycle before the other comes
    assert {*runs[1:-1]} == {longest}
    assert runs[0] <= longest
    for side, name in enumerate(sent):
        assert [beat for beat in run.outputs["y"] if beat >> 6 == side] == sent[name]


@pytest.mark.parametrize("backend", [Backend.MYHDL, Backend.ICARUS])
@pytest.mark.parametrize("sides", [2, 3, 4])
@pytest.mark.parametrize("longest", [1, 3])
def test_merges_lose_nothing_and_stop_for_nobody_who_has_nothing(sides: int, longest: int, backend: Backend) -> None:
    for seed in range(3):
        sent = from_sides(sides, 60)
        run = run_streams(backend, merging(sides, longest), sent, {"y": 60 * sides}, seed=seed, stall_probability=0.4)
        for side, name in enumerate(sent):
            assert [beat for beat in run.outputs["y"] if beat >> 6 == side] == sent[name], f"seed {seed}"
    for alone in sent:
        only = {name: beats if name == alone else [] for name, beats in sent.items()}
        run = run_streams(backend, merging(sides, longest), only, {"y": 60}, seed=1)
        assert run.fire_cycles["y"][-1] - run.fire_cycles["y"][0] == 59


@pytest.mark.parametrize(
    ("silent", "shares"),
    [
        ((), (1 / 4, 1 / 4, 1 / 4, 1 / 4)),
        ((1,), (1 / 2, 0, 1 / 4, 1 / 4)),
        ((2, 3), (1 / 2, 1 / 2, 0, 0)),
        ((0, 2), (0, 1 / 2, 0, 1 / 2)),
    ],
)
@pytest.mark.parametrize("longest", [1, 4])
def test_of_four_sides_both_pairs_take_turns_and_both_sides_of_a_pair(
    silent: tuple[int, ...], shares: tuple[float, ...], longest: int
) -> None:
    sent = {name: [] if side in silent else beats for side, (name, beats) in enumerate(from_sides(4, 60).items())}
    run = run_streams(Backend.MYHDL, merging(4, longest), sent, {"y": 64}, seed=1, drain_cycles=0)
    # while all of them have beats
    sides = [beat >> 6 for beat in run.outputs["y"][16:64]]
    for side, share in enumerate(shares):
        assert abs(sides.count(side) - share * 48) <= longest, (side, sides)


def test_a_merge_of_one_or_of_five_is_none() -> None:
    for sides in (1, 5):
        with pytest.raises(ValueError, match=rf"^a merge takes 2 to 4 streams, not {sides}$"):
            merge(ClockReset(), [Stream(8) for _ in range(sides)], Stream(8))


def splitting(taps: int) -> Design:
    """A split whose streams are numbers 0, 1 …, of data where they are even."""
    unit = Split(format=SPLIT_FORM, taps=taps)

    def factory(_images: Any) -> Any:
        constants = [Signal(intbv(0)[width:]) for width in unit.inputs.values()]
        x, *ys, rest = (Stream(width) for width in unit.streams.values())
        return link_split(ClockReset(), *constants, x, ys, rest, unit=unit)

    bits, stream_bits = SPLIT_FORM.payload_bits, SPLIT_FORM.width("stream")
    numbers = sum(tap << stream_bits * tap for tap in range(taps))
    odd = sum((tap & 1) << tap for tap in range(taps))
    outs = [StreamPort(name, bits, Direction.OUT) for name in (*unit.names, "rest")]
    ports = StreamPort("x", bits, Direction.IN), *outs
    return Design("splitting", factory, ports, constants={"numbers": numbers, "credits": odd})


SPLIT_FORM = LinkFormat(word_bits=16, streams=9, devices=2)


@pytest.mark.parametrize("backend", [Backend.MYHDL, Backend.ICARUS])
@pytest.mark.parametrize("taps", [1, 3, 8])
def test_every_word_of_a_split_leaves_where_it_belongs(taps: int, backend: Backend) -> None:
    for seed in range(3):
        rng = random.Random(f"{seed}/split")
        words = [
            Word(data=at, last=0, sequence=at % 256, stream=rng.randrange(9), credit=rng.getrandbits(1), device=at % 2)
            for at in range(200)
        ]
        wanted: dict[str, list[int]] = {name: [] for name in (*(f"ys{tap}" for tap in range(taps)), "rest")}
        for word in words:
            own = word.stream < taps and word.credit == word.stream % 2
            wanted[f"ys{word.stream}" if own else "rest"].append(SPLIT_FORM.encode(word))
        sent = {"x": [SPLIT_FORM.encode(word) for word in words]}
        counts = {name: len(found) for name, found in wanted.items()}
        run = run_streams(backend, splitting(taps), sent, counts, seed=seed, stall_probability=0.3)
        assert run.outputs == wanted, f"seed {seed}"
    run = run_streams(backend, splitting(taps), sent, counts, seed=1)
    # a word a cycle
    assert run.fire_cycles["x"][-1] - run.fire_cycles["x"][0] == len(words) - 1


@block
def draining(domain: ClockReset, x: Stream, errors: Stream) -> Any:
    """A drain whose error flag is a stream."""
    error = Signal(bool(0))
    inside = link_drain(domain, x, error)

    @always_comb
    def watch() -> None:
        errors.valid.next = error
        errors.payload.next = 1

    return inside, watch


def test_a_word_that_nobody_takes_is_reported() -> None:
    ports = (StreamPort("x", 8, Direction.IN), StreamPort("errors", 1, Direction.OUT))
    design = Design("draining", lambda _images: draining(ClockReset(), Stream(8), Stream(1)), ports)
    with pytest.raises(DeadlockError):
        run_streams(Backend.MYHDL, design, {"x": []}, {"errors": 1}, seed=1, max_cycles=20, drain_cycles=0)
    run = run_streams(Backend.MYHDL, design, {"x": [7]}, {"errors": 1}, seed=1, drain_cycles=0)
    assert run.outputs["errors"] == [1]


def test_memories_of_the_switch_begin_without_values() -> None:
    """Verilator writes C++ for each word that has one."""
    form = LinkFormat(word_bits=32, streams=2, devices=2)
    ends = [[Stream(form.payload_bits) for _ in range(form.devices)] for _ in range(2)]
    with unsimulated():
        module = convert(link_switch(ClockReset(), *ends, form=form, room=1000), "switch")
    assert module.images.keys() == {"between_0_0", "between_0_1", "between_1_0", "between_1_1", "to_0", "to_1"}
    assert "for(" not in module.text
    assert module.text.count("initial if (INIT_") == len(module.images)
