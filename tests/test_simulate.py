"""One harness over three simulators: same beats, same errors, honest cycle counts, no hidden X."""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from myhdl import Signal, always, always_comb, block, intbv

from hdl.convert.verilog import VerilogModule
from hdl.errors import ContractViolation, ConversionError, DeadlockError, ToolError, ToolMissing
from hdl.signals import ClockReset
from hdl.simulate import Backend, Design, Direction, StreamPort, check_no_x, run_streams
from hdl.simulate import verilator as verilator_module
from hdl.simulate.verilator import ONCE, build, pack, unpack
from hdl.stream import Stream

IN, OUT = Direction.IN, Direction.OUT


@block
def adder(domain: ClockReset, a: Any, b: Any, y: Any, bias: Any, width: int, rate: int) -> Any:
    """``y = a + b + bias`` modulo ``2**width``, one result every ``rate`` cycles at most."""
    full, free, go = (Signal(bool(0)) for _ in range(3))
    total = Signal(intbv(0)[width + 2 :])
    result = Signal(intbv(0)[width + 2 :])
    left = Signal(intbv(0, min=0, max=rate + 1))

    @always_comb
    def control() -> None:
        free.next = left == 0 and (y.ready or not full)

    @always_comb
    def together() -> None:
        go.next = a.valid and b.valid and free

    @always_comb
    def compute() -> None:
        total.next = a.payload + b.payload + bias

    @always_comb
    def ports() -> None:
        a.ready.next = b.valid and free
        b.ready.next = a.valid and free
        y.valid.next = full
        y.payload.next = result[width:]

    @always(domain.clk.posedge)
    def step() -> None:
        if domain.rst:
            full.next = False
            left.next = 0
        else:
            if left != 0:
                left.next = left - 1
            if go:
                full.next = True
                result.next = total
                left.next = rate - 1
            elif y.ready:
                full.next = False

    return control, together, compute, ports, step


def adder_design(width: int, rate: int = 1, bias: int = 1, **changes: Any) -> Design:
    def build_block(_images: Mapping[str, Sequence[int]]) -> Any:
        streams = [Stream(width) for _ in range(3)]
        return adder(ClockReset(), *streams, Signal(intbv(0)[width:]), width, rate)

    ports = (StreamPort("a", width, IN), StreamPort("b", width, IN), StreamPort("y", width, OUT))
    values: dict[str, Any] = {"streams": ports, "constants": {"bias": bias}}
    return Design(f"adder_{width}_{rate}", build_block, **(values | changes))


def random_beats(width: int, count: int, seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    return [int.from_bytes(rng.bytes((width + 7) // 8), "little") % (1 << width) for _ in range(count)]


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("width", [1, 32, 33, 64, 65, 200])
def test_all_simulators_give_the_same_beats_at_any_width(width: int, stall: float) -> None:
    a, b = random_beats(width, 40, 1), random_beats(width, 40, 2)
    wanted = [(x + y + 1) % (1 << width) for x, y in zip(a, b, strict=True)]
    for backend in Backend:
        run = run_streams(backend, adder_design(width), {"a": a, "b": b}, {"y": 40}, seed=3, stall_probability=stall)
        assert run.outputs == {"y": wanted}, backend
        assert {name: len(cycles) for name, cycles in run.fire_cycles.items()} == {"a": 40, "b": 40, "y": 40}


@pytest.mark.parametrize("rate", [1, 3])
@pytest.mark.parametrize("backend", Backend)
def test_without_stalls_the_fire_cycles_are_those_of_the_circuit(backend: Backend, rate: int) -> None:
    beats = random_beats(8, 10, 1)
    run = run_streams(backend, adder_design(8, rate), {"a": beats, "b": beats}, {"y": 10}, seed=1)
    assert run.fire_cycles["a"] == [rate * i for i in range(10)]
    assert run.fire_cycles["y"] == [rate * i + 1 for i in range(10)]
    assert run.cycles == rate * 9 + 2


@pytest.mark.parametrize("backend", Backend)
def test_one_seed_gives_one_run_and_another_seed_another(backend: Backend) -> None:
    beats = random_beats(8, 30, 1)

    def fires(seed: int) -> dict[str, list[int]]:
        design = adder_design(8)
        return run_streams(
            backend, design, {"a": beats, "b": beats}, {"y": 30}, seed=seed, stall_probability=0.5
        ).fire_cycles

    assert fires(1) == fires(1)
    assert fires(1) != fires(2)


@pytest.mark.parametrize("backend", Backend)
def test_missing_beats_end_in_a_deadlock_with_the_counts_of_every_port(backend: Backend) -> None:
    message = (
        r"adder_8_1: not done after 200 cycles: input a: 5 of 7 beats taken; input b: 5 of 5 beats taken; "
        r"output y: 5 of 6 beats"
    )
    inputs = {"a": list(range(7)), "b": list(range(5))}
    with pytest.raises(DeadlockError, match=message):
        run_streams(backend, adder_design(8), inputs, {"y": 6}, seed=1, max_cycles=200)


@pytest.mark.parametrize("backend", Backend)
def test_a_surplus_beat_is_an_error_even_after_the_last_expected_one(backend: Backend) -> None:
    beats = list(range(5))
    with pytest.raises(ContractViolation, match=r"y.*beat 5 came, only 4 expected"):
        run_streams(backend, adder_design(8), {"a": beats, "b": beats}, {"y": 4}, seed=1)
    run_streams(backend, adder_design(8, rate=9), {"a": beats, "b": beats}, {"y": 4}, seed=1, drain_cycles=0)


def test_packing_is_undone_by_unpacking() -> None:
    for width in (1, 31, 32, 33, 96, 100):
        beats = random_beats(width, 9, width)
        assert unpack(pack(beats, width), width) == beats


def test_a_second_build_of_the_same_circuit_comes_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    design = adder_design(8)
    first = build(design, design.convert(), ONCE)

    def fail(*_arguments: Any) -> Any:
        raise AssertionError("built again")

    monkeypatch.setattr(verilator_module, "_runtime", fail)
    assert build(design, design.convert(), ONCE) == first


def test_the_cache_folder_can_be_chosen(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGTRAIN_CACHE", str(tmp_path))
    beats = random_beats(8, 5, 1)
    run_streams(Backend.ICARUS, adder_design(8), {"a": beats, "b": beats}, {"y": 5}, seed=1)
    assert list(tmp_path.glob("vpi/*/myhdl.vpi"))


def test_too_many_port_bits_for_the_vpi_are_refused_with_the_cure() -> None:
    beats = [1]
    with pytest.raises(ToolError, match=r"adder_8000_1 has .* bits of input ports.*Use Backend.VERILATOR"):
        run_streams(Backend.ICARUS, adder_design(8000), {"a": beats, "b": beats}, {"y": 1}, seed=1)


@pytest.mark.parametrize("backend", [Backend.ICARUS, Backend.VERILATOR])
def test_a_missing_simulator_is_named_with_the_cure(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolMissing, match=r"is not installed.*make setup"):
        run_streams(backend, adder_design(8), {"a": [1], "b": [1]}, {"y": 1}, seed=1)


WRONG = {
    "input": ({"a": [1]}, {"y": 1}, r"inputs are \['a', 'b'\], beats were given for \['a'\]"),
    "output": ({"a": [1], "b": [1]}, {"z": 1}, r"outputs are \['y'\], counts were given for \['z'\]"),
    "nothing": ({"a": [1], "b": [1]}, {}, r"outputs are \['y'\], counts were given for \[\]"),
    "value": ({"a": [256], "b": [1]}, {"y": 1}, "beat 0 of stream a is 0x100, which is not 8 bits"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_beats_and_names_are_refused(case: str) -> None:
    inputs, expected, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        run_streams(Backend.MYHDL, adder_design(8), inputs, expected, seed=1)


def test_a_design_must_describe_its_ports_truly() -> None:
    good = adder_design(8).streams
    wide = (*good[:2], StreamPort("y", 9, OUT))
    with pytest.raises(ConversionError, match="port y_payload should be 9 bits, output, but is 8 bits, output"):
        adder_design(8, streams=wide).convert()
    turned = (*good[:2], StreamPort("y", 8, IN))
    with pytest.raises(ConversionError, match="port y_valid should be 1 bits, input, but is 1 bits, output"):
        adder_design(8, streams=turned).convert()
    with pytest.raises(ConversionError, match="input bias is neither of a stream nor in `constants`"):
        adder_design(8, constants={}).convert()
    with pytest.raises(ConversionError, match=r"images \['weights'\] are of no memory"):
        adder_design(8, images={"weights": [1]}).convert()


# --------------------------------------------------------------------------------------------------- X


@block
def forgetful(domain: ClockReset, x: Any, y: Any, guarded: bool) -> Any:
    """Adds the previous payload, valid or not: unless guarded, X gets in from idle cycles."""
    last = Signal(intbv(0)[8:])
    move = Signal(bool(0))

    @always_comb
    def flow() -> None:
        move.next = x.valid and y.ready
        x.ready.next = y.ready
        y.valid.next = x.valid

    @always_comb
    def mix() -> None:
        y.payload.next = x.payload ^ last

    @always(domain.clk.posedge)
    def remember() -> None:
        if domain.rst:
            last.next = 0
        elif move or not guarded:
            last.next = x.payload

    return flow, mix, remember


@pytest.mark.parametrize("guarded", [True, False])
def test_an_x_that_reaches_a_valid_payload_is_found(guarded: bool) -> None:
    def build_block(_images: Mapping[str, Sequence[int]]) -> Any:
        return forgetful(ClockReset(), Stream(8), Stream(8), guarded)

    design = Design("forgetful", build_block, (StreamPort("x", 8, IN), StreamPort("y", 8, OUT)))
    beats = random_beats(8, 50, 1)
    if guarded:
        check_no_x(design, {"x": beats}, {"y": 50}, seed=1)
        return
    with pytest.raises(ContractViolation, match=r"forgetful: cycle \d+: y_payload has X while valid"):
        check_no_x(design, {"x": beats}, {"y": 50}, seed=1)


def test_the_x_check_passes_a_clean_circuit_and_reports_a_deadlock() -> None:
    beats = random_beats(8, 20, 1)
    check_no_x(adder_design(8), {"a": beats, "b": beats}, {"y": 20}, seed=1)
    with pytest.raises(DeadlockError, match="y: 20 of 21 beats"):
        check_no_x(adder_design(8), {"a": beats, "b": beats}, {"y": 21}, seed=1, max_cycles=500)


@pytest.mark.slow
def test_threads_that_build_at_the_same_time_don_t_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGTRAIN_CACHE", str(tmp_path))
    designs = [adder_design(width) for width in (3, 5)]
    modules = [design.convert() for design in designs]
    together = threading.Barrier(len(designs))

    def work(design: Design, module: VerilogModule) -> bool:
        together.wait()
        return build(design, module, ONCE).exists()

    with ThreadPoolExecutor(len(designs)) as pool:
        assert all(pool.map(work, designs, modules))
