"""What an Ethernet port costs: logic, memory and clock of its units.

python benchmarks/network_ports.py             # of all widths
python benchmarks/network_ports.py 64 256      # of these
python benchmarks/network_ports.py --estimate  # without synthesis and timing, which take Yosys a quarter of an hour

Logic and memory are counted off the elaborated circuits and, beside that, synthesised by Yosys for the fabric of a
10AX115; clocks are those of `dagtrain timing`.  What Yosys made of a circuit is kept.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.timing import MODULE, circuit_text
from hdl.cache import cache_folder
from hdl.convert.verilog import VerilogModule
from hdl.costs.estimate import elaborated_contents
from hdl.costs.resources import fit
from hdl.costs.synthesis import synthesise
from hdl.costs.timing import NET_PS, time_module
from hdl.link.ethernet.crc import Crc32c
from hdl.link.ethernet.frame import BURST_WORDS, WORD_BITS, FrameFormat
from hdl.link.ethernet.packer import Packer
from hdl.link.ethernet.port import EthernetPort
from hdl.link.format import LinkFormat
from hdl.link.routing import BurstStage, Merge
from hdl.parts.catalogue import part
from hdl.unit import Unit

PART = "10AX115"
# bits of a beat → the link that it is for, at 200 MHz
LINKS = {64: "10G", 128: "25G", 256: "40G", 512: "100G"}
# Yosys takes so long for a port at most
SYNTHESIS_S = 3600.0
# what the table is of: a port of 40 streams to three peers, round trips of 10 µs and frames of 9 000 bytes
STREAMS, PEERS, MTU, ROUND_TRIP_CYCLES = 40, 3, 9000, 2000


def port_units(word_bits: int) -> Iterator[tuple[str, Unit]]:
    """The dearest units of a port, what each stream has of it beside its ends, and the port as a whole."""
    frames = FrameFormat(word_bits=word_bits, mtu=MTU)
    form = LinkFormat(word_bits=word_bits, streams=STREAMS, devices=PEERS + 1)
    regions = (max(2 * frames.payload_beats, ROUND_TRIP_CYCLES // PEERS),) * PEERS
    words = Packer(frames=frames, form=form, regions=regions)
    yield "Packer", words
    yield "Crc32c", Crc32c(word_bits=word_bits)
    yield "BurstStage", BurstStage(format=form, words=BURST_WORDS)
    yield "Merge", Merge(format=form, longest=BURST_WORDS)
    yield "EthernetPort", EthernetPort(packer=words)
    # any key: it is an input
    yield "EthernetPort, with a key", EthernetPort(packer=replace(words, frames=replace(frames, key=0)))


def ports(widths: Sequence[int], estimated: bool) -> Iterator[str]:
    """The table, line by line; without what Yosys is needed for where it is ``estimated``."""
    device = part(PART)
    yield "| bits | for | unit | ALM | of the device | synthesised | registers | M20K | ns |"
    yield "|" + " --- |" * 9
    for word_bits in widths:
        for name, unit in port_units(word_bits):
            usage = fit(elaborated_contents(unit.streams, unit.build), device)
            cells, nanoseconds = "", ""
            if not estimated:
                text = circuit_text(unit.streams, unit.build)
                cells = f"{synthesise(VerilogModule(MODULE, text, (), {}), SYNTHESIS_S).alm:,}"
                timing = time_module(text, MODULE, NET_PS, cache_folder() / "timing")
                nanoseconds = f"{timing.worst.ps / 1000:.2f}"
            yield (
                f"| {word_bits} | {LINKS[word_bits]} | `{name}` | {usage.alm:,} | {usage.alm / device.alm:.2%} | "
                f"{cells} | {usage.registers:,} | {usage.m20k} | {nanoseconds} |"
            )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("widths", nargs="*", type=int, metavar="BITS", help=f"of {', '.join(map(str, WORD_BITS))}")
    parser.add_argument("--estimate", action="store_true", help="without synthesis: seconds")
    options = parser.parse_args()
    widths = options.widths
    if unknown := set(widths) - set(WORD_BITS):
        parser.error(f"no beats of {', '.join(map(str, sorted(unknown)))} bits; there are {WORD_BITS}")
    for line in ports(widths or WORD_BITS, options.estimate):
        print(line, flush=True)


if __name__ == "__main__":
    main()
