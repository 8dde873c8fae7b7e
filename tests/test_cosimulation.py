"""A compiled simulation and an interpreted one speak MyHDL's co-simulation protocol alike."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from myhdl import CosimulationError, Signal, Simulation, StopSimulation, always, block, delay, intbv

from hdl.convert.netlist import Direction, PortDecl
from hdl.errors import ToolError
from hdl.simulate.cosimulation import CosimulationProgram, Engine, build_cosimulation, one_core
from hdl.simulate.myhdl_run import fresh_simulator

# widths around those at which C++ changes the type of a port
WIDTHS = (1, 2, 8, 9, 16, 17, 32, 33, 63, 64, 65, 100, 128, 129)
CYCLES = 60


def echo(stop: str = "") -> str:
    """A register and an inverter for each width; a name that C++ spells otherwise; ``stop`` runs at each clock edge."""
    ports, body = ["input wire clk"], []
    for width in WIDTHS:
        bits = f"[{width - 1}:0] "
        ports += [f"input wire {bits}a__{width}", f"output reg {bits}q__{width}", f"output wire {bits}n{width}"]
        body += [f"always @(posedge clk) q__{width} <= a__{width};", f"assign n{width} = ~a__{width};"]
    return f"module echo({', '.join(ports)});\n" + "\n".join(body) + f"\n{stop}\nendmodule\n"


def declared() -> list[PortDecl]:
    """The ports of `echo`."""
    ports = [PortDecl("clk", 1, Direction.IN)]
    for width in WIDTHS:
        ports.append(PortDecl(f"a__{width}", width, Direction.IN))
        ports += [PortDecl(f"q__{width}", width, Direction.OUT), PortDecl(f"n{width}", width, Direction.OUT)]
    return ports


def built(engine: Engine, folder: Path, text: str) -> CosimulationProgram:
    source = folder / "echo.v"
    source.write_text(text)
    return build_cosimulation(engine, "echo", declared(), [source], folder / "with a space")


def signals() -> dict[str, Any]:
    return {p.name: Signal(bool(0)) if p.width == 1 else Signal(intbv(0)[p.width :]) for p in declared()}


def drive(program: CosimulationProgram, seed: int) -> int:
    """Random words in for `CYCLES` clock cycles, extremes among them; returns the values compared."""
    rng = random.Random(seed)
    given = signals()
    compared = [0]

    def word(width: int) -> int:
        return rng.choice([0, (1 << width) - 1, 1 << (width - 1), rng.getrandbits(width)])

    @block
    def bench() -> Any:
        clk = given["clk"]
        cycle = [0]
        last: dict[int, int] = {}

        @always(delay(1))
        def clock() -> None:
            clk.next = not clk

        @always(clk.posedge)
        def step() -> None:
            for width in WIDTHS:
                now = int(given[f"a__{width}"])
                if cycle[0] > 1:
                    assert int(given[f"n{width}"]) == now ^ ((1 << width) - 1), (seed, width, cycle)
                    assert int(given[f"q__{width}"]) == last[width], (seed, width, cycle)
                    compared[0] += 2
                last[width] = now
                given[f"a__{width}"].next = word(width)
            cycle[0] += 1
            if cycle[0] == CYCLES:
                raise StopSimulation

        return clock, step

    with fresh_simulator():
        Simulation(program.attach(given), bench()).run(quiet=1)
    return compared[0]


@pytest.mark.parametrize("engine", list(Engine))
def test_values_of_every_width_pass_both_ways_unchanged(engine: Engine, tmp_path: Path) -> None:
    assert drive(built(engine, tmp_path, echo()), seed=11) == 2 * len(WIDTHS) * (CYCLES - 2)


@pytest.mark.parametrize("engine", list(Engine))
def test_a_wrong_bit_of_the_verilog_is_seen(engine: Engine, tmp_path: Path) -> None:
    text = echo().replace("q__33 <= a__33;", "q__33 <= a__33 ^ 33'h100000000;")
    program = built(engine, tmp_path, text)
    with pytest.raises(AssertionError, match="33"):
        drive(program, seed=12)


def test_verilog_that_finishes_by_itself_ends_the_simulation_with_an_error(tmp_path: Path) -> None:
    program = built(Engine.VERILATOR, tmp_path, echo("always @(posedge clk) if (a__2 == 3) $finish;"))
    with pytest.raises(CosimulationError, match="Premature"):
        drive(program, seed=13)


def test_a_signal_that_is_missing_or_of_another_width_is_named(tmp_path: Path) -> None:
    program = CosimulationProgram(("none",), tmp_path, tuple(declared()))
    given = signals()
    given["a__9"] = Signal(intbv(0)[8:])
    del given["n65"]
    problems = "port a__9 of 9 bits has a signal of 8 bits; port n65 of 65 bits has no signal"
    with pytest.raises(ToolError, match=problems):
        program.attach(given)


def test_ports_of_too_many_bits_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="wide has 20000 bits of input ports"):
        build_cosimulation(Engine.VERILATOR, "wide", [PortDecl("x", 20000, Direction.IN)], [], tmp_path)


def test_on_one_core_a_child_is_there_too_and_afterwards_all_are_allowed_again() -> None:
    before = os.sched_getaffinity(0)
    script = "import os; print(len(os.sched_getaffinity(0)))"
    with one_core():
        cores = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout
    assert cores == "1\n"
    assert os.sched_getaffinity(0) == before
