"""What a stream to DRAM costs by the width of its words, and how well bursts of a length use the memory.

python -m benchmarks.dram              # prices, estimated, and bursts in simulation
python -m benchmarks.dram --yosys      # the same prices beside synthesis by Yosys, minutes

Prices are ALMs on Agilex of a stream of 16 bits on a port of 512 or 256 bits: its unit, its place in the tree of
arbiters, and, where it is narrower than the port, its share of a group of sixteen that a widener serves.
Bursts are measured on the memory of the co-simulation (`hdl.simulate.models.dram`): two FIFOs that move as much as
they can through a memory of a word a cycle.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from myhdl import Signal, block, intbv

from dagtrain.emission.memory import GROUP_UNITS
from dagtrain.emission.stored import NARROW_BURST, NARROW_BURST_BYTES, DramUse
from hdl.convert.netlist import Direction
from hdl.convert.verilog import convert
from hdl.costs.estimate import Estimator
from hdl.costs.resources import fit
from hdl.costs.synthesis import synthesise
from hdl.dram.axi import Axi, AxiFormat, AxiMerge, axi_merge
from hdl.dram.store import DramFifo, dram_store
from hdl.dram.widen import AxiWiden
from hdl.parts.catalogue import part
from hdl.signals import ClockReset
from hdl.simulate import Backend, Design, StreamPort, run_streams
from hdl.simulate.models.dram import dram_model
from hdl.stream import Stream
from hdl.unit import Unit

# the map of an inverted residual block of MobileNetV2, and bytes of a board's memory
ELEMENTS, MEMORY_BYTES = 56 * 56 * 24, 8 * 10**9
PORTS, WIDTHS = (512, 256), (512, 256, 128, 64)
BURSTS = (2, 4, 8, 16, 32)


class Prices:
    """ALMs of units, as estimated or as Yosys has them."""

    def __init__(self, yosys: bool) -> None:
        self.yosys, self.estimator, self.part = yosys, Estimator(), part("AGFB014")
        self._synthesised: dict[str, float] = {}

    def of(self, unit: Unit) -> tuple[float, float]:
        """(estimate, Yosys or 0)."""
        estimate = fit(self.estimator.block(repr(unit), dict(unit.streams), unit.build), self.part).alm
        if self.yosys and repr(unit) not in self._synthesised:
            streams = {name: Stream(width) for name, width in unit.streams.items()}
            self._synthesised[repr(unit)] = synthesise(convert(unit.build(ClockReset(), streams), "unit")).alm
        return estimate, self._synthesised.get(repr(unit), 0.0)

    def arbiter(self, form: AxiFormat) -> tuple[float, float]:
        """A place in a tree of arbiters, a third of which cut their paths."""
        whole, cut = (self.of(AxiMerge(format=form, cut=cut)) for cut in (False, True))
        return whole[0] + (cut[0] - whole[0]) / 3, whole[1] + (cut[1] - whole[1]) / 3

    def row(self, port: AxiFormat, bits: int) -> str:
        """The price of a stream with words of so many bits."""
        form = port.narrowed(bits)
        use = DramUse(format=port, unit_bits=0 if form == port else bits)
        burst = use.burst if form == port else max(NARROW_BURST, NARROW_BURST_BYTES * 8 // bits)
        unit = DramFifo(
            format=form, element_bits=16, x_lanes=2, y_lanes=2, elements=ELEMENTS, burst=burst, prefetch=2 * burst,
            capacity=30,
        )  # fmt: skip
        parts = [self.of(unit), self.arbiter(form)]
        if form != port:
            widen = self.of(AxiWiden(narrow=form, wide=port, burst=use.group_burst(form)))
            wide = self.arbiter(port)
            parts.append(((widen[0] + wide[0]) / GROUP_UNITS, (widen[1] + wide[1]) / GROUP_UNITS))
        else:
            parts.append((0.0, 0.0))
        cells = [f"{estimate:,.0f}" + (f" / {made:,.0f}" if self.yosys else "") for estimate, made in parts]
        total, made = (sum(pair[at] for pair in parts) for at in (0, 1))
        whole = f"**{total:,.0f}**" + (f" / {made:,.0f}" if self.yosys else "")
        return f"| {port.data_bits} | {bits} | {burst * bits // 8} | {' | '.join(cells)} | {whole} |"


@block
def two_fifos(
    domain: ClockReset, base0: Any, base1: Any, a: Stream, b: Stream, p: Stream, q: Stream,
    unit: DramFifo, contents: Sequence[int] | None,
) -> Any:  # fmt: skip
    """Two stores on a memory of a word a cycle."""
    ports = [Axi(unit.format) for _ in range(3)]
    flags = [Signal(bool(0)) for _ in range(2)]
    sides = ((base0, a, p), (base1, b, q))
    stores = [dram_store(domain, *sides[i], ports[i], flags[i], unit=unit) for i in range(2)]
    merge = axi_merge(domain, *ports, form=unit.format, cut=False)
    model = dram_model(domain, ports[2], form=unit.format, depth=4096, latency=40, contents=contents)
    return stores, merge, model


def used(burst: int, tensors: int = 6) -> float:
    """Words a cycle through a memory that could move one, reads and writes together."""
    form = AxiFormat(data_bits=64, address_bits=12)
    unit = DramFifo(
        format=form, element_bits=64, x_lanes=1, y_lanes=1, elements=256, burst=burst, prefetch=128, capacity=4
    )

    def factory(images: Mapping[str, Sequence[int]]) -> Any:
        bases = [Signal(intbv(0)[form.address_bits :]) for _ in range(2)]
        return two_fifos(ClockReset(), *bases, *(Stream(64) for _ in range(4)), unit, images.get("dram"))

    ports = [StreamPort(n, 64, Direction.IN) for n in "ab"] + [StreamPort(n, 64, Direction.OUT) for n in "pq"]
    constants = {"base0": 0, "base1": 2048}
    design = Design("two_fifos", factory, tuple(ports), images={"dram": [0] * 4096}, constants=constants)
    words = list(range(tensors * unit.elements))
    run = run_streams(Backend.MYHDL, design, {"a": words, "b": words}, {"p": len(words), "q": len(words)}, seed=1)
    assert run.outputs["p"] == run.outputs["q"] == words
    return 4 * len(words) / run.cycles


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--yosys", action="store_true", help="synthesise too, minutes")
    prices = Prices(parser.parse_args().yosys)
    print("| port, bits | words, bits | burst, bytes | unit | arbiters | share of a group | ALMs a stream |")
    print("|" + " --- |" * 7, flush=True)
    for bits in PORTS:
        port = AxiFormat(data_bits=bits, address_bits=(MEMORY_BYTES * 8 // bits - 1).bit_length())
        for width in WIDTHS:
            if width <= bits:
                print(prices.row(port, width), flush=True)
    print("\n| words a burst | share of the memory's cycles with a word |\n| --- | --- |")
    for burst in BURSTS:
        print(f"| {burst} | {used(burst):.0%} |", flush=True)


if __name__ == "__main__":
    main()
