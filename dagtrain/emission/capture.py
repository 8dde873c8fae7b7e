"""Frames written to a file that Wireshark reads: an interface for each port, stamps in nanoseconds.

The format is pcapng, of which three blocks are enough (IETF draft-ietf-opsawg-pcapng, sections 4.1 to 4.3).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_ORDER, _LINKTYPE_ETHERNET = 0x1A2B3C4D, 1
_END, _IF_NAME, _IF_TSRESOL, _EPB_FLAGS = 0, 2, 9, 2
# of a packet: it comes in at the interface, it leaves there
_INBOUND, _OUTBOUND = 1, 2
# digits behind the second
_DIGITS = 9


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + _padded(value)


def _block(kind: int, body: bytes) -> bytes:
    length = struct.pack("<I", len(body) + 12)
    return struct.pack("<I", kind) + length + body + length


class Capture:
    """A capture that is being written."""

    def __init__(self, stream: BinaryIO, ports: Sequence[str], clock_hz: int) -> None:
        """``ports`` are names of interfaces, whose places `write` takes; stamps are cycles of ``clock_hz``."""
        self._stream, self._clock_hz = stream, clock_hz
        # of unknown length
        stream.write(_block(_SECTION, struct.pack("<IHHq", _ORDER, 1, 0, -1)))
        for port in ports:
            options = _option(_IF_NAME, port.encode()) + _option(_IF_TSRESOL, bytes([_DIGITS])) + _option(_END, b"")
            stream.write(_block(_INTERFACE, struct.pack("<HHI", _LINKTYPE_ETHERNET, 0, 0) + options))

    def write(self, port: int, frame: bytes, cycle: int, *, arrives: bool | None = None) -> None:
        """A frame without FCS as it passes a port at a cycle.  ``arrives``: whether it comes to whom the port belongs,
        or from there; None: it is not said."""
        high, low = divmod(cycle * 10**_DIGITS // self._clock_hz, 1 << 32)
        head = struct.pack("<IIIII", port, high, low, len(frame), len(frame))
        way = b""
        if arrives is not None:
            way = _option(_EPB_FLAGS, struct.pack("<I", _INBOUND if arrives else _OUTBOUND)) + _option(_END, b"")
        self._stream.write(_block(_PACKET, head + _padded(frame) + way))


@contextmanager
def capture(path: Path, ports: Sequence[str], clock_hz: int) -> Iterator[Capture]:
    """A capture file for the time of a context; arguments as of `Capture`."""
    with path.open("wb") as stream:
        yield Capture(stream, ports, clock_hz)
