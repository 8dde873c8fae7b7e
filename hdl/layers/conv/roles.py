"""The three roles of a convolution's engines: forward, error, gradient.  See `hdl.layers.conv.engine`.

The forward engine and the error engine sum products of a stored map with weights: every frame sees the version that
the recipe says.  The gradient engine sums products of two maps over a batch.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from hdl.engine.arithmetic.mac import operand_bits, tree_levels
from hdl.engine.weights.records import WORD_BITS
from hdl.engine.window.gradient import FLUSH, GradientShape
from hdl.engine.window.strips import PLACE_FREE, WEIGHT_LATENCY, gradient_strips, made_cycles, result_strips
from hdl.errors import FoldingError, ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray, requantise
from hdl.layers.beats import pack, unpack
from hdl.layers.conv.engine import PIPELINE, WindowEngine
from hdl.layers.conv.narrow import Correlation, is_narrow
from hdl.layers.conv.versions import Versions, by_version
from hdl.layers.meaning import State, Tape
from hdl.layers.shape import RowPart
from hdl.layers.storage import Home, Memory
from hdl.layers.wiring.gradient_sum import GradientSum, wrapped
from hdl.random_bits import requantise_by_element, tensor_key
from hdl.spelling import QUIET
from hdl.strips import Strips
from hdl.tensor import Kind, Port, Tensor, Tile, from_order, in_order

DATA = Fixed(16, 8)
WEIGHT = Fixed(16, 12)
ERROR = Fixed(16, 12)
# bits that sums of a chosen width have above the range of the gradient
SUM_GUARD = 4
# examples that are there with sums of so many bits as well: in memory, in registers
CUT_EXAMPLES = ((1, 26), (4, 24))
# the one that is there with sums that leave as they are
EXACT_EXAMPLE = 1
# examples that are there with frozen weights as well: staleness none, some
FROZEN_EXAMPLES = (0, 1)


@dataclass(frozen=True, kw_only=True)
class WeightedEngine(WindowEngine):
    """A map and ``w`` in, a map out: sums are exact, rounded once to nearest and saturated.

    Holds a few rows of the stored map (never all of it unless the kernel needs it) and two versions of the weights,
    one if they are parked or frozen, none if they come once a frame."""

    # whether the weights stay as they are: no sink ``w``, and a memory that nobody writes, on chip or in DRAM
    frozen: bool = field(default=False, metadata=QUIET)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.frozen and self.home in (Home.PARKED, Home.LENT):
            raise FoldingError(
                f"{self.name}: frozen weights are not {self.home.value}", "they lie on chip, in DRAM or in a store"
            )

    @abstractmethod
    def sums(self, stored: Any, weights: Any) -> Any:
        """Exact results of stacked frames that see one version of the weights, before rounding."""

    @property
    @abstractmethod
    def stored(self) -> Port:
        """The map of which rows are held."""

    @cached_property
    def result(self) -> Port:
        """The map that is made."""
        return self.sources[0]

    @property
    @abstractmethod
    def w_format(self) -> Fixed:
        """Of a weight."""

    @property
    def weight_ports(self) -> tuple[Port, ...]:
        """w, as a sink or held; from a store, which has those of every frame."""
        kind = Kind.REPLAY if self.home is Home.REMOTE else Kind.WEIGHT
        tensor = Tensor(self.weight_shape, self.w_format, kind)
        return (Port("w", tensor, self.w_lanes, self.tile.padding(self.weight_shape)),)

    @property
    def held_parameters(self) -> tuple[Port, ...]:
        """w, if it is frozen."""
        return self.weight_ports if self.frozen else ()

    @property
    def sinks(self) -> tuple[Port, ...]:
        """The stored map, w unless it is frozen."""
        held_here = self.frozen and self.home is not Home.REMOTE
        return (self.stored,) if held_here else (self.stored, *self.weight_ports)

    def required(self, source: str, elements: int) -> dict[str, int]:
        """Work on a row starts when all stored rows that it needs are there; on streamed weights, when all are."""
        stored = self.stored
        if self.streamed:
            return {stored.name: stored.tensor.elements}
        return {stored.name: self.rows_required(stored.name, source, elements)}

    @property
    def pipeline_cycles(self) -> int:
        """On streamed weights the work of all passes, each over the whole map."""
        return self.walk.cycles + PIPELINE if self.streamed else super().pipeline_cycles

    @property
    def strips(self) -> Strips:
        """Rows of the result."""
        stored, result = self.stored, self.result
        stored_word, word = self._words_inside
        return result_strips(
            self.walk,
            {stored.name: (stored, stored_word)},
            {result.name: (result, word)},
            {stored.name: self.ring_rows(stored.name)},
            self._sum_cycles,
            load_cycles=self._switch_cycles,
            reordered_words=self.reordered_frames * words_of(result, word),
        )

    @property
    def _words_inside(self) -> tuple[int, int]:
        """Elements a word of the stored map, and of the result."""
        forward, back = self.map_words
        return (back, forward) if self.transposed else (forward, back)

    @property
    def _sum_cycles(self) -> int:
        """From the words of the ring to the sum of one operation."""
        return 2 + tree_levels(self.tile.size // self._words_inside[1])

    @property
    def words_along(self) -> Mapping[str, int]:
        """Of the result, where it doesn't wait for a last pass."""
        return {self.result.name: self._words_inside[1]}

    @property
    def made_cycles(self) -> int:
        """As `strips` has it."""
        return made_cycles(self._sum_cycles)

    @property
    def reordered_frames(self) -> int:
        """Frames of results that are put in order at a time."""
        return 0

    @property
    def built(self) -> Self:
        """Of binary points only what is between those of products and results matters."""
        return _shifting(self, (self.stored.name, "w"), self.result.name)

    # ---- meaning

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """Keeps the initial weights for the memory image."""
        return {"initial": self.w_format.encode(parameters["w"])}

    def start_reference(self, parameters: Mapping[str, FloatArray]) -> State:
        """Keeps frozen weights."""
        return {"initial": parameters["w"]} if self.frozen else {}

    @property
    def sum_fraction_bits(self) -> int:
        """Fraction bits of a product."""
        return self.stored.tensor.fixed.fraction_bits + self.w_format.fraction_bits

    def codes(self, stored: IntArray, versions: Versions) -> IntArray:
        """`sums` of codes, rounded once; narrow ones in one pass."""
        if self._correlation is not None:
            return self._correlation(stored, versions)
        return requantise(self._summed(stored, versions), self.sum_fraction_bits, self.result.tensor.fixed)

    @cached_property
    def _correlation(self) -> Correlation | None:
        """What makes codes of narrow formats."""
        given, target = self.stored.tensor.fixed, self.result.tensor.fixed
        if not is_narrow(given, self.w_format):
            return None
        return self.correlation(self.sum_fraction_bits - target.fraction_bits, target)

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Exact sums, rounded once."""
        return {self.result.name: self.codes(inputs[self.stored.name], self._seen(state, inputs))}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        return {self.result.name: self._summed(inputs[self.stored.name], self._seen(state, inputs))}

    def _summed(self, stored: Any, versions: Versions) -> Any:
        """`sums` of all frames."""
        parts = [self.sums(stored[frames], weights) for frames, weights in versions]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _seen(self, state: State, inputs: Mapping[str, Any]) -> Versions:
        """The versions of the weights that the frames of a batch see."""
        if self.frozen:
            return [(slice(0, None), state["initial"])]
        return by_version(state, inputs["w"], self.recipe)

    # ---- versions of the weights

    @property
    def versions(self) -> int:
        """Versions of the weights on chip, unless they come once a frame."""
        return 1 if self.frozen or self.home is Home.PARKED else 2

    @property
    def _versions_told_apart(self) -> int:
        """Frozen weights have one."""
        return 1 if self.frozen else super()._versions_told_apart

    @property
    def replayed(self) -> tuple[str, ...]:
        """w, if the weights live in DRAM and are trained."""
        return ("w",) if self.home is Home.DRAM and not self.frozen else ()

    @property
    def fetched(self) -> tuple[Port, ...]:
        """w, if the weights live in DRAM and are frozen."""
        return self.weight_ports if self.home is Home.DRAM and self.frozen else ()

    @property
    def fetches_loaded(self) -> bool:
        """If the recipe says so."""
        return bool(self.fetched) and self.recipe.loaded

    @property
    def _state_lanes(self) -> int:
        """Frozen weights a word of state: as many as fit, and divide them."""
        (port,) = self.fetched
        return math.gcd(port.elements, WORD_BITS // self.w_format.width)

    def state_words(self, state: State) -> list[int]:
        """Frozen weights that a host loads, in the order in which they are fetched."""
        if not self.fetches_loaded:
            return []
        return pack(self._stored_codes(state), self.w_format.width, self._state_lanes)

    def with_state_words(self, state: State, words: Sequence[int]) -> None:
        """See the base class."""
        if self.fetches_loaded:
            found = from_order(unpack(words, self.w_format, self._state_lanes), self.tile.order(self.weight_shape))
            state["initial"] = found.reshape(self.weight_shape)

    def shown(self, state: State) -> dict[str, IntArray]:
        """Frozen weights that a host loads."""
        return {"w": state["initial"]} if self.fetches_loaded else {}

    def _stored_codes(self, state: State) -> IntArray:
        """Weights as memories and streams have them."""
        return in_order(state["initial"].reshape(-1), self.tile.order(self.weight_shape))

    @property
    def parked(self) -> Mapping[str, int]:
        """w, if one version lives here."""
        return {"w": self.load_cycles} if self.home is Home.PARKED else {}

    @property
    def _switch_cycles(self) -> int:
        """Between the last operation with a version and the first with the next, of those that lie in one place, if the
        next one waits: its first word stands in front of the place, the others follow through the adapter."""
        if self.home is not Home.PARKED:
            return 0
        word_cycles = max(Fraction(1), Fraction(self.tile.size, self.w_lanes))
        return PLACE_FREE - 1 + math.ceil((self.words - 1) * word_cycles) + WEIGHT_LATENCY

    def memories(self) -> tuple[Memory, ...]:
        """The versions of the weights, if they live here."""
        if self.streamed or self.borrowed:
            return ()
        return (
            Memory("weights", self.versions * self.words, self.tile.size * self.w_format.width, is_state=self.frozen),
        )

    def images(self, state: State) -> dict[str, list[int]]:
        """Version 0: as beats of ``w`` if weights live outside, else in the first place of the weight buffer."""
        if self.borrowed:
            return {}
        codes, width = self._stored_codes(state), self.w_format.width
        if self.streamed:
            return {"w": pack(codes, width, self.w_lanes)}
        return {"weights": pack(codes, width, self.tile.size) + [0] * (self.versions - 1) * self.words}


@dataclass(frozen=True, kw_only=True)
class ForwardEngine(WeightedEngine):
    """Sinks ``x`` and ``w``, source ``y``."""

    x_lanes: int = 1
    y_lanes: int = 1
    # distinguishes the random bits of this layer's gradient from others
    tensor_id: int = 0
    x_fixed: Fixed = DATA
    w_fixed: Fixed = WEIGHT
    y_fixed: Fixed = DATA

    @property
    def built(self) -> Self:
        """The number is the gradient engine's."""
        return dataclasses.replace(super().built, tensor_id=0)

    @cached_property
    def stored(self) -> Port:
        """x."""
        return Port("x", Tensor(self.input_shape, self.x_fixed, Kind.ACTIVATION), self.x_lanes)

    @property
    def w_format(self) -> Fixed:
        """As chosen."""
        return self.w_fixed

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        return (Port("y", Tensor(self.output_shape, self.y_fixed, Kind.ACTIVATION), self.y_lanes),)

    def learn(self, tape: Tape, gradient: type[GradientEngine], error: type[ErrorEngine]) -> None:
        """Gradient engine on the stashed x, error engine on the updated weights; of frozen weights the error engine
        alone."""
        e = tape.error("y")
        if self.frozen:
            if tape.needs_error("x"):
                held = error(**self.shared, w_fixed=self.w_fixed, frozen=True)
                tape.give_error("x", tape.add("error", held, {"e": e})["dx"])
            return
        summing = gradient(**self.shared, x_fixed=self.x_fixed, tensor_id=self.tensor_id)
        weights = tape.learn("w", tape.add("gradient", summing, {"x": tape.value("x"), "e": e})["g"])
        if tape.needs_error("x"):
            engine = error(**self.shared, w_fixed=self.w_fixed)
            tape.give_error("x", tape.add("error", engine, {"e": e, "w": weights})["dx"])

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Kernels, strides, paddings, tiles and versions of weights."""
        return _frozen_too(tuple(cls(**example, x_lanes=x, y_lanes=y) for example, x, y in cls.example_fields()))


@dataclass(frozen=True, kw_only=True)
class ErrorEngine(WeightedEngine):
    """Sinks ``e`` and ``w``, source ``dx``.

    Visits only taps that exist for the pixel at hand, so a stride costs no multiplications by inserted zeros; a pixel
    that no output saw costs one cycle.  With a stride along an axis, taps are not parallel along that axis."""

    transposed: ClassVar[bool] = True

    e_lanes: int = 1
    dx_lanes: int = 1
    e_fixed: Fixed = ERROR
    w_fixed: Fixed = WEIGHT
    dx_fixed: Fixed = ERROR

    @cached_property
    def stored(self) -> Port:
        """e."""
        return Port("e", Tensor(self.output_shape, self.e_fixed, Kind.ERROR), self.e_lanes)

    @property
    def w_format(self) -> Fixed:
        """As chosen."""
        return self.w_fixed

    @property
    def sources(self) -> tuple[Port, ...]:
        """dx."""
        return (Port("dx", Tensor(self.input_shape, self.dx_fixed, Kind.ERROR), self.dx_lanes),)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """As of the forward engine, with taps in parallel only along axes without stride."""
        found = []
        for example, x, y in cls.example_fields():
            if example.get("stride", (1, 1)) != (1, 1):
                example |= {"tile": Tile(example["tile"].po, example["tile"].pi), "w_lanes": 1}
            found.append(cls(**example, e_lanes=y, dx_lanes=x))
        return _frozen_too(tuple(found))


@dataclass(frozen=True, kw_only=True)
class GradientEngine(WindowEngine):
    """Sinks ``x`` and ``e`` a frame, source ``g`` once a batch.

    The sum over all frames of a batch is exact, then rounded stochastically (with the batch number as step) and
    saturated.  The engine rests for `drain_cycles` at the end of each batch while the sums leave.

    With ``sum_width`` sums have so many bits: `SUM_GUARD` of them above the range of g, the others from there down.
    What a product has below them is cut before it is added (`hdl.fixed.cut_product`), and sums wrap, so that they are
    the same in any order: the sum of a batch is right if it stays within 2**`SUM_GUARD` times the range of g, whatever
    the sums on the way were.  So are sums of copies, each of some frames of a batch, and of parts, each of some rows:
    they wrap when they are added, too."""

    x_lanes: int = 1
    e_lanes: int = 1
    # distinguishes the random bits of this tensor from others
    tensor_id: int = 0
    x_fixed: Fixed = DATA
    e_fixed: Fixed = ERROR
    g_fixed: Fixed = DATA
    # bits of a sum; 0: as many as an exact one takes
    sum_width: int = field(default=0, metadata=QUIET)
    # batches of an earlier training, from which it counts on
    begun: int = field(default=0, metadata=QUIET)
    # whether g is the sum itself, which a `GradientSum` rounds
    exact: bool = field(default=False, metadata=QUIET)
    # rows of errors of all parts by rows, whose sums are added; 0: it is no part
    summed_rows: int = field(default=0, metadata=QUIET)

    def check_shape(self) -> None:
        """Bits of sums as well."""
        super().check_shape()
        if self.exact and self.wraps and self.recipe.dealt is None and not self.summed_rows:
            raise ShapeError(
                f"{self.name}: sums of {self.sum_bits} bits wrap, so they are rounded where they are made",
                "leave the width of sums to the engine (no --bits sum=)",
            )
        if self.sum_width and self.sum_width < self.least_sum_width:
            raise ShapeError(
                f"{self.name}: sums of {self.sum_width} bits for gradients of {self.g_fixed.width}",
                f"give them {self.least_sum_width} or more",
            )

    @property
    def accessed(self) -> bool:
        """The number of batches."""
        return self.recipe.loaded

    @abstractmethod
    def sums(self, x: Any, e: Any) -> Any:
        """Gradients of stacked frames before rounding: exact; of codes sums of products less `cut` bits each."""

    @property
    def sinks(self) -> tuple[Port, ...]:
        """x (waits as a stash for its error), e."""
        return (
            Port("x", Tensor(self.input_shape, self.x_fixed, Kind.STASH), self.x_lanes),
            Port("e", Tensor(self.output_shape, self.e_fixed, Kind.ERROR), self.e_lanes),
        )

    @property
    def sources(self) -> tuple[Port, ...]:
        """g."""
        tensor = Tensor(self.weight_shape, self.sent, Kind.GRADIENT)
        return (Port("g", tensor, self.w_lanes, self.tile.padding(self.weight_shape)),)

    @property
    def built(self) -> Self:
        """Of binary points only what is between those of products and gradients matters, of rows of other parts what is
        cut for them."""
        rows = self.summed_rows if self.sum_width else 0
        return dataclasses.replace(_shifting(self, ("x", "e"), "g"), summed_rows=rows)

    @property
    def roundings(self) -> dict[str, GradientSum]:
        """Of g."""
        return {
            "g": GradientSum(
                shape=self.weight_shape,
                recipe=self.recipe,
                tile=self.tile,
                w_lanes=self.w_lanes,
                tensor_id=self.tensor_id,
                s_fixed=self.sum_fixed,
                wraps=self.wraps,
                g_fixed=self.g_fixed,
                begun=self.begun,
            )
        }

    def row_part(self, first: int, end: int) -> RowPart | None:
        """Of these rows of errors, and what of x they saw."""
        part = super().row_part(first, end)
        if part is None:
            return None
        assert isinstance(part.layer, GradientEngine)
        rows = self.summed_rows or self.window.output[0]
        return RowPart(dataclasses.replace(part.layer, summed_rows=rows), {**part.needs, "e": (first, end)})

    @property
    def drain_cycles(self) -> int:
        """Cycles for which the engine rests after each batch while its sums leave, if ``g`` doesn't stall."""
        if self.streamed:
            return 0
        return FLUSH + 2 + (self.words - 1) * (self.tile.size // self.w_lanes)

    @property
    def words_along(self) -> Mapping[str, int]:
        """Of e."""
        return {"e": self.map_words[1]}

    @property
    def strips(self) -> Strips:
        """Rows of e; an error waits until its row is at work."""
        x, e, g = (self.port(name) for name in ("x", "e", "g"))
        x_word, e_word = self.map_words
        return gradient_strips(
            self.walk, (x, x_word), (e, e_word), (g, self.tile.size), self.ring_rows("x"), self.drain_cycles,
            self.words, exact=self.exact, error_frames=self.error_frames,
        )  # fmt: skip

    @property
    def error_frames(self) -> int:
        """Frames of errors that are put in order at a time, for passes over the map; 0: they come as needed."""
        return 0

    @property
    def closeness(self) -> dict[str, float]:
        """A stochastic rounding, and half a step of the sum for every product that is cut."""
        if self.exact:
            return {"g": self._terms / 2 if self.cut else 0.5}
        step = 2.0 ** (self.cut + self.g_fixed.fraction_bits - self.exact_fraction_bits)
        return {"g": 1.0 + (self._terms * step / 2 if self.cut else 0.0)}

    @property
    def product_bits(self) -> int:
        """Bits of a product."""
        return operand_bits(self.x_fixed) + operand_bits(self.e_fixed)

    @property
    def exact_sum_bits(self) -> int:
        """Bits of an exact sum over a batch."""
        return self.product_bits + (self._terms - 1).bit_length()

    @property
    def _terms(self) -> int:
        """Products of a sum."""
        return self.recipe.batch * math.prod(self.window.output)

    @property
    def _batch_sum_bits(self) -> int:
        """Bits of an exact sum over the frames of all copies and the rows of all parts, if there are several."""
        dealt, (rows, columns) = self.recipe.dealt, self.window.output
        frames = self.recipe.batch if dealt is None else dealt.batch
        return self.product_bits + (frames * (self.summed_rows or rows) * columns - 1).bit_length()

    @property
    def exact_fraction_bits(self) -> int:
        """Fraction bits of a product."""
        return self.x_fixed.fraction_bits + self.e_fixed.fraction_bits

    @property
    def least_sum_width(self) -> int:
        """The fewest bits that can be chosen for a sum: those of g, and above."""
        return operand_bits(self.g_fixed) + SUM_GUARD

    @property
    def fitting_sum_width(self) -> int:
        """The fewest bits for which what all cuts together do is a quarter of what rounding the sum does, or less.

        Root mean square of a cut is a step of the sum / sqrt(12), of stochastic rounding one of g / sqrt(6)."""
        return self.least_sum_width + ((self._terms - 1).bit_length() + 4) // 2

    @cached_property
    def cut(self) -> int:
        """Bits of every product that are cut before it is added: as many whoever sums which frames, or which rows."""
        if not self.sum_width or self.sum_width >= self._batch_sum_bits:
            return 0
        kept = self.sum_width - self.least_sum_width
        return min(max(1, self.exact_fraction_bits - self.g_fixed.fraction_bits - kept), self.product_bits - 2)

    @cached_property
    def wraps(self) -> bool:
        """Whether sums over a batch have fewer bits than the largest that there could be."""
        return self.cut > 0 and self.sum_width < self._batch_sum_bits - self.cut

    @property
    def sum_bits(self) -> int:
        """Bits of a sum over a batch."""
        return self.sum_width if self.wraps else self.exact_sum_bits - self.cut

    @property
    def sum_fraction_bits(self) -> int:
        """Fraction bits of a sum."""
        return self.exact_fraction_bits - self.cut

    @property
    def sum_fixed(self) -> Fixed:
        """Of a sum over a batch."""
        return Fixed(self.sum_bits, self.sum_fraction_bits)

    @property
    def sent(self) -> Fixed:
        """Of what leaves on g."""
        return self.sum_fixed if self.exact else self.g_fixed

    @property
    def key(self) -> int:
        """Key of the random bits."""
        return tensor_key(self.recipe.seed, self.tensor_id)

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """Counts batches, and sums of them that did not fit where they wrap."""
        del parameters
        return {"batch": self.begun, "wrapped": 0} if self.wraps else {"batch": self.begun}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """The sum over the batch, rounded stochastically unless it leaves as it is."""
        total = self.sums(inputs["x"], inputs["e"])
        if self.wraps:
            total = wrapped(state, total, self.sum_fixed)
        state["batch"] += 1
        if self.exact:
            return {"g": np.asarray(total, np.int64)}
        return {"g": requantise_by_element(total, self.sum_fraction_bits, self.g_fixed, state["batch"] - 1, self.key)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        del state
        return {"g": self.sums(inputs["x"], inputs["e"])}

    @property
    def shape(self) -> GradientShape:
        """What the circuit is built from."""
        return GradientShape(
            walk=self.walk,
            tile=self.tile,
            weight_shape=self.weight_shape,
            words=self.words,
            ring_rows=self.ring_rows("x"),
            x=self.x_fixed,
            e=self.e_fixed,
            g=self.sent,
            sum_bits=self.sum_bits,
            shift=self.sum_fraction_bits - self.sent.fraction_bits,
            batch=self.recipe.batch,
            lanes=self.w_lanes,
            key=self.key,
            cut=self.cut,
            begun=self.begun,
            exact=self.exact,
        )

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """As of the forward engine; some with sums of a chosen width as well, one whose sums leave as they are."""
        found = tuple(cls(**example, x_lanes=x, e_lanes=y, tensor_id=7) for example, x, y in cls.example_fields())
        cut = (dataclasses.replace(found[index], sum_width=bits) for index, bits in CUT_EXAMPLES)
        return (*found, *cut, dataclasses.replace(found[EXACT_EXAMPLE], exact=True))


EngineT = TypeVar("EngineT", bound=WindowEngine)


def _shifting(engine: EngineT, operands: tuple[str, str], result: str) -> EngineT:
    """The engine with other binary points between which lies as much: how far its results are shifted is all that a
    circuit knows of them, so layers that were calibrated unlike are often one circuit."""
    points = {port: getattr(engine, f"{port}_fixed") for port in (*operands, result)}
    shift = sum(points[port].fraction_bits for port in operands) - points[result].fraction_bits
    moved = {operands[0]: shift, operands[1]: 0, result: 0}
    fields = {f"{port}_fixed": dataclasses.replace(points[port], fraction_bits=at) for port, at in moved.items()}
    return dataclasses.replace(engine, **fields)


def words_of(port: Port, word: int) -> int:
    """Words of so many elements in a map, each within a pixel."""
    *pixels, channels = port.tensor.shape
    return math.prod(pixels) * -(-channels // word)


Engine = TypeVar("Engine", bound=WeightedEngine)


def _frozen_too(found: tuple[Engine, ...]) -> tuple[Engine, ...]:
    """Some of the examples with weights that stay as they are."""
    return (*found, *(dataclasses.replace(found[index], frozen=True) for index in FROZEN_EXAMPLES))
