"""What a stream between two FPGAs takes of them: its ends, and its parts of the trees and chains of their ports.

    python -m benchmarks.crossings                 # of a 10AX115; --part AGFB014
    python -m benchmarks.crossings --word-bits 64 512

Counted off the elaborated circuits, of a stream of bytes, four a cycle, whose receiver holds as many words as receivers
do at least.  "alone" is a stream that has a merge of two, for words and credits alike, and a split of its own, in place
of parts of those that are shared.  The second table is all of the receiving end where words wait in a FIFO of each
stream, or in one memory of all of a device (`[network] receivers = "pool"`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent.parent))

from dagtrain.emission.links import LEAST_LINK_WORDS, Share, port_share
from dagtrain.emission.modules import Builder
from dagtrain.planning.link_costs import shares
from hdl.costs.estimate import elaborated_contents
from hdl.costs.resources import Usage, fit
from hdl.link.egress import Egress
from hdl.link.format import LinkFormat
from hdl.link.ingress import Ingress
from hdl.link.routing import Merge, Split
from hdl.parts.catalogue import PARTS
from hdl.parts.part import Part
from hdl.unit import Unit

STREAMS, DEVICES = 1024, 11
ELEMENT_BITS, LANES, ELEMENTS = 8, 4, 4096
# streams that share a memory in the second table, and words of each
RECEIVED, DEPTHS = 40, (32, 64, 128, 512)


def form_of(word_bits: int) -> LinkFormat:
    """Words of a cluster of eleven."""
    return LinkFormat(word_bits=word_bits, streams=STREAMS, devices=DEVICES)


def ends(form: LinkFormat) -> tuple[Egress, Ingress]:
    """Of a stream."""
    shape: dict[str, Any] = {"element_bits": ELEMENT_BITS, "lanes": LANES, "elements": ELEMENTS}
    sender = Egress(format=form, **shape, credits=LEAST_LINK_WORDS)
    return sender, Ingress(format=form, **shape, depth=LEAST_LINK_WORDS)


def alm(found: Sequence[Share], part: Part) -> int:
    """Of parts of units."""
    return sum((usage(unit.streams, unit.build, part).scaled(share) for unit, share in found), Usage()).alm


def usage(widths: Mapping[str, int], build: Builder, part: Part) -> Usage:
    """Of a circuit between streams of these widths."""
    return fit(elaborated_contents(dict(widths), build), part)


def whole(*units: Unit) -> list[Share]:
    """Units that a stream has alone."""
    return [(unit, Fraction(1)) for unit in units]


def crossings(widths: Sequence[int], part: Part) -> Iterator[str]:
    """The first table, line by line."""
    yield "| bits of a word | end | its own | part of the port | in all | alone |"
    yield "|---|---|---|---|---|---|"
    for word_bits in widths:
        form = form_of(word_bits)
        apart = whole(Split(format=form, taps=1), Merge(format=form, sides=2))
        for end, sends in zip(ends(form), (True, False), strict=True):
            own, shared = alm(whole(end), part), alm(port_share(form, framed=False, sends=sends), part)
            name = "sender" if sends else "receiver"
            yield f"| {word_bits} | {name} | {own:,} | {shared:,} | **{own + shared:,}** | {own + alm(apart, part):,} |"


def memories(word_bits: int, part: Part) -> Iterator[str]:
    """The second table, line by line."""
    yield f"| words of a receiver | held in | ALMs | M20Ks | of the part for {RECEIVED} |"
    yield "|---|---|---|---|---|"
    for depth in DEPTHS:
        for held, pooled in (("a FIFO", False), ("one memory", True)):
            form = LinkFormat(word_bits=word_bits, streams=STREAMS, devices=DEVICES, pooled=pooled)
            end = Ingress(
                format=form, element_bits=ELEMENT_BITS, lanes=LANES, elements=ELEMENTS, depth=depth, pooled=pooled
            )
            found = [
                (usage(unit.streams, unit.build, part), part_of)
                for unit, part_of in shares(end, form=form, framed=False, sends=False)
            ]
            alms = sum(each.alm * share for each, share in found)
            blocks = sum(each.m20k * share for each, share in found)
            parts = (float(RECEIVED * alms / part.alm), float(RECEIVED * blocks / part.m20k))
            yield f"| {depth} | {held} | {float(alms):,.0f} | {float(blocks):.1f} | {parts[0]:.1%} and {parts[1]:.1%} |"


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=sorted(PARTS), default="10AX115")
    parser.add_argument("--word-bits", type=int, nargs="+", default=[64, 128, 256, 512])
    options = parser.parse_args()
    part = PARTS[options.part]
    print(f"ALMs of a {part.name}:\n", *crossings(options.word_bits, part), sep="\n")
    widest = max(options.word_bits)
    print(f"\nWords of {widest} bits that wait at a receiver:\n", *memories(widest, part), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
