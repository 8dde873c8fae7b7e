"""The MAC's side of an Ethernet port as a unit: beats of frames at the ports that a vendor's MAC has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from myhdl import always, block

from hdl.link.ethernet.mac import MacBeats, avalon_receive, avalon_transmit, axi_stream_receive, axi_stream_transmit
from hdl.link.ethernet.sink import FrameSink
from hdl.memory import address_width
from hdl.signals import Bit, Bits, ClockReset, Instances
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
        adapter = axi_stream_mac if self.kind == AXI_STREAM else avalon_mac
        ports = self.signals(self.inputs), self.signals(self.outputs)
        return adapter(domain, streams["tx"], streams["rx"], *ports[0], *ports[1], beats=self.beats)


@block
def axi_stream_mac(
    domain: ClockReset,
    tx: Stream,
    rx: Stream,
    mac_tx_tready: Bit,
    mac_rx_tvalid: Bit,
    mac_rx_tdata: Bits,
    mac_rx_tkeep: Bits,
    mac_rx_tlast: Bit,
    mac_rx_tuser: Bit,
    mac_tx_tvalid: Bit,
    mac_tx_tdata: Bits,
    mac_tx_tkeep: Bits,
    mac_tx_tlast: Bit,
    *,
    beats: MacBeats,
) -> Instances:
    """See `MacAdapter`.  Cost: that of `axi_stream_receive`; latency 0.

    Ports:
        tx: in, stream of ``beats.sent_bits`` bits.
        rx: out, stream of ``beats.given_bits`` bits; its ready is not looked at.
        mac_tx_tready, mac_rx_tvalid, mac_rx_tlast, mac_rx_tuser: in, 1 bit.
        mac_rx_tdata: in, ``beats.bits`` bits.
        mac_rx_tkeep: in, ``beats.bytes`` bits.
        mac_tx_tvalid, mac_tx_tlast: out, 1 bit, in the same cycle as ``tx``.
        mac_tx_tdata: out, ``beats.bits`` bits, likewise.
        mac_tx_tkeep: out, ``beats.bytes`` bits, likewise.
    """
    del domain
    sends = axi_stream_transmit(tx, mac_tx_tvalid, mac_tx_tready, mac_tx_tdata, mac_tx_tkeep, mac_tx_tlast, beats=beats)
    takes = axi_stream_receive(mac_rx_tvalid, mac_rx_tdata, mac_rx_tkeep, mac_rx_tlast, mac_rx_tuser, rx, beats=beats)
    return sends, takes


@block
def avalon_mac(
    domain: ClockReset,
    tx: Stream,
    rx: Stream,
    mac_tx_ready: Bit,
    mac_rx_valid: Bit,
    mac_rx_data: Bits,
    mac_rx_startofpacket: Bit,
    mac_rx_endofpacket: Bit,
    mac_rx_empty: Bits,
    mac_rx_error: Bit,
    mac_tx_valid: Bit,
    mac_tx_data: Bits,
    mac_tx_startofpacket: Bit,
    mac_tx_endofpacket: Bit,
    mac_tx_empty: Bits,
    mac_tx_error: Bit,
    *,
    beats: MacBeats,
) -> Instances:
    """See `MacAdapter`.  Cost: a flip-flop; latency 0.

    Ports:
        tx: in, stream of ``beats.sent_bits`` bits.
        rx: out, stream of ``beats.given_bits`` bits; its ready is not looked at.
        mac_tx_ready, mac_rx_valid, mac_rx_endofpacket, mac_rx_error: in, 1 bit.
        mac_rx_startofpacket: in, 1 bit, not looked at.
        mac_rx_data: in, ``beats.bits`` bits.
        mac_rx_empty: in, bits for a number of bytes below ``beats.bytes``.
        mac_tx_valid, mac_tx_startofpacket, mac_tx_endofpacket: out, 1 bit, in the same cycle as ``tx``.
        mac_tx_data: out, ``beats.bits`` bits, likewise.
        mac_tx_empty: out, as wide as ``mac_rx_empty``, likewise.
        mac_tx_error: out, 1 bit, always 0: no frame is given up.
    """
    sends = avalon_transmit(
        domain, tx, mac_tx_valid, mac_tx_ready, mac_tx_data, mac_tx_startofpacket, mac_tx_endofpacket, mac_tx_empty,
        beats=beats,
    )  # fmt: skip
    takes = avalon_receive(mac_rx_valid, mac_rx_data, mac_rx_endofpacket, mac_rx_empty, mac_rx_error, rx, beats=beats)

    @always(domain.clk.posedge)
    def never() -> None:
        mac_tx_error.next = False

    return sends, takes, never
