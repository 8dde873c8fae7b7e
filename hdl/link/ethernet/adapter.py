"""The MAC's side of an Ethernet port as a unit: beats of frames at the ports that a vendor's MAC has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from myhdl import Signal, always, block, intbv

from hdl.link.ethernet.mac import MacBeats, avalon_receive, avalon_transmit, axi_stream_receive, axi_stream_transmit
from hdl.link.ethernet.sink import FrameSink
from hdl.memory import address_width
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.unit import Unit

# what a top calls the ports of its MAC begins with it
MAC_PREFIX = "mac_"
AXI_STREAM, AVALON = "axi-stream", "avalon-st"


def check_kind(kind: str) -> None:
    """Raises `ValueError` for a MAC that there are no wires for."""
    if kind not in (AXI_STREAM, AVALON):
        raise ValueError(f"a MAC is {AXI_STREAM} or {AVALON}, not {kind}")


def mac_inputs(kind: str, beats: MacBeats) -> dict[str, int]:
    """Ports of a MAC that it drives → bits."""
    bits, size = beats.bits, beats.bytes
    if kind == AXI_STREAM:
        names = {"tx_tready": 1, "rx_tvalid": 1, "rx_tdata": bits, "rx_tkeep": size, "rx_tlast": 1, "rx_tuser": 1}
    else:
        names = {
            "tx_ready": 1, "rx_valid": 1, "rx_data": bits, "rx_startofpacket": 1, "rx_endofpacket": 1,
            "rx_empty": address_width(size), "rx_error": 1,
        }  # fmt: skip
    return {MAC_PREFIX + name: width for name, width in names.items()}


def mac_outputs(kind: str, beats: MacBeats) -> dict[str, int]:
    """Ports of a MAC that are driven for it → bits."""
    bits, size = beats.bits, beats.bytes
    if kind == AXI_STREAM:
        names = {"tx_tvalid": 1, "tx_tdata": bits, "tx_tkeep": size, "tx_tlast": 1}
    else:
        names = {
            "tx_valid": 1, "tx_data": bits, "tx_startofpacket": 1, "tx_endofpacket": 1,
            "tx_empty": address_width(size), "tx_error": 1,
        }  # fmt: skip
    return {MAC_PREFIX + name: width for name, width in names.items()}


class MacWires:
    """The ports of a MAC, seen from here.  As a port ``mac`` they are called as in `mac_inputs` and `mac_outputs`."""

    def __init__(self, kind: str, beats: MacBeats) -> None:
        for name, width in {**mac_inputs(kind, beats), **mac_outputs(kind, beats)}.items():
            setattr(self, name.removeprefix(MAC_PREFIX), Signal(intbv(0)[width:]) if width > 1 else Signal(bool(0)))

    if TYPE_CHECKING:
        # which there are follows from the kind
        def __getattr__(self, name: str) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class MacAdapter(Unit):
    """Frames ``tx`` of an `hdl.link.ethernet.port.EthernetPort` to a MAC, and frames of the MAC to ``rx``.

    Inputs and outputs are the ports of the MAC, seen from here, as a top has them.

    Raises:
        ValueError: on creation, of a MAC that there are no wires for.
    """

    sink: FrameSink
    # `AXI_STREAM` or `AVALON`
    kind: str

    def __post_init__(self) -> None:
        check_kind(self.kind)

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {"tx": self.sink.frames.word_bits + 1, "rx": self.sink.beat_bits}

    @property
    def inputs(self) -> Mapping[str, int]:
        """See the base class; no constants."""
        return mac_inputs(self.kind, self.beats)

    @property
    def outputs(self) -> Mapping[str, int]:
        """See the base class."""
        return mac_outputs(self.kind, self.beats)

    @property
    def beats(self) -> MacBeats:
        """As wide as words."""
        return MacBeats(frames=self.sink.frames, bits=self.sink.frames.word_bits)

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        mac = MacWires(self.kind, self.beats)
        return mac_side(self.kind)(domain, streams["tx"], streams["rx"], mac, beats=self.beats)


def mac_side(kind: str) -> Callable[..., Instances]:
    """The block between frames and the ports of such a MAC."""
    side: Callable[..., Instances] = axi_stream_mac if kind == AXI_STREAM else avalon_mac
    return side


@block
def axi_stream_mac(domain: ClockReset, tx: Stream, rx: Stream, mac: MacWires, *, beats: MacBeats) -> Instances:
    """See `MacAdapter`.  Cost: that of `axi_stream_receive`; latency 0.

    Ports:
        tx: in, stream of ``beats.sent_bits`` bits.
        rx: out, stream of ``beats.given_bits`` bits; its ready is not looked at.
        mac: in and out, ports of an AXI4-Stream MAC; those out in the same cycle as ``tx``.
    """
    del domain
    sends = axi_stream_transmit(tx, mac.tx_tvalid, mac.tx_tready, mac.tx_tdata, mac.tx_tkeep, mac.tx_tlast, beats=beats)
    takes = axi_stream_receive(mac.rx_tvalid, mac.rx_tdata, mac.rx_tkeep, mac.rx_tlast, mac.rx_tuser, rx, beats=beats)
    return sends, takes


@block
def avalon_mac(domain: ClockReset, tx: Stream, rx: Stream, mac: MacWires, *, beats: MacBeats) -> Instances:
    """See `MacAdapter`.  Cost: a flip-flop; latency 0.

    Ports:
        tx: in, stream of ``beats.sent_bits`` bits.
        rx: out, stream of ``beats.given_bits`` bits; its ready is not looked at.
        mac: in and out, ports of an Avalon-ST MAC; those out in the same cycle as ``tx``, but for ``tx_error``, which
            is always 0, since no frame is given up; ``rx_startofpacket`` is not looked at.
    """
    sends = avalon_transmit(
        domain, tx, mac.tx_valid, mac.tx_ready, mac.tx_data, mac.tx_startofpacket, mac.tx_endofpacket, mac.tx_empty,
        beats=beats,
    )  # fmt: skip
    takes = avalon_receive(mac.rx_valid, mac.rx_data, mac.rx_endofpacket, mac.rx_empty, mac.rx_error, rx, beats=beats)

    @always(domain.clk.posedge)
    def never() -> None:
        mac.tx_error.next = False

    return sends, takes, never
