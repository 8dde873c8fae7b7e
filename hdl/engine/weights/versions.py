"""The version rule of a layer's weights: which frame reads which version, and when the next one may come.

A memory holds ``slots`` versions.  The next one comes into the place that is read no more, and waits there; of a single
place it takes possession after the last read of the one before, and until all of it is there no frame starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from myhdl import Signal, always, always_comb, block, intbv

from hdl.memory import address_width
from hdl.recipe import Recipe, first_frames
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.streams.counter import counter


@dataclass(frozen=True)
class VersionRule:
    """Which version frames read: the ``first`` ones that of power-up, each ``batch`` after them the next."""

    # of a version
    words: int
    # versions that the memory holds
    slots: int
    batch: int
    # 0: there is no version at power-up
    first: int
    # whether none is there at power-up, and the ``first`` frames read the first one that comes
    loaded: bool = False

    @classmethod
    def of(cls, recipe: Recipe, words: int, slots: int) -> Self:
        """`Recipe.version`, or `hdl.recipe.LoadedRecipe.loaded_version`."""
        first = first_frames(recipe.batch, recipe.staleness, recipe.loaded)
        return cls(words, slots, recipe.batch, first, loaded=recipe.loaded)

    @property
    def depth(self) -> int:
        """Words of the memory."""
        return self.slots * self.words

    @property
    def starts_at(self) -> int:
        """Where the first version that comes begins."""
        return self.words if self.first and self.slots > 1 and not self.loaded else 0


@block
def version_writer(domain: ClockReset, write: Bit, at: Bits, complete: Bit, *, rule: VersionRule) -> Instances:
    """Where the words of the versions that come are put.

    Ports:
        write: in, 1 bit: a word is taken at this edge.
        at: out, `address_width` ``(rule.depth)`` bits, from a register that is ``rule.starts_at`` at power-up: its
            address.
        complete: out, 1 bit, combinational in ``write``: it is the last of its version.
    """
    final = rule.words - 1
    place = Signal(intbv(0)[address_width(rule.words) :])
    places = counter(domain, write, place, count=rule.words)
    addresses = counter(domain, write, at, count=rule.depth, start=rule.starts_at)

    @always_comb
    def judge() -> None:
        complete.next = write and place == final

    return places, addresses, judge


@block
def version_reader(
    domain: ClockReset,
    claim: Bit,
    claimable: Bit,
    advance: Bit,
    frame_last: Bit,
    complete: Bit,
    room: Bit,
    base: Bits,
    *,
    rule: VersionRule,
) -> Instances:
    """What a reader knows of the rule: which place it reads, and whether the oldest place is free for it.

    Ports:
        claim: in, 1 bit, only while ``claimable``: the next frame (in order) starts.
        claimable: out, 1 bit, from registers: the version of the next frame to claim is there.
        advance: in, 1 bit: a word of the frame that is being computed is read.
        frame_last: in, 1 bit, with ``advance``: this is the last read of its frame.
        complete: in, 1 bit: a version has come.
        room: out, 1 bit, from registers: a word of the next version may be written as far as this reader goes.
        base: out, `address_width` ``(rule.depth)`` bits, from a register: the first word of the version it reads.
    """
    batch, words, slots, first_claims, loaded = rule.batch, rule.words, rule.slots, rule.first, rule.loaded
    most_reads = max(batch, first_claims)
    first_reads = first_claims if loaded else most_reads
    first_ahead = 0 if first_claims and not loaded else -1
    # the first version that is loaded is not waited for like later ones: its claims are there
    first_waiting = -1 if loaded else 0
    last_base, last_slot = (slots - 1) * words, slots - 1
    # frames that may still be claimed, and are still to be read, with the version at hand
    to_claim = Signal(intbv(first_claims, min=0, max=most_reads + 1))
    to_read = Signal(intbv(first_reads, min=0, max=most_reads + 1))
    # versions that came and weren't claimed; versions that came less versions switched to
    waiting = Signal(intbv(first_waiting, min=first_waiting, max=slots + 1))
    ahead = Signal(intbv(first_ahead, min=-1, max=slots))
    switch, renew = Signal(bool(0)), Signal(bool(0))

    if loaded:

        @always_comb
        def may_claim() -> None:
            claimable.next = (to_claim != 0 and waiting >= 0) or waiting > 0
            renew.next = claim and to_claim == 0
            switch.next = advance and frame_last and to_read == 1
            room.next = ahead < last_slot

    else:

        @always_comb
        def decide() -> None:
            claimable.next = to_claim != 0 or waiting != 0
            renew.next = claim and to_claim == 0
            switch.next = advance and frame_last and to_read == 1
            room.next = ahead < last_slot

    @always(domain.clk.posedge)
    def versions() -> None:
        if complete and not renew:
            waiting.next = waiting + 1
        elif renew and not complete:
            waiting.next = waiting - 1
        if complete and not switch:
            ahead.next = ahead + 1
        elif switch and not complete:
            ahead.next = ahead - 1
        if domain.rst:
            waiting.next = first_waiting
            ahead.next = first_ahead

    @always(domain.clk.posedge)
    def frames() -> None:
        if renew:
            to_claim.next = batch - 1
        elif claim:
            to_claim.next = to_claim - 1
        if switch:
            to_read.next = batch
            if base == last_base:
                base.next = 0
            else:
                base.next = base + words
        elif advance and frame_last:
            to_read.next = to_read - 1
        if domain.rst:
            to_claim.next = first_claims
            to_read.next = first_reads
            base.next = 0

    return (may_claim if loaded else decide), versions, frames
