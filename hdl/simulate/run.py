"""The one entry to all simulators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hdl.simulate.design import Backend, Design, Run
from hdl.simulate.drivers import Bench
from hdl.simulate.icarus import check_no_x, run_icarus
from hdl.simulate.myhdl_run import run_myhdl
from hdl.simulate.verilator import run_verilator

__all__ = ["check_no_x", "run_streams"]


def run_streams(
    backend: Backend,
    design: Design,
    inputs: Mapping[str, Sequence[int]],
    expected_counts: Mapping[str, int],
    *,
    seed: int,
    stall_probability: float = 0.0,
    max_cycles: int = 100_000,
    drain_cycles: int = 16,
) -> Run:
    """Feed beats into a circuit and collect what comes out.

    Args:
        inputs: payloads in order for every input stream of the design.
        expected_counts: beats to wait for, by output stream; an output that isn't named may yield any number.
        seed: of the stalls and of the garbage on idle payloads; one seed gives one run.
        stall_probability: chance in each cycle that a source isn't valid, or a sink isn't ready.
        max_cycles: limit on the clock cycles after reset.
        drain_cycles: how long to look for surplus beats after the last expected one.

    Raises:
        DeadlockError: the limit was hit; the message has the beat counts of every stream.
        ContractViolation: the stream contract was broken, or a surplus beat came.
        ConversionError, ToolError, ToolMissing: the circuit couldn't be brought into the simulator.
    """
    if not 0 <= stall_probability < 1:
        raise ValueError(f"stall_probability must lie in [0, 1), not {stall_probability}")
    bench = Bench(design, inputs, expected_counts, seed, stall_probability, max_cycles, drain_cycles)
    if backend is Backend.MYHDL:
        return run_myhdl(design, bench)
    if backend is Backend.ICARUS:
        return run_icarus(design, bench)
    return run_verilator(
        design,
        inputs,
        expected_counts,
        seed=seed,
        stall=stall_probability,
        max_cycles=max_cycles,
        drain=drain_cycles,
    )
