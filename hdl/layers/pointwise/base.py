"""What activations share: codes to codes, ``lanes`` elements a beat, one beat a cycle.

`Pointwise` is an activation, `PointwiseError` its way back: ports, handshake, register, rounding, golden model and
examples are made here, once; a subclass states what it does to a code, what it keeps, and the process that does it to
the lanes of a beat.  docs/adding-a-layer.md goes through one.
"""

from __future__ import annotations

import dataclasses
import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from myhdl import always_comb, block

from hdl.engine.arithmetic.rounding import round_stream, rounding_cycles
from hdl.errors import ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray, requantise
from hdl.layers.base import Layer
from hdl.layers.meaning import Again, State, Tape
from hdl.layers.pointwise.affine import Affine, with_sums
from hdl.layers.pointwise.elementwise import ElementWise, OfMap, ToMap
from hdl.layers.pointwise.table import Table, read_and_add, read_tables
from hdl.layers.shape import RowPart
from hdl.layers.storage import Memory
from hdl.signals import ClockReset, Instances
from hdl.spelling import QUIET
from hdl.stream import Stream
from hdl.streams import fork, join, m2s_pipe, take_bits
from hdl.tensor import Kind, Port

# of examples: several lanes, all of them, one pixel
EXAMPLE_MAPS = (
    {"height": 3, "width": 2, "channels": 4, "lanes": 2},
    {"height": 2, "width": 2, "channels": 3, "lanes": 3},
    {"height": 1, "width": 1, "channels": 5, "lanes": 1},
)
BIT = Fixed(1, 0, signed=False)
# truths, or codes of several bits
Mask = npt.NDArray[np.bool_] | IntArray
# a combinational process over all lanes of a beat, undecorated
LaneBlock = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class _Lanes(ElementWise):
    """What an activation and its way back share: codes in, an exact result, one rounding, one lane block."""

    # parameters of the examples; they get the maps of `EXAMPLE_MAPS` in turn, and each map is used
    variants: ClassVar[Sequence[Mapping[str, Any]]] = ({},)
    # of an element of ``mask``, what is kept for the way back
    mask_fixed: ClassVar[Fixed] = BIT

    def __post_init__(self) -> None:
        super().__post_init__()
        problem = self.affine.problem if self.affine else None
        if problem:
            raise ShapeError(f"{type(self).__name__}: {problem.what}", problem.cure)

    @property
    @abstractmethod
    def ends(self) -> tuple[Fixed, Fixed]:
        """Formats of the codes that come and of those that go."""

    @property
    def affine(self) -> Affine | None:
        """What of every code the lane block gets too; None for nothing."""
        return None

    @property
    def exact(self) -> Fixed:
        """Format of the lane block's result, before it is rounded once into that of the codes that go."""
        return self.affine.exact if self.affine else self.ends[1]

    def rounded(self, codes: IntArray) -> IntArray:
        """Codes of `exact` as they go."""
        given = self.ends[1]
        return codes if self.exact == given else requantise(codes, self.exact.fraction_bits, given)

    @property
    def cut(self) -> int:
        """Bits that the rounding takes off the lane block's codes."""
        return self.exact.fraction_bits - self.ends[1].fraction_bits

    @property
    def mask_cycles(self) -> int:
        """Cycles until the lane block's result stands in its register."""
        return 1 + (self.affine.cycles if self.affine else 0)

    @property
    def pipeline_cycles(self) -> int:
        """The lane block's and the rounding's registers."""
        return self.mask_cycles + (rounding_cycles(self.cut) if self.exact != self.ends[1] else 0)

    def row_part(self, first: int, end: int) -> RowPart | None:
        """Of these rows alone."""
        return self.rows_alone(first, end)

    def operands(self, x: Stream) -> Stream:
        """What the lane block gets: x, or x behind the sums of its codes."""
        return Stream(self.lanes * self.affine.word_bits + x.width) if self.affine else x

    def result(self, y: Stream) -> Stream:
        """What the lane block's codes go to: y, or what is rounded into it."""
        return y if self.exact == self.ends[1] else Stream(self.lanes * self.exact.width)

    @property
    def closeness(self) -> dict[str, float]:
        """One rounding, and what the constants are off."""
        given = self.ends[1]
        off = self.affine.off((given.high + 1) * given.step) / given.step if self.affine else 0.0
        return {port.name: 0.5 if port.name == "mask" else 0.5 + off for port in self.sources}

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Each of `variants` and each of `EXAMPLE_MAPS`."""
        numbers = range(max(len(cls.variants), len(EXAMPLE_MAPS)))
        pairs = [(EXAMPLE_MAPS[n % len(EXAMPLE_MAPS)], cls.variants[n % len(cls.variants)]) for n in numbers]
        return tuple(cls(**{**example_map, **parameters}) for example_map, parameters in pairs)


@dataclass(frozen=True, kw_only=True)
class Pointwise(_Lanes, OfMap):
    """An activation: each code of sink ``x`` becomes one of source ``y`` and one of the stash ``mask``, whatever stands
    beside it; one beat a cycle.

    A subclass states its parameters, a field ``x_fixed`` (and ``y_fixed``, unless y has the format of x), `codes`,
    `values`, `error`, `lane_block`, and `variants` for the tests."""

    # of x and y: ACTIVATION forwards, STASH where both are made again for the way back
    kind: Kind = field(default=Kind.ACTIVATION, metadata=QUIET)

    @property
    def y_fixed(self) -> Fixed:
        """Format of y."""
        return self.x_fixed

    @property
    def table(self) -> Table | None:
        """What y and mask are read from, at the addresses that the lane block then makes instead of them."""
        return None

    @property
    def mask_cycles(self) -> int:
        """Reads take the place of a register."""
        return super().mask_cycles + (self.table.cycles - 1 if self.table else 0)

    @abstractmethod
    def codes(self, x: IntArray) -> tuple[IntArray, Mask]:
        """Codes of y in the format `exact`, before rounding, and of mask."""

    @abstractmethod
    def values(self, x: FloatArray) -> tuple[FloatArray, Mask | FloatArray]:
        """y and mask in float64, without any rounding."""

    @abstractmethod
    def error(self) -> PointwiseError:
        """The layer that turns the error of y into that of x."""

    @abstractmethod
    def lane_block(self, taken: Stream, computed: Stream) -> LaneBlock:
        """What makes a beat of results of one of codes; its streams must keep these names.

        Args:
            taken: codes of x, lane 0 in the low bits; with `affine`, its sums in front, `Affine.word_bits` each.
            computed: to be driven; codes of y in the format `exact`, then those of mask; with `table`, addresses of
                `Table.address_bits` each, then codes of `Table.added_bits`."""

    @property
    def ends(self) -> tuple[Fixed, Fixed]:
        """x, y."""
        return self.x_fixed, self.y_fixed

    @property
    def sinks(self) -> tuple[Port, ...]:
        """x."""
        return (self.map_port("x", self.kind),)

    @property
    def sources(self) -> tuple[Port, ...]:
        """y, mask."""
        return self.map_port("y", self.kind), self.map_port("mask", Kind.STASH)

    def latency_cycles(self, source: str) -> int:
        """The mask isn't rounded."""
        return self.mask_cycles if source == "mask" else self.pipeline_cycles

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """`codes`, rounded once."""
        del state
        y, mask = self.codes(inputs["x"])
        return {"y": self.rounded(y), "mask": mask.astype(np.int64)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """`values`."""
        del state
        y, mask = self.values(inputs["x"])
        return {"y": y, "mask": mask.astype(inputs["x"].dtype)}

    def again(self) -> tuple[Again, ...]:
        """The same of x."""
        return (Again(dataclasses.replace(self, kind=Kind.STASH), {"x": "x"}),)

    def backward(self, tape: Tape) -> None:
        """The error by what was kept."""
        if tape.needs_error("x"):
            made = tape.add("error", self.error(), {"e": tape.error("y"), "mask": tape.value("mask")})
            tape.give_error("x", made["dx"])

    def memories(self) -> tuple[Memory, ...]:
        """The table, a lane."""
        return self.table.memories(self.lanes, self.mask_fixed.width) if self.table else ()

    def images(self, state: State) -> dict[str, list[int]]:
        """The table, in each."""
        del state
        words = self.table.words(self.mask_fixed.width) if self.table else []
        return {memory.name: words for memory in self.memories()}

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """The lane block, a register or the table, and what rounds."""
        return pointwise(domain, streams["x"], streams["y"], streams["mask"], layer=self, images=images)


@dataclass(frozen=True, kw_only=True)
class PointwiseError(_Lanes, ToMap):
    """The way back through an activation: sinks ``e`` and ``mask``, source ``dx``; one beat a cycle.

    A subclass states its parameters, a field ``e_fixed`` (and ``dx_fixed``, unless dx has the format of e), `codes`,
    `values`, `lane_block`, and `variants` for the tests."""

    @property
    @abstractmethod
    def e_fixed(self) -> Fixed:
        """Format of e: a field of the subclass."""

    @property
    def dx_fixed(self) -> Fixed:
        """Format of dx."""
        return self.e_fixed

    @abstractmethod
    def codes(self, e: IntArray, mask: IntArray) -> IntArray:
        """Codes of dx in the format `exact`, before rounding."""

    @abstractmethod
    def values(self, e: FloatArray, mask: FloatArray) -> FloatArray:
        """dx in float64, without any rounding."""

    @abstractmethod
    def lane_block(self, both: Stream, computed: Stream) -> LaneBlock:
        """What makes a beat of results of one of codes; its streams must keep these names.

        Args:
            both: codes of e, lane 0 in the low bits, then those of mask; with `affine`, its sums in
                front, `Affine.word_bits` each.
            computed: to be driven; codes of dx in the format `exact`."""

    @property
    def mask_cycles(self) -> int:
        """One more where `products` are made, of what stands in a register in front of the lane block."""
        return super().mask_cycles + (1 if self.products else 0)

    @property
    def ends(self) -> tuple[Fixed, Fixed]:
        """e, dx."""
        return self.e_fixed, self.dx_fixed

    @property
    def sinks(self) -> tuple[Port, ...]:
        """e, mask."""
        return self.map_port("e", Kind.ERROR), self.map_port("mask", Kind.STASH)

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """`codes`, rounded once."""
        del state
        return {"dx": self.rounded(self.codes(inputs["e"], inputs["mask"]))}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """`values`."""
        del state
        return {"dx": self.values(inputs["e"], inputs["mask"])}

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """The lane block, a register, and what rounds."""
        del images
        return pointwise_error(domain, streams["e"], streams["mask"], streams["dx"], layer=self)


@block
def pointwise(
    domain: ClockReset,
    x: Stream,
    y: Stream,
    mask: Stream,
    *,
    layer: Pointwise,
    images: Mapping[str, Sequence[int]] | None = None,
) -> Instances:
    """One beat a cycle; one register before the fork into y and mask.

    Ports:
        x: in, stream of ``layer.lanes`` codes of ``layer.x_fixed``.
        y: out, stream of as many of ``layer.y_fixed``, ``layer.pipeline_cycles`` later.
        mask: out, stream of as many of ``layer.mask_fixed``, ``layer.mask_cycles`` later; a table's reads are in that.
    """
    values, table = layer.lanes * layer.exact.width, layer.table
    pair = values + mask.width
    computed, held = Stream(layer.lanes * (table.address_bits + table.added_bits) if table else pair), Stream(pair)
    parts = [Stream(pair) for _ in range(2)]
    taken, exact = layer.operands(x), layer.result(y)
    if table:
        read = read_and_add if table.added_bits else read_tables
        register = read(
            domain,
            computed,
            held,
            lanes=layer.lanes,
            table=table,
            y_width=layer.exact.width,
            mask_bits=layer.mask_fixed.width,
            images=images,
        )
    else:
        register = m2s_pipe(domain, computed, held)
    split = fork(domain, held, parts)
    to_y = take_bits(parts[0], exact, low=0)
    to_mask = take_bits(parts[1], mask, low=values)
    process = layer.lane_block(taken, computed)
    _check_names(process, taken=taken, computed=computed)
    lanes = always_comb(process)

    @always_comb
    def handshake() -> None:
        computed.valid.next = taken.valid
        taken.ready.next = computed.ready

    sums: Instances = ()
    rounding: Instances = ()
    if layer.affine:
        sums = with_sums(domain, x, taken, lanes=layer.lanes, affine=layer.affine)
    if exact is not y:
        rounding = round_stream(domain, exact, y, lanes=layer.lanes, shift=layer.cut, target=layer.y_fixed)
    return sums, register, split, to_y, to_mask, rounding, lanes, handshake


@block
def pointwise_error(domain: ClockReset, e: Stream, mask: Stream, dx: Stream, *, layer: PointwiseError) -> Instances:
    """One beat a cycle; one register.

    Ports:
        e: in, stream of ``layer.lanes`` codes of ``layer.e_fixed``.
        mask: in, stream of as many of ``layer.mask_fixed``, taken together with ``e``.
        dx: out, stream of as many of ``layer.dx_fixed``, ``layer.pipeline_cycles`` later.
    """
    joint = Stream(e.width + mask.width)
    factors = Stream(joint.width) if layer.products else joint
    hold = m2s_pipe(domain, joint, factors) if layer.products else ()
    computed = Stream(layer.lanes * layer.exact.width)
    joined = join(domain, [e, mask], joint)
    both, exact = layer.operands(factors), layer.result(dx)
    register = m2s_pipe(domain, computed, exact)
    process = layer.lane_block(both, computed)
    _check_names(process, both=both, computed=computed)
    lanes = always_comb(process)

    @always_comb
    def handshake() -> None:
        computed.valid.next = both.valid
        both.ready.next = computed.ready

    sums: Instances = ()
    rounding: Instances = ()
    if layer.affine:
        sums = with_sums(domain, factors, both, lanes=layer.lanes, affine=layer.affine)
    if exact is not dx:
        rounding = round_stream(domain, exact, dx, lanes=layer.lanes, shift=layer.cut, target=layer.dx_fixed)
    return joined, hold, sums, register, rounding, lanes, handshake


def _check_names(process: LaneBlock, **streams: Stream) -> None:
    """MyHDL looks for what a process reads among the names of the block that it stands in.  Raises TypeError."""
    for name, value in inspect.getclosurevars(process).nonlocals.items():
        if isinstance(value, Stream) and streams.get(name) is not value:
            raise TypeError(f"{process.__qualname__} calls a stream {name!r}; its streams are {', '.join(streams)}")
