"""Every FIFO of the emitted FPGAs, as the manifests tell: depth, width, what it is kept in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from dagtrain.emission.links import receiver_role
from dagtrain.emission.manifest import Manifest
from dagtrain.emission.memory import store_role
from hdl.costs.resources import in_block_memory
from hdl.parts.catalogue import part
from hdl.streams import QueueKind, queue_kind
from hdl.streams.width import elements_per_word


class Kept(Enum):
    """What holds the words of a FIFO."""

    REGISTERS = "registers"
    LOGIC = "logic memory"
    BLOCKS = "block memory"
    DRAM = "DRAM"


@dataclass(frozen=True, kw_only=True)
class FifoUse:
    """A FIFO of an FPGA."""

    # as the manifest calls it
    name: str
    device: str
    # parts that write and read it
    writer: str
    reader: str
    words: int
    # bits a word
    width: int
    kept: Kept
    # block memories; halves of them where a part has such
    blocks: Fraction = Fraction(0)

    @property
    def bits(self) -> int:
        """All that it holds."""
        return self.words * self.width


def fifos(manifests: Sequence[Manifest]) -> tuple[FifoUse, ...]:
    """Of all FPGAs, the largest first."""
    found = [use for manifest in manifests for use in (*_queues(manifest), *_receivers(manifest), *_outside(manifest))]
    return tuple(sorted(found, key=lambda use: (-use.bits, use.device, use.name)))


def _queues(manifest: Manifest) -> Iterator[FifoUse]:
    """FIFOs in front of consumers, and beside ports to DRAM."""
    readers = {stream.reader: stream for stream in manifest.streams}
    writers = {stream.writer: stream for stream in manifest.streams}
    for copy in manifest.copies:
        if copy.depth:
            before, behind = readers[copy.part], writers[copy.part]
            ends = before.writer, behind.reader
            yield _in_the_fpga(manifest, copy.part, ends, copy.depth, before.payload_bits)


def _receivers(manifest: Manifest) -> Iterator[FifoUse]:
    """FIFOs behind the network port, which hold whole words of it."""
    writers = {stream.writer: stream for stream in manifest.streams}
    for crossing in manifest.ingress:
        name = receiver_role(crossing.edge)
        coded = crossing.coded
        per_word = coded.lanes if coded else elements_per_word(crossing.element_bits, manifest.link_word_bits)
        ends = crossing.source, writers[name].reader
        yield _in_the_fpga(manifest, name, ends, crossing.words, per_word * crossing.element_bits)


def _outside(manifest: Manifest) -> Iterator[FifoUse]:
    """FIFOs in DRAM: regions in which nothing stands before the first frame."""
    for memory in manifest.memory or ():
        for region in memory.regions:
            if region.contents is None:
                yield FifoUse(
                    name=store_role(region.name), device=manifest.device, writer=memory.port, reader=memory.port,
                    words=region.words, width=memory.format.data_bits, kept=Kept.DRAM,
                )  # fmt: skip


def _in_the_fpga(manifest: Manifest, name: str, ends: tuple[str, str], words: int, width: int) -> FifoUse:
    target = part(manifest.part)
    kept, blocks = Kept.REGISTERS, Fraction(0)
    if queue_kind(words) is QueueKind.MEMORY:
        kept = Kept.BLOCKS if in_block_memory(words, width, target) else Kept.LOGIC
        blocks = Fraction(target.m20k_halves(words, width), 2) if kept is Kept.BLOCKS else blocks
    return FifoUse(
        name=name, device=manifest.device, writer=ends[0], reader=ends[1], words=words, width=width, kept=kept,
        blocks=blocks,
    )  # fmt: skip
