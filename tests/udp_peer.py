"""A device on a blocking UDP socket that shares no code with the project: the network as docs/network.md tells it.

It sends back every word of one stream, complemented, on another.  It has one frame on its way at a time, and loses,
doubles and corrupts frames of both ways at random.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
import time

DATA, ACK, NAK, HELLO, READY = 1, 2, 3, 4, 5
HEADER = ">BBHHHIIHI"
RESEND_SECONDS = 0.02


def crc32c(data: bytes) -> int:
    """Bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class EchoDevice(threading.Thread):
    """Takes tensors of ``words`` words of stream ``heard`` and says them again on stream ``said``."""

    def __init__(
        self, *, number: int, word_bytes: int, digest: int, epoch: int, heard: int, said: int, words: int, room: int,
        trouble: float = 0.0, seed: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(0.005)
        self.place: tuple[str, int] = self.socket.getsockname()
        self.number, self.size, self.digest, self.epoch = number, word_bytes, digest, epoch
        self.heard, self.said, self.words, self.room = heard, said, words, room
        self.trouble, self.rng = trouble, random.Random(seed)
        self.host: tuple[str, int] | None = None
        self.ended = threading.Event()
        # numbers of frames; words that wait to be said, and how many may be; what is on its way
        self.expected = self.next = 0
        self.waiting: list[bytes] = []
        self.credits, self.owed, self.position, self.took = room, 0, 0, 0
        self.flight: bytes | None = None
        self.sent_at = 0.0
        self.failure = ""

    def run(self) -> None:
        """Until `ended` is set."""
        while not self.ended.is_set():
            try:
                data, self.host = self.socket.recvfrom(65536)
                if self.rng.random() >= self.trouble:
                    self.hear(data)
            except TimeoutError:
                pass
            except Exception as error:
                self.failure = repr(error)
                return
            if self.host is not None:
                self.speak()
        self.socket.close()

    def frame(self, kind: int, payload: bytes = b"") -> bytes:
        """A frame to the host."""
        head = struct.pack(
            HEADER, 1 << 4 | kind, 0, self.number, 0xFFFF, self.epoch, self.next, self.expected,
            len(payload) // self.size, self.digest,
        )  # fmt: skip
        return head + payload + struct.pack(">I", crc32c(head + payload))

    def send(self, data: bytes) -> None:
        """Over the bad network."""
        assert self.host is not None
        for _ in range(1 + (self.rng.random() < self.trouble)):
            if self.rng.random() < self.trouble:
                place = self.rng.randrange(8 * len(data))
                data = bytes(b ^ (1 << place % 8 if k == place // 8 else 0) for k, b in enumerate(data))
            if self.rng.random() >= self.trouble:
                self.socket.sendto(data, self.host)

    def hear(self, data: bytes) -> None:
        """A datagram."""
        if len(data) < 26 or crc32c(data[:-4]) != struct.unpack(">I", data[-4:])[0]:
            return
        kind, flags, source, target, epoch, sequence, acknowledged, beats, digest = struct.unpack(HEADER, data[:22])
        assert kind >> 4 == 1
        assert (flags, source, target) == (0, 0xFFFF, self.number)
        assert beats * self.size == len(data) - 26
        if (epoch, digest) != (self.epoch, self.digest):
            return
        if self.flight is not None and acknowledged == self.next + 1:
            self.flight, self.next = None, self.next + 1
        if kind & 15 == HELLO:
            self.send(self.frame(READY))
        elif kind & 15 == DATA:
            if sequence == self.expected:
                self.expected += 1
                self.unpack(data[22:-4])
            self.send(self.frame(NAK if sequence > self.expected else ACK))

    def unpack(self, payload: bytes) -> None:
        """Groups of descriptors and words."""
        at = 0
        while at < len(payload):
            told = [payload[k : k + 8] for k in range(at, at + self.size, 8)]
            at += self.size
            for stream, words, order, flags, credits in (struct.unpack(">HBBB3s", cell) for cell in told):
                if flags & 2:
                    assert stream == self.said
                    self.credits += int.from_bytes(credits, "big")
                for k in range(words):
                    assert (stream, (order + k) % 256) == (self.heard, self.took % 256)
                    self.took += 1
                    self.owed += 1
                    word = payload[at : at + self.size]
                    self.waiting.append(bytes(255 - byte for byte in word))
                    at += self.size
                if words:
                    assert bool(flags & 1) == (self.took % self.words == 0)

    def speak(self) -> None:
        """One frame at a time, again after a while."""
        now = time.monotonic()
        if self.flight is None:
            count = min(self.credits, len(self.waiting), 8, self.words - self.position % self.words)
            cells = []
            if self.owed:
                cell = struct.pack(">HBBB3s", self.heard, 0, 0, 2, self.owed.to_bytes(3, "big"))
                cells.append(cell.ljust(self.size, b"\0"))
            if count:
                last = (self.position + count) % self.words == 0
                cell = struct.pack(">HBBB3s", self.said, count, self.position % 256, last, bytes(3))
                cells += [cell.ljust(self.size, b"\0"), *self.waiting[:count]]
            if not cells:
                return
            del self.waiting[:count]
            self.owed, self.credits, self.position = 0, self.credits - count, self.position + count
            self.flight = self.frame(DATA, b"".join(cells))
        elif now - self.sent_at < RESEND_SECONDS:
            return
        self.sent_at = now
        # what it acknowledges is newer than what it did
        self.send(self.frame(DATA, self.flight[22:-4]))
