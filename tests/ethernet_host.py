"""A host on a plain blocking UDP socket, which shares no code with what it is used to test.

python tests/ethernet_host.py ADDRESSES.toml GATEWAY:PORT WORK.json

WORK.json: {"send": {stream: [words as hexadecimal numbers]}, "ends": {stream: words of a tensor; 0: no tensors},
"want": {stream: words}}.  It resets all devices, sends the words as credits allow, and prints, once so many have come,
{stream: [words]}.
"""

import json
import select
import socket
import struct
import sys
import time
import tomllib

from ethernet_peer import ACK, DATA, HEAD, HELLO, HOST, NAK, READY, RESET, crc32c

WINDOW, TIMER, SECONDS = 4, 0.3, 120


class Pair:
    """What is between the host and a device."""

    def __init__(self, host, number, streams):
        self.host, self.number = host, number
        self.streams = {s["number"]: s for s in streams}
        self.begin()

    def begin(self):
        self.greeted, self.expected, self.next, self.oldest = False, 0, 0, 0
        self.sent, self.due, self.nagged, self.beaten = [], False, False, time.monotonic()
        self.credits = {number: s["credits"] for number, s in self.streams.items()}
        self.places = dict.fromkeys(self.streams, 0)
        self.freed = dict.fromkeys(self.streams, 0)

    def send(self, kind, payload=b"", sequence=None):
        host = self.host
        sequence = self.next if sequence is None else sequence
        beats = len(payload) // host.size
        head = struct.pack(
            HEAD, 16 | kind, 0, HOST, self.number, host.epoch, sequence, self.expected, beats, host.digest
        )  # fmt: skip
        host.socket.sendto(head + payload + struct.pack(">I", crc32c(head + payload)), host.gateway)
        self.due = False

    def hear(self, kind, sequence, acknowledged, payload):
        self.greeted = True
        count = (acknowledged - self.oldest) % 2**32
        if 0 < count <= len(self.sent):
            self.sent, self.oldest, self.beaten = self.sent[count:], acknowledged, time.monotonic()
        if kind == NAK and acknowledged == self.oldest:
            self.again()
        if kind == HELLO:
            self.send(READY)
        if kind == DATA:
            self.due = True
            if sequence == self.expected:
                self.expected, self.nagged = (sequence + 1) % 2**32, False
                self.take(payload)
            elif 0 < (sequence - self.expected) % 2**32 < 2**31 and not self.nagged:
                self.nagged = True
                self.send(NAK)

    def again(self):
        self.beaten = time.monotonic()
        for index, payload in enumerate(self.sent):
            self.send(DATA, payload, (self.oldest + index) % 2**32)

    def take(self, payload):
        size, at = self.host.size, 0
        while at < len(payload):
            beat, at = payload[at : at + size], at + size
            for number, words, sequence, rest in struct.iter_unpack(">HBBI", beat):
                if rest >> 24 & 2:
                    self.credits[number] += rest & 0xFFFFFF
                elif words:
                    assert sequence == self.places[number] % 256, "sequence of words"
                    self.places[number] += words
                    self.freed[number] += words
                    end = at + words * size
                    self.host.came[number] += [
                        int.from_bytes(payload[k : k + size], "little") for k in range(at, end, size)
                    ]
                    at = end

    def work(self):
        while len(self.sent) < WINDOW and (payload := self.pack()):
            self.sent.append(payload)
            self.send(DATA, payload, self.next)
            self.next = (self.next + 1) % 2**32
        if self.sent and time.monotonic() - self.beaten > TIMER:
            self.again()
        if self.due:
            self.send(ACK)

    def pack(self):
        """Descriptors of credits, or of words of one stream with these words."""
        host = self.host
        paid = [(number, words) for number, words in self.freed.items() if 4 * words >= self.streams[number]["credits"]]
        if paid:
            (number, words), *_ = paid
            self.freed[number] = 0
            return struct.pack(">HBBI", number, 0, 0, 2 << 24 | words).ljust(host.size, b"\0")
        for number, words in host.waiting.items():
            if number not in self.streams or not words:
                continue
            tensor = host.ends[number]
            left = tensor - self.places[number] % tensor if tensor else len(words)
            most = host.mtu // host.size - 3
            count = min(len(words), self.credits[number], left, most, 255)
            if count:
                part = b"".join(word.to_bytes(host.size, "little") for word in words[:count])
                last = bool(tensor) and count == left
                told = struct.pack(">HBBI", number, count, self.places[number] % 256, last << 24)
                del words[:count]
                self.credits[number] -= count
                self.places[number] += count
                return told.ljust(host.size, b"\0") + part
        return b""


class Host:
    def __init__(self, told, gateway, work):
        self.size, self.mtu, self.digest = told["word_bits"] // 8, told["mtu"] - 54, int(told["digest"], 16)
        self.gateway, self.epoch = gateway, int(time.time()) % 2**16
        self.waiting = {int(number): [int(word, 16) for word in words] for number, words in work["send"].items()}
        self.ends = {int(number): words for number, words in work["ends"].items()}
        self.want = {int(number): words for number, words in work["want"].items()}
        self.came = {s["number"]: [] for s in told["stream"]}
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("", 0))
        self.pairs = {
            device["number"]: Pair(self, device["number"], [s for s in told["stream"] if s["device"] == device["name"]])
            for device in told["device"]
        }

    def listen(self, seconds):
        """Frames of this epoch and plan, of devices; each must be told of its pair, or of none."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and select.select([self.socket], [], [], left)[0]:
            data = self.socket.recv(65536)
            if len(data) < 26 or struct.unpack(">I", data[-4:])[0] != crc32c(data[:-4]):
                continue
            kind, _, source, target, epoch, sequence, acknowledged, beats, digest = struct.unpack(HEAD, data[:22])
            right = (target, epoch, digest) == (HOST, self.epoch, self.digest) and len(data) == 26 + beats * self.size
            if right and source in self.pairs:
                self.pairs[source].hear(kind & 15, sequence, acknowledged, data[22:-4])

    def reset(self):
        """All devices to an epoch that each of them thinks later than its own."""
        for step in (0, 21845, 21845, 21845) * 3:
            self.epoch = (self.epoch + step) % 2**16
            for pair in self.pairs.values():
                pair.begin()
            for _ in range(10):
                for pair in self.pairs.values():
                    if not pair.greeted:
                        pair.send(RESET)
                self.listen(0.1)
                if all(pair.greeted for pair in self.pairs.values()):
                    return
        raise SystemExit("no answer")

    def run(self):
        self.reset()
        end = time.monotonic() + SECONDS
        while any(len(self.came[number]) < words for number, words in self.want.items()):
            if time.monotonic() > end:
                raise SystemExit(f"came: { {number: len(words) for number, words in self.came.items()} }")
            for pair in self.pairs.values():
                pair.work()
            self.listen(0.005)
        print(json.dumps({number: [f"{word:x}" for word in self.came[number]] for number in self.want}))


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        described = tomllib.load(file)
    with open(sys.argv[3]) as file:
        asked = json.load(file)
    place = sys.argv[2].split(":")
    Host(described, (place[0], int(place[1])), asked).run()
