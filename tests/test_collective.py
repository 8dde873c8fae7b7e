"""Exchange of coded gradients: the golden models beside copies that send each other messages, as Algorithm 1 says."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hdl.engine.codec.collective import AllReduce, Collective, Noise
from hdl.engine.codec.integer_codec import Cut, IntegerCodec, with_feedback
from hdl.fixed import IntArray

CODECS = {
    "paper's": IntegerCodec(5),
    "nearest": IntegerCodec(5, cut=Cut.NEAREST),
    "stochastic": IntegerCodec(7, cut=Cut.STOCHASTIC),
}
BATCHES = 4


def drawn(copies: int, elements: int) -> tuple[list[list[IntArray]], IntArray]:
    """Gradients by batch and copy, with extremes among them, and random bits by batch, copy and element."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    draw = np.random.default_rng(seed)
    spread = np.exp2(draw.uniform(0, 15, (BATCHES, copies, elements)))
    gradients = np.clip(np.rint(draw.normal(size=spread.shape) * spread), -(1 << 15), (1 << 15) - 1).astype(np.int64)
    gradients[0, :, :1] = 0
    gradients[1, :, :1], gradients[2, :, :1] = (1 << 15) - 1, -(1 << 15)
    noise = draw.integers(0, 1 << 16, (BATCHES, copies, elements))
    return [list(batch) for batch in gradients], noise


def noise_of(random16: IntArray) -> Noise:
    """Of bits by copy and element."""

    def noise(copy: int, first: int, end: int) -> IntArray:
        return random16[copy, first:end]

    return noise


class Copy:
    """One of those that exchange: it knows its own gradient and what it is sent, and nothing else."""

    def __init__(self, number: int, copies: int, elements: int, codec: IntegerCodec, feedback: bool) -> None:
        self.number, self.copies, self.codec, self.feedback = number, copies, codec, feedback
        self.residual = np.zeros(elements, np.int64)
        self.gradient = np.zeros(elements, np.int64)

    def block(self, number: int) -> slice:
        """Of the paper's equal blocks, with what is left over spread."""
        size = self.gradient.size
        return slice(size * number // self.copies, size * (number + 1) // self.copies)

    def begin(self, gradient: IntArray, noise: IntArray) -> None:
        self.gradient, self.noise = gradient.copy(), noise

    def send(self, number: int) -> tuple[IntArray, IntArray]:
        """A code of a block, which replaces what the copy itself has of it."""
        at = self.block(number)
        tags, codes, left = with_feedback(self.codec, self.gradient[at], self.residual[at], self.noise[at])
        if self.feedback:
            self.residual[at] = left
        self.gradient[at] = self.codec.decode(tags, codes)
        return tags, codes

    def pass_on(self, number: int) -> tuple[IntArray, IntArray]:
        """A code of what is a decoded form already."""
        return self.codec.encode(self.gradient[self.block(number)], np.zeros_like(self.noise[self.block(number)]))

    def add(self, number: int, message: tuple[IntArray, IntArray]) -> None:
        at = self.block(number)
        self.gradient[at] = np.clip(self.gradient[at] + self.codec.decode(*message), -(1 << 15), (1 << 15) - 1)

    def take(self, number: int, message: tuple[IntArray, IntArray]) -> None:
        self.gradient[self.block(number)] = self.codec.decode(*message)


def round_a_ring(ring: list[Copy]) -> None:
    """Algorithm 1: N - 1 steps that reduce, N - 1 that spread; in each step all copies send to the next."""
    count = len(ring)
    for step in range(count - 1):
        sent = [copy.send((copy.number - step) % count) for copy in ring]
        for copy in ring:
            number = (copy.number - 1 - step) % count
            copy.add(number, sent[copy.number - 1])
    # each owner has the whole of the block behind its own, and takes the decoded form of it before it sends it
    sent = [copy.send((copy.number + 1) % count) for copy in ring]
    for step in range(count - 1):
        for copy in ring:
            copy.take((copy.number - step) % count, sent[copy.number - 1])
        sent = [copy.pass_on((copy.number - step) % count) for copy in ring]


@pytest.mark.parametrize("feedback", [False, True], ids=["as it is", "with feedback"])
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize(("copies", "elements"), [(2, 40), (3, 40), (5, 64), (4, 3)])
def test_a_ring_is_what_copies_make_that_send_each_other_blocks(
    copies: int, elements: int, codec: IntegerCodec, feedback: bool
) -> None:
    gradients, noise = drawn(copies, elements)
    ring = [Copy(number, copies, elements, codec, feedback) for number in range(copies)]
    exchange = AllReduce(Collective.RING, codec, feedback)
    for batch, random16 in zip(gradients, noise, strict=True):
        for copy, gradient, bits in zip(ring, batch, random16, strict=True):
            copy.begin(gradient, bits)
        round_a_ring(ring)
        made = exchange.run(batch, noise_of(random16))
        for copy in ring:
            assert np.array_equal(copy.gradient, made), f"copy {copy.number} of {copies} has drifted apart"
        if feedback:
            for copy, residual in zip(ring, exchange.residuals, strict=True):
                assert np.array_equal(copy.residual, residual)


@pytest.mark.parametrize("collective", Collective)
def test_without_a_codec_all_give_the_sum(collective: Collective) -> None:
    gradients = [gradient // 8 for gradient in drawn(5, 33)[0][3]]
    exchange = AllReduce(collective)
    assert np.array_equal(exchange.run(gradients), np.sum(gradients, axis=0))
    assert exchange.ratio == 1.0


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("collective", Collective)
def test_what_all_decode_is_off_by_a_bound_a_copy_and_feedback_makes_up_for_it(
    collective: Collective, codec: IntegerCodec
) -> None:
    copies, batches = 4, 50
    # the same gradient in each batch, of sums that stay in the format
    gradients = [gradient // 32 for gradient in drawn(copies, 64)[0][3]]
    wanted = np.sum(gradients, axis=0)
    draw = np.random.default_rng(5)

    def noise(copy: int, first: int, end: int) -> IntArray:
        del copy
        return draw.integers(0, 1 << 16, end - first)

    for feedback in (False, True):
        exchange, total = AllReduce(collective, codec, feedback), np.zeros(64, np.int64)
        for _ in range(batches):
            made = exchange.run(gradients, noise)
            assert np.abs(made - wanted).max() <= (1 + feedback) * copies * codec.worst_error
            total += made
        if feedback:
            assert np.abs(total - batches * wanted).max() <= copies * codec.worst_error
            assert np.array_equal(total + np.sum(exchange.residuals, axis=0), batches * wanted)
        elif codec.cut is Cut.TRUNCATE:
            assert np.abs(total - batches * wanted).max() > copies * codec.worst_error


def test_what_is_added_in_one_place_is_what_each_copy_codes_of_its_own() -> None:
    codec = IntegerCodec(5)
    gradients = [gradient // 32 for gradient in drawn(4, 64)[0][3]]
    made = AllReduce(Collective.CENTRAL, codec).run(gradients)
    assert np.array_equal(made, np.sum([codec.decode(*codec.encode(gradient)) for gradient in gradients], axis=0))


def test_a_chain_codes_the_sum_that_each_copy_hands_on() -> None:
    codec = IntegerCodec(5, cut=Cut.NEAREST)
    gradients = [gradient // 32 for gradient in drawn(4, 64)[0][3]]
    total = np.zeros(64, np.int64)
    for gradient in gradients:
        total = codec.decode(*codec.encode(total + gradient))
    assert np.array_equal(AllReduce(Collective.CHAIN, codec).run(gradients), total)


def test_bits_that_are_sent_are_counted() -> None:
    # one of each tag from each of two copies
    gradients = [np.array([0, 1 << 8, 1 << 14], np.int64)] * 2
    exchange = AllReduce(Collective.CENTRAL, IntegerCodec(5))
    exchange.run(gradients)
    assert (exchange.sent_elements, exchange.sent_bits) == (6, 2 * (2 + 10 + 18))
    assert exchange.ratio == 6 * 16 / 60


def test_gradients_of_unlike_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"gradients of one shape are exchanged, not of \[\(2,\), \(3,\)\]"):
        AllReduce(Collective.RING).run([np.zeros(2, np.int64), np.zeros(3, np.int64)])


def test_a_codec_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^a codec of 12 bits can't code sums of 16; take one width$"):
        AllReduce(Collective.CHAIN, IntegerCodec(2, width=12))
