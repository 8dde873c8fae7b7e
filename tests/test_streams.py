"""The stream primitives against queue models, under random back-pressure, in MyHDL and in the emitted Verilog."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from myhdl import Signal, always, always_comb, block, intbv

from hdl.convert.tools import check_yosys, compile_icarus, lint_verilog
from hdl.errors import DeadlockError
from hdl.signals import ClockReset
from hdl.simulate import Backend, Design, Direction, StreamPort, run_streams
from hdl.stream import Stream
from hdl.streams import (
    AdapterKind,
    Policy,
    QueueKind,
    adapter_kind,
    bordering_adapter,
    fork,
    join,
    pipe,
    queue,
    queue_kind,
    queue_latency,
    width_adapter,
)
from hdl.streams.fifo import memory_queue

WIDTH = 9


def one_to_one(name: str, build: Callable[..., Any], x_width: int = WIDTH, y_width: int = WIDTH) -> Design:
    def factory(_images: Any) -> Any:
        return build(ClockReset(), Stream(x_width), Stream(y_width))

    ports = (StreamPort("x", x_width, Direction.IN), StreamPort("y", y_width, Direction.OUT))
    return Design(name, factory, ports)


def beats_of(count: int, width: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.getrandbits(width) for _ in range(count)]


def passes_unchanged(design: Design, backend: Backend, seed: int, stall: float, count: int = 60) -> list[int]:
    """Runs beats through; returns the cycles at which they left."""
    beats = beats_of(count, WIDTH, seed)
    run = run_streams(backend, design, {"x": beats}, {"y": count}, seed=seed, stall_probability=stall)
    assert run.outputs["y"] == beats, f"seed {seed}"
    return run.fire_cycles["y"]


def verilog_is_clean(design: Design, folder: Path) -> None:
    path = design.convert().write(folder)
    lint_verilog([path], design.name)
    compile_icarus([path], design.name)
    check_yosys([path], design.name)


# ------------------------------------------------------------------------------------------------ pipes


def pipe_design(policy: Policy) -> Design:
    return one_to_one(f"pipe_{policy.value}", lambda domain, x, y: pipe(domain, x, y, policy=policy))


@pytest.mark.parametrize("stall", [0.0, 0.2, 0.5, 0.8])
@pytest.mark.parametrize("policy", list(Policy))
def test_every_pipe_policy_passes_beats_in_order_under_back_pressure(policy: Policy, stall: float) -> None:
    for seed in range(3):
        passes_unchanged(pipe_design(policy), Backend.MYHDL, seed, stall)


@pytest.mark.parametrize(
    ("policy", "latency", "interval"),
    [(Policy.NONE, 0, 1), (Policy.M2S, 1, 1), (Policy.S2M, 0, 1), (Policy.FULL, 1, 1), (Policy.HALF, 1, 2)],
)
def test_a_pipe_has_the_latency_and_rate_of_its_policy(policy: Policy, latency: int, interval: int) -> None:
    design = pipe_design(policy)
    run = run_streams(Backend.MYHDL, design, {"x": list(range(20))}, {"y": 20}, seed=1)
    assert run.fire_cycles["y"][0] - run.fire_cycles["x"][0] == latency
    assert {b - a for a, b in zip(run.fire_cycles["y"], run.fire_cycles["y"][1:], strict=False)} == {interval}


@pytest.mark.parametrize("policy", list(Policy))
def test_the_verilog_of_a_pipe_is_clean_and_behaves_alike(policy: Policy, tmp_path: Path) -> None:
    verilog_is_clean(pipe_design(policy), tmp_path)
    passes_unchanged(pipe_design(policy), Backend.ICARUS, 5, 0.4)


def test_a_pipe_between_different_widths_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^wire: x has 8 payload bits, y has 9; they must be equal$"):
        pipe(ClockReset(), Stream(8), Stream(9), policy=Policy.NONE)


# ----------------------------------------------------------------------------------------------- queues

DEPTHS = [0, 1, 2, 3, 4, 5, 7, 8, 17]


def queue_design(depth: int) -> Design:
    return one_to_one(f"queue_{depth}", lambda domain, x, y: queue(domain, x, y, depth=depth))


@pytest.mark.parametrize("stall", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("depth", DEPTHS)
def test_a_queue_of_any_depth_passes_beats_in_order_under_back_pressure(depth: int, stall: float) -> None:
    for seed in range(3):
        passes_unchanged(queue_design(depth), Backend.MYHDL, seed, stall, count=80)


@pytest.mark.parametrize("depth", [d for d in DEPTHS if d != 0])
def test_a_queue_passes_one_beat_a_cycle_with_the_declared_latency(depth: int) -> None:
    design = queue_design(depth)
    run = run_streams(Backend.MYHDL, design, {"x": list(range(60))}, {"y": 60}, seed=1)
    latency = queue_latency(depth)
    assert run.fire_cycles["y"][0] - run.fire_cycles["x"][0] == latency
    if depth > latency or depth <= 2:
        assert run.cycles == 60 + latency


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_queue_that_nobody_reads_takes_exactly_its_depth(depth: int) -> None:
    def factory(_images: Any) -> Any:
        return counted(ClockReset(), Stream(WIDTH), depth)

    design = Design(f"stuck_{depth}", factory, (StreamPort("x", WIDTH, Direction.IN),))
    assert beats_taken(design, depth + 5) == depth


@block
def counted(domain: ClockReset, x: Stream, depth: int) -> Any:
    """A queue into nothing."""
    y = Stream(x.width)
    return queue(domain, x, y, depth=depth)


def beats_taken(design: Design, offered: int) -> int:
    """How many of the offered beats a circuit without outputs takes within 100 cycles."""
    from hdl.simulate.drivers import Source
    from hdl.simulate.myhdl_run import fresh_simulator, simulate

    source = Source("x", WIDTH, list(range(offered)), random.Random(1), 0.0)

    class TakingBench:
        sources: Sequence[Source] = (source,)
        sinks = ()
        cycle = 0

        def finished(self) -> bool:
            return self.cycle >= 100

    with fresh_simulator():
        dut = design.factory({})
        simulate(design.signals(dut), {}, TakingBench(), lambda _signals: dut)  # type: ignore[arg-type]
    return source.taken


@pytest.mark.parametrize("depth", [0, 2, 3, 6, 20])
@pytest.mark.parametrize("backend", [Backend.ICARUS, Backend.VERILATOR])
def test_the_verilog_of_a_queue_behaves_alike(depth: int, backend: Backend) -> None:
    passes_unchanged(queue_design(depth), backend, 7, 0.4, count=100)


@pytest.mark.parametrize("depth", [0, 1, 2, 4, 5, 16])
def test_the_verilog_of_a_queue_is_clean(depth: int, tmp_path: Path) -> None:
    verilog_is_clean(queue_design(depth), tmp_path)


def test_queues_have_named_kinds_by_depth() -> None:
    kinds = [queue_kind(depth) for depth in (0, 1, 2, 4, 5, 1000)]
    assert kinds == [
        QueueKind.BYPASS,
        QueueKind.STAGE,
        QueueKind.REGISTERS,
        QueueKind.REGISTERS,
        QueueKind.MEMORY,
        QueueKind.MEMORY,
    ]


def test_a_negative_depth_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^a queue can't be -1 beats deep; use 0 for a wire$"):
        queue_kind(-1)


@pytest.mark.parametrize("preload", [1, 4, 5])
def test_a_preloaded_queue_first_yields_its_contents(preload: int) -> None:
    contents = [100 + i for i in range(5)]
    design = one_to_one(
        f"preloaded_{preload}",
        lambda domain, x, y: memory_queue(domain, x, y, depth=5, preload=preload, contents=contents),
    )
    run = run_streams(Backend.MYHDL, design, {"x": list(range(9))}, {"y": 9 + preload}, seed=3, stall_probability=0.3)
    assert run.outputs["y"] == contents[:preload] + list(range(9))


# ------------------------------------------------------------------------------------------ fork and join


def fork_design(outputs: int) -> Design:
    def factory(_images: Any) -> Any:
        return fork(ClockReset(), Stream(WIDTH), [Stream(WIDTH) for _ in range(outputs)])

    ports = [StreamPort(f"ys{i}", WIDTH, Direction.OUT) for i in range(outputs)]
    return Design(f"fork_{outputs}", factory, (StreamPort("x", WIDTH, Direction.IN), *ports))


@pytest.mark.parametrize("backend", list(Backend))
@pytest.mark.parametrize("outputs", [1, 2, 3, 5])
def test_a_fork_gives_every_output_every_beat_once(outputs: int, backend: Backend, tmp_path: Path) -> None:
    design = fork_design(outputs)
    names = [f"ys{i}" for i in range(outputs)]
    for seed, stall in ((1, 0.0), (2, 0.3), (3, 0.7)):
        beats = beats_of(40, WIDTH, seed)
        run = run_streams(backend, design, {"x": beats}, dict.fromkeys(names, 40), seed=seed, stall_probability=stall)
        assert [run.outputs[name] for name in names] == [beats] * outputs
        if stall == 0:
            assert run.cycles == 40
    if backend is Backend.ICARUS:
        verilog_is_clean(design, tmp_path)


def test_a_fork_is_eager_so_one_output_may_run_a_beat_ahead() -> None:
    design = fork_design(2)
    run = run_streams(
        Backend.MYHDL, design, {"x": list(range(40))}, {"ys0": 40, "ys1": 40}, seed=4, stall_probability=0.5
    )
    together = sum(a == b for a, b in zip(run.fire_cycles["ys0"], run.fire_cycles["ys1"], strict=True))
    assert together < 40


@pytest.mark.parametrize("backend", list(Backend))
@pytest.mark.parametrize("widths", [(5,), (4, 9), (1, 2, 3, 4)])
def test_a_join_puts_one_beat_of_each_input_side_by_side(
    widths: tuple[int, ...], backend: Backend, tmp_path: Path
) -> None:
    def factory(_images: Any) -> Any:
        return join(ClockReset(), [Stream(w) for w in widths], Stream(sum(widths)))

    ports = [StreamPort(f"xs{i}", width, Direction.IN) for i, width in enumerate(widths)]
    name = "join_" + "_".join(map(str, widths))
    design = Design(name, factory, (*ports, StreamPort("y", sum(widths), Direction.OUT)))
    for seed, stall in ((1, 0.0), (2, 0.4)):
        beats = {f"xs{i}": beats_of(40, width, seed + i) for i, width in enumerate(widths)}
        run = run_streams(backend, design, beats, {"y": 40}, seed=seed, stall_probability=stall)
        expected = [0] * 40
        shift = 0
        for i, width in enumerate(widths):
            expected = [e | beat << shift for e, beat in zip(expected, beats[f"xs{i}"], strict=True)]
            shift += width
        assert run.outputs["y"] == expected
    if backend is Backend.ICARUS:
        verilog_is_clean(design, tmp_path)


@block
def diamond(domain: ClockReset, x: Stream, y: Stream, depths: tuple[int, ...]) -> Any:
    """Fork, queues of different depths, join."""
    heads = [Stream(x.width) for _ in depths]
    tails = [Stream(x.width) for _ in depths]
    top = fork(domain, x, heads)
    queues = [queue(domain, heads[i], tails[i], depth=depths[i]) for i in range(len(depths))]
    bottom = join(domain, tails, y)
    return top, queues, bottom


@pytest.mark.parametrize("depths", [(1, 1), (0, 3), (1, 8), (5, 2, 0)])
def test_a_fork_joined_again_neither_locks_nor_mixes_beats(depths: tuple[int, ...]) -> None:
    design = one_to_one("diamond", lambda domain, x, y: diamond(domain, x, y, depths), WIDTH, WIDTH * len(depths))
    beats = beats_of(50, WIDTH, 1)
    run = run_streams(Backend.MYHDL, design, {"x": beats}, {"y": 50}, seed=2, stall_probability=0.3)
    assert run.outputs["y"] == [sum(beat << (WIDTH * i) for i in range(len(depths))) for beat in beats]


# ----------------------------------------------------------------------------------------- width adapter


def adapter_design(a: int, b: int, bits: int, frame: int) -> Design:
    return one_to_one(
        f"adapter_{a}_{b}_{bits}_{frame}",
        lambda domain, x, y: width_adapter(domain, x, y, element_bits=bits, flush_every=frame),
        a * bits,
        b * bits,
    )


def border_design(a: int, b: int, bits: int, _frame: int) -> Design:
    return one_to_one(
        f"border_{a}_{b}_{bits}",
        lambda domain, x, y: bordering_adapter(domain, x, y, element_bits=bits),
        a * bits,
        b * bits,
    )


def beats_from(frames: list[list[int]], per_beat: int, bits: int, rng: random.Random | None = None) -> list[int]:
    """Frames of elements as beats; the last beat of each is filled with zeros, or garbage if ``rng`` is given."""
    beats = []
    for frame in frames:
        for at in range(0, len(frame), per_beat):
            chunk = frame[at : at + per_beat]
            missing = per_beat - len(chunk)
            chunk = chunk + [rng.getrandbits(bits) if rng else 0 for _ in range(missing)]
            beats.append(sum(element << (bits * i) for i, element in enumerate(chunk)))
    return beats


def adapts(
    a: int, b: int, bits: int, frame: int, backend: Backend, seed: int, stall: float, make: Any = adapter_design
) -> None:
    rng = random.Random(seed)
    length = frame or a * b
    frames = [[rng.getrandbits(bits) for _ in range(length)] for _ in range(6)]
    inputs, outputs = beats_from(frames, a, bits, rng), beats_from(frames, b, bits)
    design = make(a, b, bits, frame)
    run = run_streams(backend, design, {"x": inputs}, {"y": len(outputs)}, seed=seed, stall_probability=stall)
    assert run.outputs["y"] == outputs, f"seed {seed}"
    if stall == 0:
        # one beat a cycle on the side with more beats; a few cycles to fill and drain, one bubble a frame
        assert run.cycles <= max(len(inputs), len(outputs)) + len(frames) + 3


@pytest.mark.parametrize(("a", "b"), [(1, 4), (4, 1), (2, 6), (2, 1), (1, 1), (3, 2)])
def test_an_adapter_at_a_border_is_as_fast_and_keeps_all_elements(a: int, b: int) -> None:
    for stall in (0.0, 0.4):
        adapts(a, b, 3, 0, Backend.MYHDL, a * 10 + b, stall, border_design)


@pytest.mark.parametrize("b", [1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("a", [1, 2, 3, 4, 5, 6, 8])
def test_any_ratio_of_widths_keeps_all_elements_in_order(a: int, b: int) -> None:
    for stall in (0.0, 0.4):
        adapts(a, b, 3, 0, Backend.MYHDL, a * 10 + b, stall)


@pytest.mark.parametrize(
    ("a", "b", "frame"),
    [
        (a, b, frame)
        for a in (1, 2, 3, 4, 8)
        for b in (1, 3, 4, 6, 8)
        for frame in (1, 5, 12, 14, 24)
        if frame % a == 0 or frame % b == 0
    ],
)
def test_the_last_word_of_a_frame_is_padded_and_padding_is_dropped(a: int, b: int, frame: int) -> None:
    for stall in (0.0, 0.4):
        adapts(a, b, 3, frame, Backend.MYHDL, a * 100 + b * 10 + frame, stall)


@block
def into_a_stuck_sink(domain: ClockReset, x: Stream, y: Stream, bits: int, frame: int) -> Any:
    """A width adapter from 3 to 4 elements, whose output is let through only once every 16 cycles."""
    inner = Stream(y.width)
    adapter = width_adapter(domain, x, inner, element_bits=bits, flush_every=frame)
    count = Signal(intbv(0)[4:])
    open_now = Signal(bool(0))

    @always_comb
    def gate() -> None:
        open_now.next = count == 15
        y.payload.next = inner.payload

    @always_comb
    def handshake() -> None:
        y.valid.next = inner.valid and open_now
        inner.ready.next = y.ready and open_now

    @always(domain.clk.posedge)
    def step() -> None:
        if count == 15:
            if y.ready or not inner.valid:
                count.next = 0
        else:
            count.next = count + 1

    return adapter, gate, handshake, step


def test_padding_never_overflows_a_gearbox_whose_output_is_stuck() -> None:
    frame, bits = 9, 3
    rng = random.Random(1)
    frames = [[rng.getrandbits(bits) for _ in range(frame)] for _ in range(6)]
    inputs, outputs = beats_from(frames, 3, bits), beats_from(frames, 4, bits)
    design = one_to_one("stuck", lambda domain, x, y: into_a_stuck_sink(domain, x, y, bits, frame), 9, 12)
    run = run_streams(Backend.MYHDL, design, {"x": inputs}, {"y": len(outputs)}, seed=1)
    assert run.outputs["y"] == outputs


@pytest.mark.parametrize("backend", [Backend.ICARUS, Backend.VERILATOR])
@pytest.mark.parametrize(
    ("a", "b", "frame"), [(1, 4, 0), (1, 4, 6), (4, 1, 6), (4, 2, 0), (3, 4, 9), (4, 3, 9), (3, 2, 0), (2, 3, 8)]
)
def test_the_verilog_of_a_width_adapter_behaves_alike(a: int, b: int, frame: int, backend: Backend) -> None:
    adapts(a, b, 5, frame, backend, 3, 0.3)


@pytest.mark.parametrize(("a", "b", "frame"), [(1, 4, 6), (4, 1, 6), (3, 4, 9), (4, 3, 9), (2, 2, 0), (8, 3, 0)])
def test_the_verilog_of_a_width_adapter_is_clean(a: int, b: int, frame: int, tmp_path: Path) -> None:
    verilog_is_clean(adapter_design(a, b, 5, frame), tmp_path)


def test_width_adapters_have_named_kinds() -> None:
    pairs = [(2, 2), (2, 6), (6, 2), (4, 6)]
    assert [adapter_kind(a, b) for a, b in pairs] == list(AdapterKind)


def test_a_frame_that_neither_side_divides_is_refused() -> None:
    domain = ClockReset()
    message = r"^width_adapter: a frame of 7 elements is a whole number of beats neither of 2 nor of 3 elements$"
    with pytest.raises(ValueError, match=message):
        width_adapter(domain, Stream(8), Stream(12), element_bits=4, flush_every=7)


def test_a_width_without_whole_elements_is_refused() -> None:
    domain = ClockReset()
    with pytest.raises(ValueError, match=r"^width_adapter: y has 9 bits, no whole elements of 4 bits$"):
        width_adapter(domain, Stream(8), Stream(9), element_bits=4)


# ------------------------------------------------------------------------------------------ seeded faults


@block
def forgetful(domain: ClockReset, x: Stream, y: Stream) -> Any:
    """A queue chained to a fork of which one output is never read: it must lock."""
    dead = Stream(x.width)
    return fork(domain, x, [y, dead])


def test_a_fork_with_a_dead_output_locks_and_is_reported() -> None:
    design = one_to_one("forgetful", forgetful)
    with pytest.raises(DeadlockError):
        run_streams(Backend.MYHDL, design, {"x": [1, 2, 3]}, {"y": 3}, seed=1, max_cycles=50)
