"""Ethernet ports in Verilator on the switch in C++, as `dagtrain.cosim` runs FPGAs, with a host in Python.

Devices play words to one another and to the host, and keep what they get."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dagtrain.cosim.network import Mac, MacPort, PairCounts, Stamped, read_counts, write_switch
from dagtrain.cosim.outermost import PORTS
from dagtrain.cosim.simulator import RunLog, Simulator, build, execute, read_memory
from dagtrain.emission.links import unit_module
from dagtrain.emission.modules import ModuleLibrary, StreamModule
from hdl.cache import cache_folder
from hdl.convert.images import write_image
from hdl.convert.netlist import Direction
from hdl.link.ethernet.adapter import MacAdapter
from hdl.link.ethernet.frame import FrameFormat
from hdl.link.ethernet.peers import Timing
from hdl.link.ethernet.port import EthernetPort
from hdl.link.ethernet.protocol import Peer, Rules
from hdl.link.ethernet.receiver import COUNTER_BITS, Cause
from hdl.link.ethernet.transmitter import PEER_BITS, own_constant, peer_constant
from hdl.link.format import Word
from hdl.simulate.models.ethernet import EthernetSwitch, Faults
from hdl.simulate.models.host import stream_player, stream_recorder
from tests.ethernet_support import DIGEST, EPOCH, Opponent, address_of, bursts_of, packer_of, traffic, words_of

# cycles between two exchanges with the host
LOOK_AHEAD = 100
# cycles without a word that end a run, and those behind the last one
STUCK_CYCLES, REST_CYCLES = 60_000, 10
# stalls of what plays and what keeps words, of 256
STALL_256 = 64


@dataclass
class Host:
    """The last peer of all devices: a golden model for each."""

    opponents: list[Opponent]
    macs: Mapping[int, int]
    # what each is to get
    wanted: list[list[Word]]

    @property
    def done(self) -> bool:
        """See `SwitchHost`."""
        return all(words_of(opponent.got) == words for opponent, words in zip(self.opponents, self.wanted, strict=True))

    def exchange(self, cycle: int, frames: Sequence[Stamped]) -> tuple[int, Sequence[Stamped]]:
        """See `SwitchHost`."""
        for came, data in frames:
            # what the network has done to the header shows in the frame
            for opponent in self.opponents:
                if opponent.peer.other == self.macs.get(int.from_bytes(data[6:12], "big")):
                    opponent.hear(data, came)
        found = []
        for now in range(cycle, cycle + LOOK_AHEAD, 4):
            found += [(now, data) for opponent in self.opponents if (data := opponent.speak(now)) is not None]
        return cycle + LOOK_AHEAD, found


@dataclass(kw_only=True)
class PortBench:
    """Devices with ports alike, built once; `run` them with whatever faults."""

    frames: FrameFormat
    timing: Timing
    devices: int
    folder: Path
    kind: Mac = Mac.AXI_STREAM
    seed: int = 1
    runs: int = 60
    # device → peer → what it sends there, in the order of `peers`
    there: list[list[list[Word]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        form = self.unit.packer.form
        self.there = [
            [traffic(form, 100 * self.seed + 10 * device + peer, self.runs) for peer in range(self.devices)]
            for device in range(self.devices + 1)
        ]

    @property
    def unit(self) -> EthernetPort:
        """The port: all other devices and the host are peers."""
        return EthernetPort(packer=packer_of(self.frames, self.devices, spare=20), timing=self.timing)

    def peers(self, device: int) -> list[int]:
        """Numbers of whom a device speaks with; the host's is that behind the devices'."""
        return [number for number in range(self.devices + 1) if number != device]

    @property
    def macs(self) -> tuple[MacPort, ...]:
        """At the bench."""
        return tuple(
            MacPort(number=device, prefix=f"mac{device}", kind=self.kind, word_bits=self.frames.word_bits)
            for device in range(self.devices)
        )

    def expected(self, device: int) -> list[list[Word]]:
        """What each peer sends to a device."""
        return [self.there[peer][self.peers(peer).index(device)] for peer in self.peers(device)]

    # ------------------------------------------------------------------------------------ building

    def build(self) -> Path:
        """The program."""
        library = ModuleLibrary(cache_folder() / "modules")
        device = self._device(library)
        bits = self.unit.packer.form.payload_bits
        played: dict[int, StreamModule] = {}
        for words in (words for queues in self.there[:-1] for words in queues):
            played[len(words)] = self._player(library, len(words), bits)
        kept = {n: self._recorder(library, n, bits) for n in {self._count(d) for d in range(self.devices)}}
        texts = [module.verilog for module in library]
        top = self._outermost(device, played, kept)
        self.folder.mkdir(parents=True, exist_ok=True)
        sources = []
        for text in texts:
            sources.append(text.write(self.folder))
        (self.folder / "dagtrain_bench.v").write_text(top)
        sources.append(self.folder / "dagtrain_bench.v")
        return build(
            self.folder / "sim", [path.resolve() for path in sources], Simulator.VERILATOR, False, macs=self.macs
        ).resolve()

    def _count(self, device: int) -> int:
        return sum(map(len, self.expected(device)))

    def _device(self, library: ModuleLibrary) -> tuple[StreamModule, StreamModule]:
        """The port and the wires to its MAC."""
        port, adapter = self.unit, MacAdapter(sink=self.unit.sink, kind=self.kind.value)
        return unit_module(library, "ethernet_port", port), unit_module(library, "mac_adapter", adapter)

    @staticmethod
    def _player(library: ModuleLibrary, depth: int, bits: int) -> StreamModule:
        return library.block(
            "player", f"{depth}", {"y": bits},
            lambda domain, streams: stream_player(
                domain, streams["y"], depth=depth, probability_256=STALL_256, seed=depth
            ),
        )  # fmt: skip

    @staticmethod
    def _recorder(library: ModuleLibrary, depth: int, bits: int) -> StreamModule:
        return library.block(
            "recorder", f"{depth}", {"x": bits},
            lambda domain, streams: stream_recorder(domain, streams["x"], depth=depth, probability_256=8, seed=depth),
        )  # fmt: skip

    def _outermost(
        self,
        device: tuple[StreamModule, StreamModule],
        played: Mapping[int, StreamModule],
        kept: Mapping[int, StreamModule],
    ) -> str:
        macs = [port for mac in self.macs for port in mac.ports]
        declared = ",\n".join(
            f"{port.direction.value} wire {f'[{port.width - 1}:0] ' if port.width > 1 else ''}{port.name}"
            for port in (*PORTS, *macs)
        )
        parts, done = [], []
        for number in range(self.devices):
            count = self._count(number)
            parts += [self._one(number, device, played, kept[count])]
            parts += [f"integer kept{number} = 0;", f"always @(posedge clk) if (w{number}_valid && w{number}_ready) "
                      f"kept{number} <= kept{number} + 1;"]  # fmt: skip
            done.append(f"kept{number} == {count}")
        dumps = "".join(
            f'$writememh("words{n}.mem", keeps{n}.{kept[self._count(n)].verilog.images["beats"].memory}); '
            for n in range(self.devices)
        )
        shown = "".join(
            f'$fdisplay(file, "%h %h %h", dropped{n}, faults{n}, malformed{n}); ' for n in range(self.devices)
        )
        lines = "\n".join(parts)
        progress = " + ".join(f"kept{n}" for n in range(self.devices))
        return f"""module dagtrain_bench (
{declared}
);
integer file, rest = 0, moved = 0, idle = 0;
reg ends = 0, stops = 0;
{lines}
assign network_error = 0, memory_error = 0, progress = 0, finished = ends, stuck = stops;
always @(posedge clk) begin
    moved <= {progress};
    idle <= moved == {progress} ? idle + 1 : 0;
    if (idle == {STUCK_CYCLES}) begin
        file = $fopen("streams.txt", "w"); $fclose(file);
        stops <= 1;
    end
    if ({" && ".join(done)}) rest <= rest + 1;
    if (rest == {REST_CYCLES}) begin
        {dumps}
        file = $fopen("ports.txt", "w"); {shown} $fclose(file);
        ends <= 1;
    end
end
endmodule
"""

    def _one(
        self,
        number: int,
        device: tuple[StreamModule, StreamModule],
        played: Mapping[int, StreamModule],
        kept: StreamModule,
    ) -> str:
        """An instance of a device with what it plays and keeps."""
        unit, lines = self.unit, []
        bits = unit.packer.form.payload_bits
        own, peers = address_of(number), self.peers(number)
        others = sum(peer_constant(own, address_of(peer)) << at * PEER_BITS for at, peer in enumerate(peers))
        values = {"own": own_constant(own), "others": others, "epoch": EPOCH, "digest": DIGEST}
        nets = {"clk": "clk", "rst": "rst"}
        for name, width in unit.outputs.items():
            lines.append(f"wire [{width - 1}:0] {name}{number};")
            nets[name] = f"{name}{number}"
        nets |= {name: f"{width}'h{values[name]:x}" for name, width in unit.inputs.items()}
        for at in range(len(peers)):
            net, count = f"x{number}_{at}", len(self.there[number][at])
            lines += [f"wire {net}_valid, {net}_ready;", f"wire [{bits - 1}:0] {net}_payload;"]
            module = played[count]
            parameter = module.verilog.images["beats"].parameter
            lines.append(
                f'{module.name} #(.{parameter}("{net}.mem")) plays{net} (.clk(clk), .rst(rst), {_stream("y", net)});'
            )
            nets |= {f"xs{at}_{part}": f"{net}_{part}" for part in ("valid", "ready", "payload")}
        net = f"w{number}"
        lines += [f"wire {net}_valid, {net}_ready;", f"wire [{bits - 1}:0] {net}_payload;"]
        nets |= {f"words_{part}": f"{net}_{part}" for part in ("valid", "ready", "payload")}
        lines.append(f"{kept.name} keeps{number} (.clk(clk), .rst(rst), {_stream('x', net)});")
        port, adapter = device
        pins = {"clk": "clk", "rst": "rst"}
        for name in ("tx", "rx"):
            net, width = f"{name}{number}", unit.streams[name]
            lines += [f"wire {net}_valid, {net}_ready;", f"wire [{width - 1}:0] {net}_payload;"]
            nets |= {f"{name}_{part}": f"{net}_{part}" for part in ("valid", "ready", "payload")}
            pins |= {f"{name}_{part}": f"{net}_{part}" for part in ("valid", "ready", "payload")}
        prefix = self.macs[number].prefix
        pins |= {pin.name.replace(prefix, "mac", 1): pin.name for pin in self.macs[number].ports}
        lines += [_instance(port, f"port{number}", nets), _instance(adapter, f"adapter{number}", pins)]
        return "\n".join(lines)

    # ------------------------------------------------------------------------------------ running

    def host(self) -> Host:
        """The golden models of the host's pairs."""
        rules = Rules(
            window=self.timing.window,
            replay_beats=4 * self.frames.payload_beats,
            word_bytes=self.frames.word_bytes,
            timer_cycles=self.timing.timer_cycles,
            ack_cycles=self.timing.ack_cycles,
            retries=self.timing.retries,
        )
        opponents = [
            Opponent(
                self.frames,
                rules,
                Peer(
                    number=address_of(self.devices).number, other=address_of(device).number, epoch=EPOCH, digest=DIGEST
                ),
                deque(
                    self.frames.payload_of(bursts)
                    for bursts in self.frames.fill(bursts_of(self.there[self.devices][device]))
                ),
            )
            for device in range(self.devices)
        ]
        return Host(
            opponents,
            {address_of(device).mac: device for device in range(self.devices)},
            [queues[-1] for queues in self.there[: self.devices]],
        )

    def run(self, program: Path, folder: Path, switch: EthernetSwitch, stall_256: int = 16) -> Ran:
        """Until every device has what it is sent."""
        folder.mkdir()
        form, host = self.unit.packer.form, self.host()
        for device in range(self.devices):
            for at, words in enumerate(self.there[device]):
                write_image(folder / f"x{device}_{at}.mem", [form.encode(word) for word in words], form.payload_bits)
        write_switch(folder, switch)
        log = execute(program, folder, lambda _: None, 300, ("+frames", f"+mac_stall={stall_256}"), host=host)
        dropped, faults = [], []
        for line in (folder / "ports.txt").read_text().splitlines():
            drops, flags, malformed = (int(word, 16) for word in line.split())
            assert not malformed
            mask = (1 << COUNTER_BITS) - 1
            dropped.append({cause: drops >> cause * COUNTER_BITS & mask for cause in Cause})
            faults.append(flags)
        return Ran(
            log=log,
            counts={(one.source, one.target): one for one in read_counts(folder)},
            words=[[form.decode(beat) for beat in read_memory(folder / f"words{n}.mem")] for n in range(self.devices)],
            host_words=[words_of(opponent.got) for opponent in host.opponents],
            dropped=dropped,
            faults=faults,
        )

    def switch(self, faults: Faults, seed: int, **options: Any) -> EthernetSwitch:
        """Between all, the host at the last port."""
        ports = {address_of(number).mac: number for number in range(self.devices + 1)}
        return EthernetSwitch(ports=ports, faults=faults, seed=seed, **{"latency": 40, **options})


def _instance(module: StreamModule, name: str, nets: Mapping[str, str]) -> str:
    """With what it has of these; outputs may lead nowhere."""
    ports = [port for port in module.verilog.ports if port.name in nets]
    missing = {port.name for port in module.verilog.ports if port.direction is Direction.IN} - set(nets)
    # what a MAC says of a frame's first beat is not looked at
    assert missing <= {"mac_rx_startofpacket"}
    connected = ", ".join(f".{port.name}({nets[port.name]})" for port in ports)
    return f"{module.name} {name} ({connected});"


def _stream(name: str, net: str) -> str:
    return ", ".join(f".{name}_{part}({net}_{part})" for part in ("valid", "ready", "payload"))


@dataclass
class Ran:
    """What a run came to."""

    log: RunLog
    counts: dict[tuple[int, int], PairCounts]
    # that each device and each of the host's pairs got
    words: list[list[Word]]
    host_words: list[list[Word]]
    dropped: list[dict[Cause, int]]
    faults: list[int]
