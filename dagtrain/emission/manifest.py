"""What is delivered for one FPGA, in words that programs read: `manifest.json`.

Whoever drives the Verilog, the co-simulation included, takes ports, images, host streams and regions in memory from
here, and from nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from dagtrain.emission.state import StateLink
from hdl.convert.netlist import Direction
from hdl.dram.axi import AxiFormat
from hdl.dram.region import regroup
from hdl.dram.store import DramFifo
from hdl.errors import DagtrainError
from hdl.link.ethernet.frame import Address
from hdl.link.format import LinkFormat
from hdl.records import parse_json

# raised whenever the meaning of the file changes
MANIFEST_SCHEMA = 5
MANIFEST = "manifest.json"
# keys that are said only where there is something to say
OPTIONAL = frozenset({"network_mhz", "state", "ethernet"})
# of the sources, in order of compilation
FILE_LIST = "files.f"
COMMAND = "dagtrain emit"


class DeliveryError(DagtrainError):
    """Delivered files that are not what the manifest says; the message names the files and the command."""


@dataclass(frozen=True, kw_only=True)
class PortRecord:
    """A port of the device top."""

    name: str
    width: int
    direction: Direction


@dataclass(frozen=True, kw_only=True)
class ImageRecord:
    """A memory that starts from a file."""

    # of the graph, and the name in `Layer.images`
    node: str
    image: str
    # of words in hexadecimal, below the device's folder, and the parameter of the top that names it
    file: str
    parameter: str
    # Verilog path of the array below the top
    path: str
    # words, and bits a word
    depth: int
    width: int
    # training state: what it holds at the end is a result
    is_state: bool


@dataclass(frozen=True, kw_only=True)
class HostRecord:
    """A stream of the top that belongs to the host."""

    # of the graph
    node: str
    # prefix of the port's three signals
    net: str
    # seen from the device
    direction: Direction
    payload_bits: int
    beats_per_frame: int


@dataclass(frozen=True, kw_only=True)
class WeightRecord:
    """A stream of new weights, once a batch."""

    edge: str
    # prefix of its three nets in the top
    net: str
    beats_per_batch: int


@dataclass(frozen=True, kw_only=True)
class StreamRecord:
    """A stream inside the top."""

    # prefix of its three nets
    net: str
    # a node, or a part such as "FIFO of <edge>", "sender of <edge>", "network port"
    writer: str
    reader: str
    payload_bits: int


@dataclass(frozen=True, kw_only=True)
class CopyRecord:
    """A part that gives what it gets: one stream in, the same beats on every stream out."""

    # as `StreamRecord` has it
    part: str
    # beats that it holds: a FIFO; 0: a fork or a wire
    depth: int


@dataclass(frozen=True, kw_only=True)
class ContentsRecord:
    """What a region of DRAM starts with: tensors of elements packed into words, low bits first."""

    # of the graph, and the name in `Layer.images`
    node: str
    image: str
    # training state: what stands there at the end is a result
    is_state: bool
    # whether it comes by streams, and the image leaves it out
    loaded: bool = False
    tensors: int
    # of a tensor
    elements: int
    element_bits: int
    # bits of the words that elements are packed into, which divide those of the port; words of a burst, at multiples of
    # which tensors begin
    word_bits: int
    burst: int
    # elements that the layer takes a beat
    lanes: int

    def beats(self, region: Sequence[int], form: AxiFormat) -> list[int]:
        """Beats of all tensors, of the region's words."""
        unit = self._unit(form)
        words = regroup(region, form.data_bits, self.word_bits)
        return [beat for tensor in range(self.tensors) for beat in unit.beats(words, tensor, self.lanes)]

    def used(self, form: AxiFormat) -> int:
        """Words of the region until the end of its last tensor, behind which nobody writes."""
        unit = self._unit(form)
        narrow = (self.tensors - 1) * unit.tensor_bursts * unit.burst + unit.tensor_words
        return -(-narrow * self.word_bits // form.data_bits)

    def words(self, beats: Sequence[int], form: AxiFormat) -> list[int]:
        """The inverse of `beats`."""
        each = self.elements // self.lanes
        tensors = [beats[at : at + each] for at in range(0, len(beats), each)]
        return regroup(self._unit(form).image(tensors, self.lanes), self.word_bits, form.data_bits)

    def _unit(self, form: AxiFormat) -> DramFifo:
        return DramFifo(
            format=form.narrowed(self.word_bits),
            element_bits=self.element_bits,
            x_lanes=self.lanes,
            y_lanes=self.lanes,
            elements=self.elements,
            burst=self.burst,
            prefetch=self.burst,
            capacity=self.tensors,
        )


@dataclass(frozen=True, kw_only=True)
class RegionRecord:
    """A part of the DRAM."""

    # an edge of the graph, or a node and its ring
    name: str
    # first word, and words
    base: int
    words: int
    # None: anything
    contents: ContentsRecord | None


@dataclass(frozen=True, kw_only=True)
class MemoryRecord:
    """A DRAM channel behind an AXI4 port of the device."""

    # prefix of the port's signals
    port: str
    format: AxiFormat
    # what the host loads before the first frame: words in hexadecimal with addresses
    image: str
    # in use
    words: int
    regions: tuple[RegionRecord, ...]


@dataclass(frozen=True, kw_only=True)
class CableRecord:
    """A cable at a port of the device."""

    port: int
    # at the other end
    device: str
    device_port: int
    bits_per_s: int


@dataclass(frozen=True, kw_only=True)
class NetworkRecord:
    """The device's network port: AXI4-Stream `net_tx` and `net_rx`."""

    format: LinkFormat
    # number of the device in the cluster
    device: int
    # None: all devices hang on one switch; else ports have `net_tx_<port>` and `net_rx_<port>` each
    cables: tuple[CableRecord, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class EndRecord:
    """A device on the Ethernet, or the host."""

    # number in the cluster; 65535: the host
    number: int
    # as "02:00:00:00:00:01" and "10.0.0.1"
    mac: Annotated[str, Field(pattern=r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$")]
    ip: Annotated[str, Field(pattern=r"^\d{1,3}(\.\d{1,3}){3}$")]

    @property
    def address(self) -> Address:
        """As numbers."""
        ip = 0
        for part in self.ip.split("."):
            ip = ip << 8 | int(part) & 0xFF
        return Address(number=self.number, mac=int(self.mac.replace(":", ""), 16), ip=ip)


@dataclass(frozen=True, kw_only=True)
class HostStreamRecord:
    """A stream of this device whose other end is the host, over the network."""

    # "image", "label", "load": to the device; "result", "dump": from it
    carries: str
    # of the graph; "" of state
    node: str
    stream_number: int
    element_bits: int
    # of a tensor; 0: no tensors, each word holds one
    elements: int
    # that the receiver holds: the credits of the sender
    words: int


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """A file that all devices of a cluster share."""

    # from the device's folder
    file: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True, kw_only=True)
class EthernetRecord:
    """The device's Ethernet port, `mac_tx` and `mac_rx`."""

    # "axi-stream" or "avalon-st"
    mac_port: str
    # of a MAC with clocks of its own, and of its beats; None: it is at `clk`, and as wide as words
    mac_mhz: float | None = None
    mac_word_bits: int | None = None
    # of a beat and of the greatest IP packet
    word_bits: int
    mtu: int
    own: EndRecord
    # in the order of their flags in `net_faults`
    peers: tuple[EndRecord, ...]
    # first 32 bits of the plan's SHA-256, as 8 hexadecimal digits
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{8}$")]
    # frames on their way to a peer; cycles of the device
    window: int
    timer_cycles: int
    ack_cycles: int
    # of the host, if it is a peer
    host_timer_cycles: int
    host_streams: tuple[HostStreamRecord, ...]
    # what the host's program and Wireshark are told of the network
    files: tuple[FileRecord, ...]


@dataclass(frozen=True)
class CodedRecord:
    """How elements lie in words where they are coded: `hdl.engine.codec.bursts`."""

    # bits that small elements lose, and those that they keep
    drop: int
    window: int
    # elements of a burst, which is as long as a word if it is not coded
    lanes: int


@dataclass(frozen=True, kw_only=True)
class CrossingRecord:
    """A stream that leaves or enters over the network."""

    edge: str
    stream_number: int
    source: str
    target: str
    kind: str
    element_bits: int
    elements: int
    # that the receiver's FIFO holds: the credits of the sender
    words: int
    # that it frees before it returns their credits
    credit_batch: int
    # None: as they are
    coded: CodedRecord | None = None


@dataclass(frozen=True, kw_only=True)
class StateRecord:
    """The streams by which state is loaded and dumped: docs/state.md."""

    # prefixes of their three signals, ports of the top or, where the host has streams for them, nets in it
    load: str
    dump: str
    # frames a batch; times that START and LOADs are sent
    batch: int
    rounds: int
    # in the chain's order
    links: tuple[StateLink, ...]

    @property
    def load_words(self) -> int:
        """Words of all rounds."""
        return self.rounds * (2 + sum(1 + link.words for link in self.links if link.words))


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """See the module."""

    schema_version: int
    device: str
    part: str
    clock_mhz: float
    # of the network, in whose cycles plans count, where that is another clock; words pass at it, `net_clk`, and frames
    # at the device's own
    network_mhz: float | None = None
    # pipeline interval that the design is for, and the least staleness, in frames, at which it never waits for weights
    cycles_per_frame: int
    needed_staleness: int
    top: str
    ports: tuple[PortRecord, ...]
    # Verilog below the device's folder in order of compilation
    sources: tuple[str, ...]
    nodes: tuple[str, ...]
    images: tuple[ImageRecord, ...]
    host_ports: tuple[HostRecord, ...]
    weights: tuple[WeightRecord, ...]
    streams: tuple[StreamRecord, ...]
    copies: tuple[CopyRecord, ...]
    # by channel; None: no DRAM
    memory: tuple[MemoryRecord, ...] | None
    network: NetworkRecord | None
    egress: tuple[CrossingRecord, ...]
    ingress: tuple[CrossingRecord, ...]
    # None: version 0 of weights and all other state stand in the images
    state: StateRecord | None = None
    # None: words go over the network as they are, or there is none
    ethernet: EthernetRecord | None = None

    # an unknown key is an error
    __pydantic_config__ = ConfigDict(extra="forbid")

    @property
    def link_word_bits(self) -> int:
        """Bits of data of a word of the network, which the device has."""
        if self.ethernet is not None:
            return self.ethernet.word_bits
        assert self.network is not None
        return self.network.format.word_bits

    def to_json(self) -> str:
        """The file's text."""
        record = _ADAPTER.dump_python(self, mode="json")
        plain = {key: value for key, value in record.items() if key not in OPTIONAL or value is not None}
        if plain["network"] and plain["network"]["cables"] is None:
            del plain["network"]["cables"]
        for crossing in (*plain["egress"], *plain["ingress"]):
            if crossing["coded"] is None:
                del crossing["coded"]
        for region in (region for memory in plain["memory"] or () for region in memory["regions"]):
            if region["contents"] and not region["contents"]["loaded"]:
                del region["contents"]["loaded"]
        return json.dumps(plain, indent=1) + "\n"


_ADAPTER = TypeAdapter(Manifest)


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file.  Raises `DeliveryError` for a missing, damaged or foreign one."""
    again = f"run `{COMMAND}` again"
    try:
        document: Any = parse_json(path.read_text())
    except OSError as error:
        raise DeliveryError(f"{path} cannot be read: {error.strerror}", f"{again}") from error
    except ValueError as error:
        raise DeliveryError(f"{path} is damaged ({error})", f"{again}") from error
    found = document.get("schema_version") if isinstance(document, dict) else None
    if found != MANIFEST_SCHEMA:
        raise DeliveryError(f"{path} has schema version {found}, this version reads {MANIFEST_SCHEMA}", f"{again}")
    try:
        return _ADAPTER.validate_python(document)
    except ValidationError as error:
        listed = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:5])
        raise DeliveryError(f"{path} is damaged ({listed})", f"{again}") from error
