"""Origins of bits: found for whole signals, they say what following each bit alone says."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from myhdl import ConcatSignal, Signal, always, always_comb, block, intbv

from hdl.analysis.dataflow import Node
from hdl.analysis.equal_bits import EqualBits
from hdl.analysis.expressions import Visitor
from hdl.analysis.gates import ONE, ZERO
from hdl.analysis.liveness import trace
from hdl.memory import unsimulated
from hdl.signals import ClockReset
from hdl.stream import Stream
from tests.test_layer_conformance import LAYERS


@block
def delays(clk: Any, x: Any, table_place: Any, y: Any) -> Any:
    """Copies of ``x`` by every way that moves bits, some with other first values; a ring; a register of a table."""
    same, other = Signal(intbv(0)[8:]), Signal(intbv(5)[8:])
    twice, shifted, swapped = Signal(intbv(0)[8:]), Signal(intbv(0)[12:]), Signal(intbv(0)[8:])
    wide = Signal(intbv(0, min=-(1 << 11), max=1 << 11))
    halves, twins = Signal(intbv(0)[8:]), Signal(intbv(0)[8:])
    ring = Signal(intbv(1)[4:])
    looked_up = Signal(intbv(0)[8:])
    together = ConcatSignal(same(4, 0), twice(8, 4))
    table = (0x11, 0x13, 0x15, 0x17)

    @always(clk.posedge)
    def steps() -> None:
        same.next = x
        other.next = x
        twice.next = same
        shifted.next = x << 4
        wide.next = x.signed()
        halves.next[4:] = same[4:]
        halves.next[8:4] = x[8:4]
        low = intbv(0)[4:]
        low[:] = x[4:]
        twins.next[4:] = low
        twins.next[8:4] = low
        swapped.next = together
        ring.next[4:1] = ring[3:]
        ring.next[0] = ring[3]
        looked_up.next = table[table_place]

    @always_comb
    def out() -> None:
        y.next = same ^ other ^ twice ^ shifted[12:4] ^ wide[12:4] ^ halves ^ twins ^ swapped ^ ring ^ looked_up

    return steps, out


def partition(places: dict[Any, Any]) -> set[frozenset[Any]]:
    """The keys that have equal values together; those of bits that never change under their names."""
    found = defaultdict(set)
    for key, value in places.items():
        found[value].add(key)
    return {frozenset(keys | ({value[0]} if value[0] in (ZERO, ONE) else set())) for value, keys in found.items()}


def by_words_and_by_bits(circuit: Any) -> tuple[set[frozenset[Any]], set[frozenset[Any]], int]:
    """Bits of all signals of a circuit that are equal, found both ways, and signals found as words."""
    stores: list[Node] = list(trace(circuit, Visitor())._stores.values())
    words, bits = EqualBits(), EqualBits()
    by_words: dict[tuple[int, int], tuple[int, int]] = {}
    for number, store in enumerate(stores):
        for low, run in words.origins(store, (1 << store.amount) - 1):
            for bit in range(run.width):
                one = run.part(bit, 1)
                by_words[number, low + bit] = one.gate, one.offset
    by_bits = {
        (number, bit): bits._origin(store, bit) for number, store in enumerate(stores) for bit in range(store.amount)
    }
    assert by_words.keys() == by_bits.keys()
    return partition(by_words), partition(by_bits), sum(word is not None for word in words._words.values())


def test_delays_of_one_signal_are_equal_by_words_as_by_bits() -> None:
    ports = Signal(bool(0)), Signal(intbv(0)[8:]), Signal(intbv(0)[2:]), Signal(intbv(0)[8:])
    by_words, by_bits, words = by_words_and_by_bits(delays(*ports))
    assert by_words == by_bits
    assert any(len(group) > 3 for group in by_words), "nothing is equal, so nothing was tested"
    assert words > 5


@pytest.mark.parametrize("name", ["Conv-0", "ConvGradient-0", "OnlineNormBackward-0", "Update-0", "MaxPool-0"])
def test_bits_of_layers_are_equal_by_words_as_by_bits(name: str) -> None:
    layer = LAYERS[name]
    streams = {port.name: Stream(port.payload_bits) for port in (*layer.sinks, *layer.sources, *layer.beside)}
    with unsimulated():
        circuit = layer.circuit(ClockReset(), streams)
    by_words, by_bits, words = by_words_and_by_bits(circuit)
    assert by_words == by_bits
    assert any(len(group) > 1 for group in by_words)
    assert words > 5
