"""A device on a plain blocking UDP socket, which shares no code with what it is used to test.

python tests/ethernet_peer.py ADDRESSES.toml NUMBER [--digest HEX] [--pause SECONDS] [--anew FRAMES]

It prints its port, answers HELLO and RESET, takes images and labels, and gives a record back for each: loss = (sum of
the image's codes, the label and the counts of all nodes) modulo 2^15, right = the loss's lowest bit.  A node of its
chain counts in the low 8 bits of its first word: behind a batch the sum of its images is added.  Behind so many frames
it begins anew as when it was switched on.
"""

import select
import socket
import struct
import sys
import time
import tomllib

HOST, DATA, ACK, NAK, HELLO, READY, RESET = 0xFFFF, 1, 2, 3, 4, 5, 6
START, LOAD, RUN, DUMP, STATE = 1, 2, 3, 4, 5
WINDOW, TIMER, HEAD = 4, 0.05, ">BBHHHIIHI"


TABLE = list(range(256))
for _ in range(8):
    TABLE = [(rest >> 1) ^ (0x82F63B78 * (rest & 1)) for rest in TABLE]


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


class Device:
    def __init__(self, told, number, digest, pause, anew):
        self.number, self.digest, self.pause, self.anew = number, digest, pause, anew
        self.size, self.mtu, self.batch = told["word_bits"] // 8, told["mtu"], told["batch"]
        me = next(device for device in told["device"] if device["number"] == number)
        self.streams = {s["carries"]: s for s in told["stream"] if s["device"] == me["name"]}
        self.by_number = {s["number"]: s for s in self.streams.values()}
        self.links = [link["words"] for link in me.get("link", []) if link["words"]]
        self.epoch, self.host = 12345, None
        self.begin()

    def begin(self):
        self.expected = self.next = self.oldest = 0
        self.sent, self.due, self.beaten, self.nagged = [], False, time.monotonic(), False
        self.places = dict.fromkeys(self.by_number, 0)
        self.credits = {number: s["credits"] for number, s in self.by_number.items()}
        self.queues = {carries: [] for carries in self.streams}
        self.out = {"result": [], "dump": []}
        self.states, self.asked, self.allowed, self.frames, self.total = [], [], 0, 0, 0

    def send(self, kind, payload=b"", sequence=None):
        sequence = self.next if sequence is None else sequence
        beats, ends = len(payload) // self.size, (self.number, HOST)
        head = struct.pack(HEAD, 16 | kind, 0, *ends, self.epoch, sequence, self.expected, beats, self.digest)
        self.socket.sendto(head + payload + struct.pack(">I", crc32c(head + payload)), self.host)
        self.due = False

    def hear(self, data, place):
        if len(data) < 26 or struct.unpack(">I", data[-4:])[0] != crc32c(data[:-4]):
            return
        kind, flags, source, target, epoch, sequence, acknowledged, beats, digest = struct.unpack(HEAD, data[:22])
        if (source, target, flags, kind >> 4) != (HOST, self.number, 0, 1) or len(data) != 26 + beats * self.size:
            return
        self.host = place
        if digest != self.digest:
            self.send(HELLO)
        elif kind == 16 | RESET and 0 < (epoch - self.epoch) % 65536 < 32768:
            self.epoch = epoch
            self.begin()
            self.send(HELLO)
        elif epoch == self.epoch:
            self.heed(kind & 15, sequence, acknowledged, data[22:-4])

    def heed(self, kind, sequence, acknowledged, payload):
        if 0 < (acknowledged - self.oldest) % 2**32 <= len(self.sent):
            self.sent = self.sent[(acknowledged - self.oldest) % 2**32 :]
            self.oldest, self.beaten = acknowledged, time.monotonic()
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
        at = 0
        while at < len(payload):
            beat, at = payload[at : at + self.size], at + self.size
            for number, words, sequence, rest in struct.iter_unpack(">HBBI", beat):
                if rest >> 24 & 2:
                    self.credits[number] += rest & 0xFFFFFF
                elif words:
                    assert sequence == self.places[number] % 256, "sequence of words"
                    self.places[number] += words
                    came = [payload[k : k + self.size] for k in range(at, at + words * self.size, self.size)]
                    self.queues[self.by_number[number]["carries"]] += came
                    at += words * self.size
                    self.asked.append((number, words))

    def work(self):
        words = self.queues.get("load", [])
        # a DUMP, and all behind it, waits for the batches of every RUN in front of it
        while words and (words[0][0] != DUMP or not self.allowed):
            count = 1 + int.from_bytes(words[0][4:8], "little")
            if len(words) < count:
                break
            self.act(words[0][0], [int.from_bytes(word[:8], "little") for word in words[:count]])
            del words[:count]
        while "image" in self.queues and self.frame():
            pass
        while len(self.sent) < WINDOW and (payload := self.pack()):
            self.sent.append(payload)
            self.send(DATA, payload, self.next)
            self.next = (self.next + 1) % 2**32

    def act(self, kind, words):
        if kind == START:
            self.states = []
        if kind == LOAD:
            assert len(words) - 1 == self.links[len(self.states)], "words of a node"
            self.states.append(words[1:])
            return
        if kind == RUN and "image" in self.streams:
            self.allowed += words[1]
        if kind == DUMP:
            for state in self.states:
                self.out["dump"] += [STATE | len(state) << 32, *state]
        self.out["dump"] += words

    def frame(self):
        image = self.streams["image"]
        bits, per = image["element_bits"], 8 * self.size // image["element_bits"]
        words = -(-image["elements"] // per)
        if not self.allowed or len(self.queues["image"]) < words or not self.queues["label"]:
            return False
        taken = [self.queues["image"].pop(0) for _ in range(words)]
        codes = [int.from_bytes(word, "little") >> bits * k & (1 << bits) - 1 for word in taken for k in range(per)]
        total = sum(codes[: image["elements"]])
        label = int.from_bytes(self.queues["label"].pop(0), "little") & (1 << self.streams["label"]["element_bits"]) - 1
        loss = (total + label + sum(state[0] & 255 for state in self.states)) % 2**15
        wide = self.streams["result"]["element_bits"]
        self.out["result"].append(loss | (loss & 1) << wide)
        self.total, self.frames = self.total + total, self.frames + 1
        if self.frames == self.batch:
            for state in self.states:
                state[0] = state[0] & ~255 | (state[0] + self.total) & 255
            self.frames, self.total, self.allowed = 0, 0, self.allowed - 1
            time.sleep(self.pause)
        self.anew -= 1
        if self.anew == 0:
            self.epoch = 0
            self.begin()
        return self.anew != 0

    def pack(self):
        """Descriptors of one stream and the words of it, or of credits."""
        if self.asked:
            number, words = self.asked.pop(0)
            return struct.pack(">HBBI", number, 0, 0, 2 << 24 | words).ljust(self.size, b"\0")
        for carries, queue in self.out.items():
            number = self.streams[carries]["number"] if carries in self.streams else None
            count = min(len(queue), self.credits.get(number, 0), 1 if carries == "result" else 8)
            if count:
                words = b"".join(word.to_bytes(self.size, "little") for word in queue[:count])
                told = struct.pack(">HBBI", number, count, self.places[number] % 256, (carries == "result") << 24)
                del queue[:count]
                self.credits[number], self.places[number] = self.credits[number] - count, self.places[number] + count
                return told.ljust(self.size, b"\0") + words
        return b""

    def run(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        print(self.socket.getsockname()[1], flush=True)
        while True:
            if select.select([self.socket], [], [], TIMER)[0]:
                self.hear(*self.socket.recvfrom(65536))
            self.work()
            if self.sent and time.monotonic() - self.beaten > TIMER:
                self.again()
            if self.due:
                self.send(ACK)
            if self.host and not self.epoch:
                self.send(HELLO)


if __name__ == "__main__":
    options = dict(zip(sys.argv[3::2], sys.argv[4::2], strict=True))
    with open(sys.argv[1], "rb") as file:
        described = tomllib.load(file)
    chosen = int(options.get("--digest", described["digest"]), 16)
    Device(described, int(sys.argv[2]), chosen, float(options.get("--pause", 0)), int(options.get("--anew", 0))).run()
