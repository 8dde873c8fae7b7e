"""What a layer remembers: memories with contents, and where the large ones live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import TYPE_CHECKING, Self

from hdl.engine.weights.records import CHAIN_BITS
from hdl.fixed import Fixed, IntArray
from hdl.layers.meaning import State
from hdl.layers.shape import Shape
from hdl.tensor import Kind, Port, Tensor

if TYPE_CHECKING:
    from hdl.layers.base import Layer


@dataclass(frozen=True)
class Memory:
    """A memory of a circuit whose contents matter from outside: an initial image, or training state."""

    # name of the image; `DEPTH x WIDTH` words
    name: str
    depth: int
    # bits a word
    width: int
    # training state, compared at the end of a co-simulation (weights, momenta, normalisation state)
    is_state: bool = False


class Home(Enum):
    """Where a layer's large memory lives: weights, sums of gradients, optimiser state."""

    ON_CHIP = "on_chip"
    # what is in use on chip, what comes next waits outside (`Layer.parked`)
    PARKED = "parked"
    # in the memory of another layer that reads the same tensor, on the same device (`Layer.borrowed`)
    LENT = "lent"
    DRAM = "dram"
    # in block memory of a node of its own, on any device (`dagtrain.passes.remote_memory`)
    REMOTE = "remote"


@dataclass(frozen=True, kw_only=True)
class Ring:
    """Data that a layer keeps outside: it sends them out, and gets them back in the same order, tensor by tensor.

    Its two ports stand beside those of the graph; between them belongs a FIFO of at least ``capacity`` tensors, such
    as a `hdl.dram.store.DramFifo`."""

    # of the memory image, if it starts with contents
    name: str
    # sink: what comes back
    back: Port
    # source: what goes out
    out: Port
    capacity: int
    # tensors in it at the start, and whenever the layer rests: training state, `Layer.images` gives its beats at `back`
    preload: int = 0
    # whether these come by the chain of state instead: at the start it holds nothing
    loaded: bool = False
    # tensors a frame, each way
    per_frame: Fraction


# ports of layers whose state is loaded and dumped, links of a chain (`hdl.engine.weights.records`)
LOAD, DUMP = (Port(name, Tensor((1,), Fixed(CHAIN_BITS, 0, signed=False), Kind.STASH)) for name in ("load", "dump"))


class Storage(Shape):
    """Memories; the default layer has none."""

    @property
    def accessed(self) -> bool:
        """Whether it is a link of the chain by which state is loaded and dumped: ports `LOAD` and `DUMP`."""
        return False

    @property
    def fetches_loaded(self) -> bool:
        """Whether what it fetches is loaded and dumped, by the unit in front of it, which is a link of the chain in its
        place (`hdl.engine.weights.loaded_constant`)."""
        return False

    @property
    def is_link(self) -> bool:
        """Whether it, or what stands in front of it, is a link of that chain."""
        return self.accessed or self.fetches_loaded

    @property
    def not_accessed(self) -> str:
        """Why it is none though its recipe asks for it; "" for no reason of its own."""
        return ""

    def state_words(self, state: State) -> list[int]:
        """The words of its LOAD, and of the STATE that it sends when it holds a golden state; none where all of its
        state are counters."""
        del state
        return []

    def with_state_words(self, state: State, words: Sequence[int]) -> None:
        """Put into a golden state what words say of it."""
        del state, words

    def shown(self, state: State) -> dict[str, IntArray]:
        """By source, or port that is held, the weights that a golden state stands for and that a host loads."""
        del state
        return {}

    @property
    def beside(self) -> tuple[Port, ...]:
        """Ports beside those of the graph."""
        chain = (LOAD, DUMP) if self.accessed else ()
        return (*(port for ring in self.rings for port in (ring.back, ring.out)), *self.fetched, *chain)

    def at(self, home: Home) -> Self | None:
        """This layer with its large memory there; None where it has none that could be.  ON_CHIP gives the layer as it
        is in the training graph."""
        return self if home is Home.ON_CHIP else None

    @property
    def rings(self) -> tuple[Ring, ...]:
        """What the layer keeps outside and works on."""
        return ()

    @property
    def is_store(self) -> bool:
        """Whether it is a memory of another layer (`hdl.layers.store`)."""
        return False

    @property
    def remote(self) -> tuple[Ring, ...]:
        """What the layer keeps in stores that are nodes of the graph: rings whose ports are sinks and sources."""
        return ()

    @property
    def replayed(self) -> tuple[str, ...]:
        """Per-batch sinks that want the version of each frame once a frame (see `hdl.dram.store.DramReplay`)."""
        return ()

    @property
    def fetched(self) -> tuple[Port, ...]:
        """Ports, beside those of the graph, of tensors that lie outside and that nobody writes: each comes once a frame
        (see `hdl.dram.store.DramConstant`), or only a host (`fetches_loaded`)."""
        return ()

    @property
    def parked(self) -> Mapping[str, int]:
        """Per-batch sinks whose next tensor waits outside until the layer takes all of it at once, and the cycles in
        which it wants to have taken it: it rests for so long once a batch."""
        return {}

    @property
    def borrowed(self) -> tuple[str, ...]:
        """Per-batch sinks that are none in the circuit: the tensor is read in the memory of a layer that reads the same
        edge, and the two are one circuit (`lending`)."""
        return ()

    def lending(self, other: Layer) -> Layer | None:
        """The circuit of this layer and another one that borrows its memory; None where there is none.

        Its ports are those of both but what is borrowed; its memories and images are this layer's."""
        del other
        return None

    def memories(self) -> tuple[Memory, ...]:
        """Memories with an image; their names are the `image` names in the circuit."""
        return ()

    def images(self, state: State) -> dict[str, list[int]]:
        """Contents (unsigned words) of `memories` that represent a golden state, and beats of preloaded `rings` by
        their name, of `replayed` sinks (version 0) and of `fetched` ports.

        Of the start state: the initial images.  Of a final state: what state memories and rings must hold then."""
        del state
        return {}
