"""What a bench is made of, what it writes, and the options of both benches: plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dagtrain.cosim.network import MacPort
from dagtrain.cosim.trace import Traced
from dagtrain.cosim.watch import Loaded, Watched
from dagtrain.cosim.windows import LanePort
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.manifest import ContentsRecord, StateRecord
from dagtrain.emission.memory import MemoryModel
from hdl.dram.axi import AxiFormat
from hdl.recipe import first_frames

# the outermost module, with which all names of modules of the bench begin, and the module of all FPGAs
BENCH = "dagtrain_bench"
CLUSTER = f"{BENCH}_cluster"


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What surrounds the FPGAs in a co-simulation."""

    # frames that hosts feed, and frames a batch, which divide them
    frames: int
    batch: int
    # of the first batch, those with whose results the run ends; None: it ends when all batches are trained
    results: int | None = None
    # of the weights, in frames
    staleness: int = 0
    network: NetworkModel
    memory: MemoryModel = field(default_factory=MemoryModel)
    # of 256 cycles, those in which a host stream stalls
    host_stall_256: int = 64
    seed: int = 1
    # cycles between the last weights' arrival and the dump of the state
    settle_cycles: int = 4096
    # cycles without a beat of metrics or new weights after which the pipeline is called deadlocked
    stuck_cycles: int = 200_000
    # beside the stalls above: every stream inside the FPGAs is watched, and held up for stretches of so many cycles, a
    # quarter of them at random; 0: neither
    hold_cycles: int = 0

    @property
    def recorded_frames(self) -> int:
        """Whose results the bench waits for."""
        return self.frames if self.results is None else self.results

    @property
    def trained_batches(self) -> int:
        """Whose weights it waits for."""
        return self.frames // self.batch if self.results is None else 0

    def reads(self, loaded: bool) -> tuple[int, int]:
        """Frames that read the first version of weights, and every later one."""
        return first_frames(self.batch, self.staleness, loaded), self.batch


@dataclass(frozen=True)
class Recording:
    """A stream of metrics that the bench keeps."""

    file_name: str
    beats: int
    # Verilog prefix of the stream's nets below the bench
    net: str
    # that sends it
    device: str
    # Verilog path of the array below the bench that keeps it; "" where MyHDL does
    path: str = ""
    # at which its beats pass
    clk: str = "clk"


@dataclass(frozen=True)
class WeightLog:
    """The file to which the bench writes every beat of new weights."""

    file_name: str
    # that sends them
    device: str
    edge: str
    # a batch
    beats: int
    # Verilog prefix of the stream's nets below the bench
    net: str
    # at which its beats pass
    clk: str = "clk"
    # versions that it sends when state is loaded, before those of batches
    loaded: int = 0


@dataclass(frozen=True)
class StateLog:
    """The file to which the bench writes every word at the end of a device's chain of state."""

    file_name: str
    # whose it is, and what the manifest says of it
    device: str
    state: StateRecord
    # words behind the last batch, with what has been handed on before
    words: int
    # Verilog prefix of the stream's nets below the bench
    net: str
    # at which its words pass
    clk: str = "clk"


@dataclass(frozen=True)
class Dump:
    """Training state written at the end: a memory of a layer, or a region of a device's DRAM."""

    device: str
    # of the graph
    node: str
    # name in `Layer.images`
    image: str
    file_name: str
    # Verilog path of the array below the bench, and the words of it
    path: str
    first: int
    last: int
    # how a region's words become beats, and the words of that memory
    layout: ContentsRecord | None = None
    form: AxiFormat | None = None

    @property
    def statement(self) -> str:
        """The Verilog statement that writes it."""
        return f'$writememh("{self.file_name}", {self.path}, {self.first}, {self.last});'

    def contents(self, words: Sequence[int]) -> list[int]:
        """What `Layer.images` calls the same, of the file's words."""
        return self.layout.beats(words, self.form) if self.layout and self.form else list(words)


@dataclass(frozen=True)
class Bench:
    """The texts of the bench's own modules, and what it reads and writes (file names in its working folder)."""

    texts: Mapping[str, str]
    # host node -> file of beats to play; none where MyHDL offers them
    played: Mapping[str, str]
    # host node -> what is recorded of it
    recorded: Mapping[str, Recording]
    dumps: tuple[Dump, ...]
    # library modules of the bench
    modules: tuple[str, ...]
    weights: tuple[WeightLog, ...] = ()
    # by the numbers under which the bench tells of them
    watched: tuple[Watched, ...] = ()
    # tops with gates in their streams, instead of the delivered ones
    tops: Mapping[str, str] = field(default_factory=dict)
    # files that watchers start with, by name
    loaded: Mapping[str, Loaded] = field(default_factory=dict)
    # device -> file of words that are loaded into it
    loads: Mapping[str, str] = field(default_factory=dict)
    # what comes out of the same devices' chains
    states: tuple[StateLog, ...] = ()
    # streams whose beats are written, by the numbers under which they are
    traced: tuple[Traced, ...] = ()
    # of FPGAs on Ethernet, in the order of the switch's ports
    macs: tuple[MacPort, ...] = ()
    # to and from devices of other programs; None: there are none
    lanes: tuple[LanePort, ...] | None = None
