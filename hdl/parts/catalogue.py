"""All parts by name."""

from __future__ import annotations

from collections.abc import Mapping

from hdl.errors import DagtrainError
from hdl.parts.intel import INTEL
from hdl.parts.part import Part
from hdl.parts.xilinx import XILINX

PARTS: Mapping[str, Part] = {part.name: part for part in (*INTEL, *XILINX)}


# of whose parts a graph is folded for, where nobody says
DEFAULT_PARTS = (PARTS["10AX115"],)


def part(name: str) -> Part:
    """The part of that name.

    Raises:
        DagtrainError: no such part; the message lists those known.
    """
    if name not in PARTS:
        raise DagtrainError(f"unknown part {name!r}", f"known parts: {', '.join(PARTS)}")
    return PARTS[name]
