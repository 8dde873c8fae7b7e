"""What is offered of a node: what would be built, and what of it costs what."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from dagtrain.planning.choices import Choice
from hdl.costs.resources import Resources, Usage, fit
from hdl.layers.base import Layer
from hdl.parts.part import Part
from hdl.tensor import Tile
from placement.problem.instance import Configuration


class Use(Enum):
    """What a circuit of a node is for."""

    ENGINE = "engine"
    # in front of a sink, with the width adapter there
    FIFO = "FIFO"
    # at the end of a stream over the network
    PORT = "port"
    # of a FIFO, a weight memory or a ring that lies in DRAM
    DRAM = "DRAM"


@dataclass(frozen=True)
class Piece:
    """A circuit of a node."""

    use: Use
    contents: Resources
    # the sink, source or ring that it serves; the engine serves none
    port: str = ""
    # bytes a frame for which the memory port is taken
    dram_bytes_per_frame: Fraction = Fraction()
    # of a circuit that several share, what counts here
    share: Fraction = Fraction(1)


@dataclass(frozen=True)
class Offer:
    """A choice for a node and what it costs on any part."""

    choice: Choice
    # as the choice says
    layer: Layer
    pieces: tuple[Piece, ...]
    # bytes of each stream that lie in DRAM
    dram_bytes: tuple[int, ...]
    # of weights; members of a group must agree
    tile: Tile | None
    # share of all frames that it works on
    busy: Fraction = Fraction(1)

    @property
    def cycles_per_frame(self) -> int:
        """Of the engine, of all frames."""
        return math.ceil(self.layer.cycles_per_frame * self.busy)

    @property
    def dram_bytes_per_frame(self) -> int:
        """Bytes a frame for which the memory port is taken."""
        return math.ceil(sum(self.dram_streams))

    @property
    def dram_streams(self) -> list[Fraction]:
        """The same of each stream."""
        return [piece.dram_bytes_per_frame for piece in self.pieces if piece.dram_bytes_per_frame]

    def configuration(self, usage: Usage, channels: bool) -> Configuration:
        """For the placement, of the blocks that it takes of a part.  ``channels``: streams are on channels of their
        device, so that each is told."""
        tile = self.tile
        return Configuration(
            label=self.choice.label,
            cycles_per_frame=self.cycles_per_frame,
            dsp=usage.dsp,
            m20k=usage.m20k,
            alm=usage.alm,
            tile=f"{tile.po}x{tile.pi}x{tile.pk}" if tile else None,
            payload=self.choice.to_payload(),
            dram_bytes_per_frame=self.bytes_told(channels),
            dram_streams=self.streams_told(channels),
        )

    def streams_told(self, channels: bool) -> tuple[int, ...]:
        """Bytes a frame of each stream of DRAM where memory has channels, of which a stream takes one; else none."""
        return tuple(map(math.ceil, self.dram_streams)) if channels else ()

    def bytes_told(self, channels: bool) -> int:
        """Bytes a frame of DRAM, of whole bytes a stream where each goes to a channel."""
        return sum(self.streams_told(channels)) if channels else self.dram_bytes_per_frame

    def usage(self, part: Part) -> Usage:
        """Blocks of a part; DSP blocks are not shared between circuits."""
        return sum((fit(piece.contents, part).scaled(piece.share) for piece in self.pieces), Usage())
