"""The records by which a host loads and dumps state: the one place that says what they look like.

State passes through all circuits of a device that have any, in one chain, as words of `WORD_BITS` bits: records of a
header and the words that it counts.  In the chain bit `HEADER` of a payload marks headers.  A circuit hands on all
records but those that are its own; see docs/state.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from hdl.errors import DagtrainError

# of a word, and of a payload in the chain
WORD_BITS = 64
HEADER = WORD_BITS
CHAIN_BITS = WORD_BITS + 1
# of a header: what it is, from bit 0 on; words behind it, from this bit on
KIND_BITS, COUNT_AT, COUNT_BITS = 8, 32, 32
# of a counter of batches or frames
COUNTER_BITS = 32


class Kind(IntEnum):
    """What a record is for.  All but LOAD and STATE are for every circuit, and are handed on."""

    # a load begins; one word: batches behind it, and above them frames
    START = 1
    # state of the first circuit that wants so many words and has had none since START
    LOAD = 2
    # one word: that many batches more are trained, before anything else is done
    RUN = 3
    # when those batches are trained: every circuit sends its state, and then hands this on
    DUMP = 4
    # state that was dumped; the words of a LOAD
    STATE = 5


class StateError(DagtrainError):
    """Words that are no records, or records of another design."""


@dataclass(frozen=True)
class Record:
    """A header and its words."""

    kind: Kind
    words: tuple[int, ...] = ()

    @property
    def chain(self) -> list[int]:
        """Payloads in the chain."""
        return [1 << HEADER | header(self.kind, len(self.words)), *self.words]


def header(kind: Kind, count: int) -> int:
    """The word in front of ``count`` others."""
    return kind | count << COUNT_AT


def start(batches: int, batch: int) -> Record:
    """The record behind so many batches of ``batch`` frames."""
    mask = (1 << COUNTER_BITS) - 1
    return Record(Kind.START, (batches & mask | (batches * batch & mask) << COUNTER_BITS,))


def chain_of(records: Iterable[Record]) -> list[int]:
    """Payloads of records in the chain."""
    return [payload for record in records for payload in record.chain]


def words_of(records: Iterable[Record]) -> list[int]:
    """Words of records as the host sends them."""
    mask = (1 << WORD_BITS) - 1
    return [payload & mask for payload in chain_of(records)]


def records_of(words: Sequence[int]) -> Iterator[Record]:
    """The records of whole words.  Raises `StateError` where these are none."""
    at = 0
    while at < len(words):
        kind, count = words[at] & ((1 << KIND_BITS) - 1), words[at] >> COUNT_AT
        known = kind in set(Kind) and words[at] == header(Kind(kind), count)
        if not known or at + 1 + count > len(words):
            what = f"word {at} of {len(words)}, {words[at]:#018x}, is no header of a record that is all there"
            raise StateError(f"a stream of state is damaged: {what}", "load the state again")
        yield Record(Kind(kind), tuple(words[at + 1 : at + 1 + count]))
        at += 1 + count
