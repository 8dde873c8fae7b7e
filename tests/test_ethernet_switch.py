"""The switch in C++ does what the switch in Python does: the same frames, bits and cycles for the same seed."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dagtrain.cosim.network import HEADER
from hdl.convert.tools import run_tool
from hdl.simulate import verilator
from hdl.simulate.models import ethernet
from hdl.simulate.models.ethernet import EthernetSwitch, Faults

FRAMES = 1500
FAULTS = Faults(loss=0.1, duplicate=0.2, reorder=0.2, corrupt=0.2, down=((1, 2000, 4000), (2, 3000, 3500)))
# what a count is called, in the order in which the program prints them
COUNTED = ("in", "lost", "doubled", "reordered", "corrupted", "down", "out")
# cycle, port, frame
Passed = tuple[int, int, bytes]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("switch") / "switch"
    include = Path(ethernet.__file__).parent.parent
    source = Path(__file__).with_name("ethernet_switch.cpp")
    run_tool(["g++", *STANDARD, "-Wall", "-Wextra", f"-I{include}", source, "-o", built])
    return built


# of what benches are compiled as, which then says nothing of what a later one has
STANDARD = (next(flag for flag in verilator._COMPILE if flag.startswith("-std=")), "-Wpedantic", "-Werror")
# what the bench's side needs of Verilator
VERILATED = """#include <cstdint>
using CData = uint8_t;
struct VerilatedContext { const char* commandArgsPlusMatch(const char*) { return ""; } };
"""


def test_the_bench_s_side_is_of_the_standard_that_benches_are_compiled_as(tmp_path: Path) -> None:
    source = tmp_path / "network.cpp"
    source.write_text(f'{VERILATED}#include "{ethernet.__file__[:-3]}.h"\n#include "{HEADER}"\nint main() {{}}\n')
    run_tool(["g++", *STANDARD, "-fsyntax-only", source])


def in_python(switch: EthernetSwitch, entering: list[Passed]) -> tuple[list[Passed], dict[tuple[int, int], Any]]:
    found, now = [], 0

    def leave() -> None:
        found.extend((now, port, frame) for port, frame in switch.leave(now))

    for cycle, port, frame in entering:
        while now < cycle:
            leave()
            now += 1
        switch.enter(port, frame, now)
    while not switch.idle:
        leave()
        now += 1
    return found, switch.counts


def in_cpp(program: Path, switch: EthernetSwitch, entering: list[Passed], folder: Path) -> Any:
    (folder / "switch.txt").write_text(switch.text)
    text = "".join(f"{cycle} {port} {frame.hex()}\n" for cycle, port, frame in entering)
    run = subprocess.run([program, folder / "switch.txt"], input=text, capture_output=True, text=True, check=True)
    found, counts = [], {}
    for line in run.stdout.splitlines():
        words = line.split()
        if words[0] == "count":
            source, target, *numbers = map(int, words[1:])
            counts[source, target] = Counter({n: c for n, c in zip(COUNTED, numbers, strict=True) if c})
        else:
            found.append((int(words[0]), int(words[1]), bytes.fromhex(words[2])))
    return found, counts


@pytest.mark.parametrize(
    ("seed", "rate", "latency", "faults"),
    [
        (1, None, 30, FAULTS),
        (2**64 - 1, Fraction(1000, 3), 1, FAULTS),
        (77, Fraction(64), 0, Faults(reorder=1.0, duplicate=1.0)),
        (5, Fraction(512), 200, Faults(loss=0.5, corrupt=1.0)),
    ],
    ids=["no rate", "fraction of a rate", "no latency", "half lost"],
)
def test_both_switches_do_the_same_in_every_cycle(
    program: Path, tmp_path: Path, seed: int, rate: Fraction | None, latency: int, faults: Faults
) -> None:
    rng = random.Random(seed)
    ports = {0x020000000000 + number: number for number in range(4)}
    # the last one is nobody's, so it goes to all
    targets = [*ports, 2**48 - 1]
    entering, cycle = [], 0
    for _ in range(FRAMES):
        cycle += rng.choice((0, 0, 1, 7))
        frame = rng.choice(targets).to_bytes(6, "big") + rng.randbytes(rng.choice((1, 54, 200)))
        entering.append((cycle, rng.randrange(4), frame))

    def switch() -> EthernetSwitch:
        return EthernetSwitch(ports=ports, latency=latency, bits_per_cycle=rate, faults=faults, seed=seed)

    wanted, counts = in_python(switch(), entering)
    found, told = in_cpp(program, switch(), entering, tmp_path)
    assert found == wanted, f"seed {seed}"
    assert told == counts
    happened = sum(counts.values(), Counter())
    for what, share in (("lost", faults.loss), ("corrupted", faults.corrupt), ("reordered", faults.reorder)):
        assert (happened[what] > FRAMES * share / 3) if share else happened[what] == 0
