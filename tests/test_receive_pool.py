"""One memory for the words of all receivers: against queues of words, MyHDL and Verilog."""

from __future__ import annotations

import random
from typing import Any

import pytest
from myhdl import Signal, always_comb, block, intbv

from hdl.convert.tools import check_yosys, lint_verilog
from hdl.convert.verilog import convert
from hdl.link.format import LinkFormat, Word
from hdl.link.pool import (
    NARROW_STAGE,
    WIDE_STAGE,
    ReceivePool,
    receive_pool,
    stage_words,
    turn_cycles,
    turns_of_all,
)
from hdl.signals import ClockReset
from hdl.simulate import Backend, Design, Direction, StreamPort, run_streams
from hdl.stream import Stream

FORM = LinkFormat(word_bits=16, streams=12, devices=2)
# numbers of the pool's streams, by their number
NUMBERS = (7, 2, 9, 0, 4, 11, 1)


def pool_of(regions: tuple[int, ...], stage: int = NARROW_STAGE) -> ReceivePool:
    return ReceivePool(format=FORM, regions=regions, stages=(stage,) * len(regions))


@block
def pooled(
    domain: ClockReset, numbers: Any, x: Stream, ys: Any, rest: Stream, errors: Stream, unit: ReceivePool, shut: Any
) -> Any:
    """A pool whose error flag is a stream; receivers that are ``shut`` take nothing."""
    error = Signal(bool(0))
    taken = [Stream(y.width) if at in shut else y for at, y in enumerate(ys)]
    inside = receive_pool(domain, numbers, x, taken, rest, error, unit=unit)

    @always_comb
    def watch() -> None:
        errors.valid.next = error
        errors.payload.next = 1

    return inside, watch


def pool_design(unit: ReceivePool, shut: tuple[int, ...] = ()) -> Design:
    (bits,) = unit.inputs.values()

    def factory(_images: Any) -> Any:
        x, *ys, rest = (Stream(width) for width in unit.streams.values())
        return pooled(ClockReset(), Signal(intbv(0)[bits:]), x, ys, rest, Stream(1), unit, shut)

    names = (*unit.names, "rest")
    outs = [StreamPort(name, FORM.payload_bits, Direction.OUT) for name in names]
    ports = (StreamPort("x", FORM.payload_bits, Direction.IN), *outs, StreamPort("errors", 1, Direction.OUT))
    each = FORM.width("stream")
    numbers = sum(NUMBERS[at] << each * at for at in range(len(unit.regions)))
    return Design("pooled", factory, ports, constants={"numbers": numbers})


def word(stream: int, data: int, credit: int = 0) -> Word:
    return Word(data=data, last=data % 2, sequence=data % 256, stream=stream, credit=credit, device=1)


def kept(unit: ReceivePool, found: Word) -> int:
    """What a word is behind the pool: its fields above the sequence are known there."""
    return FORM.encode(found) & (1 << unit.kept_bits) - 1


def traffic(unit: ReceivePool, words: int, seed: int) -> tuple[list[int], dict[str, list[int]]]:
    """Words of all streams, some of others and credits; and what each end gets."""
    rng = random.Random(f"{seed}/pool")
    wanted: dict[str, list[int]] = {name: [] for name in (*unit.names, "rest")}
    sent = []
    for data in range(words):
        at = rng.randrange(len(unit.regions) + 1)
        if at == len(unit.regions):
            found = word(rng.choice([3, 5]), data) if rng.getrandbits(1) else word(rng.randrange(12), data, credit=1)
            wanted["rest"].append(FORM.encode(found))
        else:
            found = word(NUMBERS[at], data)
            wanted[f"ys{at}"].append(kept(unit, found))
        sent.append(FORM.encode(found))
    return sent, wanted


@pytest.mark.parametrize("backend", [Backend.MYHDL, Backend.ICARUS])
@pytest.mark.parametrize("stage", [NARROW_STAGE, WIDE_STAGE])
@pytest.mark.parametrize("streams", [1, 2, 5, 7])
def test_every_word_comes_to_its_receiver_in_order(streams: int, stage: int, backend: Backend) -> None:
    # as many words of each as its region and its stage hold
    unit = pool_of(tuple(100 + 3 * at for at in range(streams)), stage)
    for seed in range(3):
        sent, wanted = traffic(unit, 99, seed)
        counts = {name: len(words) for name, words in wanted.items()}
        run = run_streams(
            backend,
            pool_design(unit),
            {"x": sent},
            {**counts, "errors": 0},
            seed=seed,
            stall_probability=0.4 * (seed > 0),
        )
        assert {name: run.outputs[name] for name in wanted} == wanted, f"seed {seed}"
        assert run.outputs["errors"] == []


def test_places_are_used_again_and_again_however_full_the_region_is() -> None:
    """A receiver that is slower than its words for a while: credits are its sender's, here the words of a region."""
    unit, rng = pool_of((5, 3)), random.Random("1/again")
    first = [word(NUMBERS[0], data) for data in range(60)]
    # never more than a region and the stage hold, as if each credit came back at once
    for gap in (4, 6, 9):
        spaced = [item for found in first for item in (found, *[word(3, rng.randrange(99)) for _ in range(gap)])]
        sent = [FORM.encode(found) for found in spaced]
        counts = {"ys0": 60, "ys1": 0, "rest": 60 * gap, "errors": 0}
        run = run_streams(Backend.MYHDL, pool_design(unit), {"x": sent}, counts, seed=gap)
        assert run.outputs["ys0"] == [kept(unit, found) for found in first]
        assert run.outputs["errors"] == []


def test_a_stream_waits_for_no_receiver_but_its_own() -> None:
    unit = pool_of((40, 40, 40))
    sent = [FORM.encode(word(NUMBERS[at % 3], at)) for at in range(90)]
    run = run_streams(Backend.MYHDL, pool_design(unit, shut=(0, 2)), {"x": sent}, {"ys1": 30}, seed=1)
    assert run.outputs["ys1"] == [kept(unit, word(NUMBERS[1], at)) for at in range(1, 90, 3)]


@pytest.mark.parametrize("stage", [NARROW_STAGE, WIDE_STAGE])
@pytest.mark.parametrize("streams", [1, 3, 7])
def test_a_word_alone_takes_the_cycles_that_are_told(streams: int, stage: int) -> None:
    unit = pool_of((9,) * streams, stage)
    for at in {0, streams - 1}:
        sent = [FORM.encode(word(NUMBERS[at], 5))]
        run = run_streams(Backend.MYHDL, pool_design(unit), {"x": sent}, {f"ys{at}": 1}, seed=1)
        assert run.fire_cycles[f"ys{at}"][0] - run.fire_cycles["x"][0] == unit.latency_cycles(at)


def test_a_stage_is_as_large_as_its_receiver_is_fast() -> None:
    for stage in (NARROW_STAGE, WIDE_STAGE):
        unit = pool_of((200,), stage)
        sent = [FORM.encode(word(NUMBERS[0], at)) for at in range(120)]
        run = run_streams(Backend.MYHDL, pool_design(unit), {"x": sent}, {"ys0": 120}, seed=1)
        fired = run.fire_cycles["ys0"]
        each = max(2.0, turn_cycles(stage) / stage)
        assert (fired[-1] - fired[0]) / 119 == pytest.approx(each, rel=0.03), stage
    # a word in so many cycles
    assert stage_words(64, 64 * 4) == NARROW_STAGE
    assert stage_words(64, 64 * 3) == WIDE_STAGE


def test_streams_share_what_is_read_of_the_memory() -> None:
    """A word a cycle, whoever it is for."""
    unit = pool_of((60,) * 7, WIDE_STAGE)
    sent = [FORM.encode(word(NUMBERS[at % 7], at)) for at in range(350)]
    run = run_streams(Backend.MYHDL, pool_design(unit), {"x": sent}, dict.fromkeys(unit.names, 50), seed=1)
    assert max(run.fire_cycles[name][-1] for name in unit.names) - run.fire_cycles["x"][0] <= 350 + 30


@pytest.mark.parametrize("streams", [1, 2, 5])
def test_a_word_without_a_place_is_reported(streams: int) -> None:
    unit = pool_of((6,) * streams)
    for at in range(streams):
        # the region, the stage, and one more
        for words, told in ((6 + NARROW_STAGE, []), (9 + NARROW_STAGE, [1])):
            sent = [FORM.encode(word(NUMBERS[at], data)) for data in range(words)]
            sent += [FORM.encode(word(3, data)) for data in range(20)]
            design, counts = pool_design(unit, shut=(at,)), {"rest": 20}
            run = run_streams(Backend.MYHDL, design, {"x": sent}, counts, seed=1, drain_cycles=60)
            assert run.outputs["errors"][:1] == told, (at, words)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 12])
def test_requests_have_their_turns(count: int) -> None:
    """One at a time, nobody without a request, and of those who always have one each its part."""

    @block
    def turning(domain: ClockReset, x: Stream, y: Stream) -> Any:
        requests, grants = ([Signal(bool(0)) for _ in range(count)] for _ in range(2))
        inside = turns_of_all(domain, requests, grants)
        asked = [_bit_of(x, requests[at], at) for at in range(count)]
        return inside, asked, _row(x, y, grants)

    design = Design(
        "turning",
        lambda _images: turning(ClockReset(), Stream(count), Stream(count)),
        (StreamPort("x", count, Direction.IN), StreamPort("y", count, Direction.OUT)),
    )
    rng = random.Random(f"{count}/turns")
    asked = [rng.getrandbits(count) for _ in range(100)] + [(1 << count) - 1] * 64
    run = run_streams(Backend.MYHDL, design, {"x": asked}, {"y": len(asked)}, seed=1)
    for request, grant in zip(asked, run.outputs["y"], strict=True):
        assert grant & ~request == 0
        assert grant.bit_count() == (request != 0)
    for at in range(count):
        turns = sum(grant >> at & 1 for grant in run.outputs["y"][100:])
        # a tree whose halves differ by one
        assert turns >= 64 // (1 << (count - 1).bit_length())


@block
def _bit_of(x: Stream, bit: Any, at: int) -> Any:
    @always_comb
    def out() -> None:
        bit.next = x.valid and x.payload[at]

    return out


@block
def _row(x: Stream, y: Stream, grants: Any) -> Any:
    from hdl.streams.fork_join import row_of

    row = row_of([*grants, grants[0]])
    width = y.width

    @always_comb
    def out() -> None:
        y.valid.next = x.valid
        x.ready.next = y.ready
        y.payload.next = row[width:]

    return out


def test_its_verilog_is_clean(tmp_path: Any) -> None:
    for unit in (pool_of((9, 4, 6)), pool_of((600,), WIDE_STAGE)):
        streams = {name: Stream(width) for name, width in unit.streams.items()}
        path = convert(unit.build(ClockReset(), streams), "unit").write(tmp_path)
        lint_verilog([path], "unit")
        check_yosys([path], "unit")


def test_a_pool_without_places_is_none() -> None:
    for regions, stages in (((), ()), ((4, 1), (2, 2)), ((4, 4), (2,))):
        with pytest.raises(
            ValueError, match=r"^a pool needs a region of 2 words or more, and a stage, for every stream"
        ):
            ReceivePool(format=FORM, regions=regions, stages=stages)
