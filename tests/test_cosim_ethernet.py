"""A cluster over Ethernet in Verilator: whatever the network does, every bit is that of the emulator, and every fault
is counted where it was injected."""

from __future__ import annotations

import re
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from google_crc32c import value as crc32c_of_another_package
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import PcapNgReader

from dagtrain.cosim.cluster import Feeds, with_state
from dagtrain.cosim.compare import ClusterRun
from dagtrain.cosim.network import PausingHost, Stamped, damaged, write_capture
from dagtrain.cosim.resets import train_through_resets
from dagtrain.cosim.simulator import Simulator, StuckError
from dagtrain.cosim.switch_host import NetworkHost
from dagtrain.emission.design import ClusterDesign
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.emission.stored import DramUse
from dagtrain.flow.cosim_network import NetworkOptions
from dagtrain.flow.cosim_step import host_pauses
from dagtrain.graph.executor import Executor, Mode
from dagtrain.progress import Silent
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.engine.loss.numbers import METRICS
from hdl.errors import DagtrainError
from hdl.link.ethernet.frame import Drop, FrameFormat
from hdl.link.ethernet.receiver import Cause
from hdl.simulate.models.ethernet import Faults
from tests.cosim_support import deliver, simulate_design, tiny_design, tiny_net
from tests.test_ethernet_emission import END, NUMBERS, ethernet

LIBRARY = ModuleLibrary(cache_folder() / "modules")
BATCHES = 4
OFTEN = Faults(loss=5e-2, duplicate=5e-2, reorder=5e-2, corrupt=5e-2)
# causes that a frame tells by itself
OF_THE_FRAME = (Cause.SHORT, Cause.FOREIGN, Cause.CHECKSUM, Cause.VERSION, Cause.LENGTH, Cause.CRC, Cause.TAG)
DATA = 1
FRAMES = ethernet().frames


def designed(clocked: Mapping[str, tuple[float, int]], periods: Mapping[str, Fraction]) -> ClusterDesign:
    """The tiny cluster at an MTU of 576, whose host loads its state over the network; MACs of both kinds."""
    told = replace(ethernet(), clocked=clocked)
    return tiny_design(LIBRARY, net=tiny_net(), dram=DramUse(), ethernet=told, state_access=True, periods=periods)


@pytest.fixture(scope="module")
def design() -> ClusterDesign:
    """One device has the cluster's clock, at which its MAC is; the other one, and its MAC, have clocks of their own."""
    return designed({"beta": (156.25, 128)}, {"beta": Fraction(200, 250)})


def trained(design: ClusterDesign, folder: Path, faults: Faults, seed: int = 1, **options: Any) -> ClusterRun:
    """Every bit of it is right."""
    batch, feeds = design.graph.recipe.batch, feeds_of(design)
    network = NetworkModel(
        **{"latency_cycles": 60, "stall_256": 16, "faults": faults, "capture": True, "seed": seed, **options}
    )
    run = simulate_design(design, LIBRARY, feeds, folder, Simulator.VERILATOR, network, 0, 1, Silent())
    assert run.mismatches == (), f"seed {seed}"
    assert len(run.losses) == BATCHES * batch
    counted(run, folder)
    return run


def counted(run: ClusterRun, folder: Path) -> None:
    """What arrives at a device bad is dropped there for the cause that the codec gives, and nothing else is."""
    wanted = damaged(folder / "bench", FRAMES)
    for number, counts in enumerate(run.ports):
        found = {cause.name: counts.dropped[cause] for cause in OF_THE_FRAME}
        assert Counter(found) == wanted.get(number, Counter())
        assert counts.dropped[Cause.OVERRUN] == counts.dropped[Cause.DIGEST] == 0
        assert counts.faults == counts.overflow == 0
    bad = {Drop[cause.name].value for cause in OF_THE_FRAME}
    at_host = sum(count for name, count in run.host_dropped.items() if name in bad)
    assert at_host == sum(wanted.get(len(run.ports), Counter()).values())


def total(run: ClusterRun, name: str) -> int:
    return sum(getattr(pair, name) for pair in run.pairs)


def test_a_cluster_trains_over_a_network_that_does_what_it_likes(design: ClusterDesign, tmp_path: Path) -> None:
    run = trained(design, tmp_path / "bad", OFTEN)
    for name in ("lost", "doubled", "reordered", "corrupted", "again"):
        assert total(run, name) > 0, name
    captured(design, tmp_path / "bad" / "bench", run)
    constrained(tmp_path / "bad" / "emit" / "beta")


def constrained(device: Path) -> None:
    """Its clocks are told, and all counts that cross between them: each by the name that it has in the Verilog."""
    told = (device / "beta.sdc").read_text().splitlines()
    for clk, ns in (("clk", "4.000"), ("mac_tx_clk", "6.400"), ("mac_rx_clk", "6.400")):
        assert f"create_clock -name {clk} -period {ns} [get_ports {clk}]" in told
    assert "set_clock_groups -asynchronous -group {clk} -group {mac_tx_clk} -group {mac_rx_clk}" in told
    (module,) = (device / "rtl").glob("clocked_mac_*.v")
    text, skews = module.read_text(), [line for line in told if line.startswith("set_max_skew")]
    wanted = re.findall(r"^reg \[\d+:0\] (\w+synchroniser\d+_first) =", text, re.MULTILINE)
    found = [re.findall(r"\{\*mac\|(\w+)\[\*\]\}", line) for line in skews]
    assert sorted(seen for _, seen in found) == sorted(
        name for name in wanted if not name.startswith("mac_crossings0_s")
    )
    for count, seen in found:
        (after,) = re.findall(rf"^    {seen} <= (\w+);$", text, re.MULTILINE)
        assert after == count
    ways = [float(line.split()[-1]) / 0.8 for line in skews]
    assert ways == pytest.approx([4, 6.4, 6.4, 4, 6.4])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clocked", "periods"),
    [
        ({}, {}),
        ({}, {"alpha": Fraction(200, 310), "beta": Fraction(200, 130)}),
        ({"alpha": (156.25, 128), "beta": (390.625, 64)}, {}),
        ({"alpha": (322.265625, 64), "beta": (100.0, 512)}, {"alpha": Fraction(200, 150)}),
    ],
    ids=["one clock", "devices", "MACs", "all"],
)
def test_clocks_change_nothing(
    clocked: Mapping[str, tuple[float, int]], periods: Mapping[str, Fraction], tmp_path: Path
) -> None:
    run = trained(designed(clocked, periods), tmp_path, OFTEN, 3)
    assert total(run, "again") > 0


@pytest.mark.slow
def test_a_run_is_the_same_again_to_the_byte(design: ClusterDesign, tmp_path: Path) -> None:
    names = ("first", "again")
    for name in names:
        trained(design, tmp_path / name, OFTEN)
    assert len({(tmp_path / name / "bench" / "frames.bin").read_bytes() for name in names}) == 1


@pytest.mark.slow
def test_a_good_network_repeats_and_drops_nothing_and_a_far_one_trains_to_the_same(
    design: ClusterDesign, tmp_path: Path
) -> None:
    near = trained(design, tmp_path / "near", Faults())
    assert total(near, "again") == total(near, "lost") == 0
    # but for what was greeted with before the host's reset
    assert {cause for port in near.ports for cause, count in port.dropped.items() if count} <= {Cause.EPOCH}
    assert near.host_dropped.keys() <= {"epoch"}
    assert max(*near.host_dropped.values(), *(port.dropped[Cause.EPOCH] for port in near.ports)) <= 4
    far = trained(design, tmp_path / "far", Faults(loss=1e-3, duplicate=1e-3, reorder=1e-3), latency_cycles=600)
    assert far.losses == near.losses
    assert far.cycles > near.cycles


@pytest.mark.slow
def test_a_port_that_is_down_for_a_while_holds_training_up_and_changes_nothing(
    design: ClusterDesign, tmp_path: Path
) -> None:
    run = trained(design, tmp_path, Faults(down=((1, 4000, 14_000),)))
    assert total(run, "down") > 0
    assert total(run, "again") > 0


@pytest.mark.slow
def test_a_host_that_sleeps_costs_time_alone(design: ClusterDesign, tmp_path: Path) -> None:
    """For 300 000 cycles, where devices give each other 260 000."""
    asleep = ((3000, 303_000),)
    run = trained(design, tmp_path / "waited for", Faults(), host_pauses=asleep)
    assert total(run, "again") > 60
    assert 303_000 < run.cycles < 360_000
    hasty = replace(ethernet(), host_silence_cycles=64 * ethernet().timing.timer_cycles)
    given_up = tiny_design(LIBRARY, net=tiny_net(), dram=DramUse(), ethernet=hasty, state_access=True)
    with pytest.raises(StuckError):
        trained(given_up, tmp_path / "given up", Faults(), host_pauses=asleep)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 10))
def test_faults_of_many_seeds_change_nothing(design: ClusterDesign, tmp_path: Path, seed: int) -> None:
    trained(design, tmp_path, OFTEN, seed)


@pytest.mark.slow
def test_a_device_of_a_keyed_cluster_that_is_reset_in_mid_batch_is_brought_back(tmp_path: Path) -> None:
    keyed = replace(ethernet(), frames=FrameFormat(word_bits=64, mtu=576, key=0x0123456789ABCDEF))
    design = tiny_design(LIBRARY, net=tiny_net(), dram=DramUse(), ethernet=keyed, state_access=True)
    delivered = deliver(design, LIBRARY, tmp_path / "emit")
    network = NetworkModel(latency_cycles=60, stall_256=16, faults=OFTEN, resets=((1, 9_000, 9_032),), capture=True)
    run = train_through_resets(
        delivered, design.graph, LIBRARY, feeds_of(design), tmp_path / "bench", network, 1, lambda _: None, False
    )
    assert run.mismatches == ()
    assert (run.resets, len(run.losses)) == (1, BATCHES * design.graph.recipe.batch)
    assert run.losses == tuple(expected_losses(design))
    assert [port.faults for port in run.ports] == [0, 0]
    # the other one has counted what was new to it all the time
    wanted = damaged(tmp_path / "bench", keyed.frames)[0]
    assert Counter({cause.name: run.ports[0].dropped[cause] for cause in OF_THE_FRAME}) == wanted
    plain = deliver(tiny_design(LIBRARY, ethernet=ethernet()), LIBRARY, tmp_path / "plain")
    with pytest.raises(DagtrainError, match=r"images alone; emit with --state-access ports$"):
        train_through_resets(plain, design.graph, LIBRARY, [], tmp_path / "bench", network, 1, lambda _: None)


def feeds_of(design: ClusterDesign) -> list[Feeds]:
    return [synthetic_feeds(design.graph, design.graph.recipe.batch, 50 + index) for index in range(BATCHES)]


def expected_losses(design: ClusterDesign) -> Iterator[float]:
    golden = Executor(design.graph)
    for feeds in feeds_of(design):
        (records,) = golden.step(feeds).values()
        yield from map(float, METRICS.decode(records.reshape(len(records), -1)[:, 0]))


def test_a_host_that_pauses_is_given_all_when_it_goes_on() -> None:
    seen = []

    class Host:
        done = False

        def exchange(self, cycle: int, frames: Sequence[Stamped]) -> tuple[int, Sequence[Stamped]] | None:
            assert not frames
            seen.append(cycle)
            return (cycle + 100, [(cycle, b"")]) if cycle < 900 else None

    host, cycle = PausingHost(Host(), ((150, 420), (700, 710))), 0
    while answer := host.exchange(cycle, []):
        assert answer[1] == [(cycle, b"")]
        cycle = answer[0]
    assert seen == [0, 100, 420, 520, 620, 720, 820, 920]


def test_state_that_devices_dumped_otherwise_is_a_mismatch(design: ClusterDesign, tmp_path: Path) -> None:
    host = NetworkHost(deliver(design, LIBRARY, tmp_path), design.graph, feeds_of(design))
    host.close()
    golden, run = Executor(design.graph, Mode.GOLDEN), ClusterRun(0, 0.0, (), 7, (), ())
    same = with_state(run, host, golden)
    words = same.compared_words - 7
    assert (words > 0, same.mismatches) == (True, ())
    golden.states["conv1.w.update"]["momentum"].flat[2] ^= 1
    changed = with_state(run, host, golden)
    (told,) = changed.mismatches
    assert changed.compared_words == same.compared_words
    where = r"1 of 18 words of conv1\.w\.update, the first at 2"
    assert re.fullmatch(rf"dumped behind batch 0: {where}: 0x\w+ where the emulator has 0x\w+", told)


def test_frames_are_simulated_by_verilator_alone(design: ClusterDesign, tmp_path: Path) -> None:
    with pytest.raises(DagtrainError, match="the Ethernet of alpha, beta runs in verilator alone"):
        simulate_design(design, LIBRARY, [], tmp_path, Simulator.ICARUS, NetworkModel(), 0, 1, Silent())


def test_what_a_network_can_not_do_is_said_in_one_message(design: ClusterDesign, tmp_path: Path) -> None:
    wrong = NetworkOptions(
        loss=1.5, corrupt=-1, link_down=("alpha", "beta:9:3", "host:1:x", "host:1:5"), reset=("alpha", "@3")
    )
    assert wrong.network_problems() == [
        "--loss must lie in [0, 1], not 1.5",
        "--corrupt must lie in [0, 1], not -1",
        *(f"--link-down {text} is not PORT:FIRST:END, as fpga1:2000:12000" for text in wrong.link_down[:3]),
        *(f"--reset {text} is not DEVICE@CYCLE, as fpga1@50000" for text in wrong.reset),
    ]
    framed = deliver(design, LIBRARY, tmp_path / "framed")
    some = NetworkOptions(reorder=0.5, link_down=("beta:3:9", "host:1:5"))
    assert some.faults(framed) == Faults(reorder=0.5, down=((1, 3, 9), (2, 1, 5)))
    with pytest.raises(DagtrainError, match=r"^--link-down: the switch has no port gamma; of alpha, beta, host$"):
        NetworkOptions(link_down=("gamma:3:9",)).faults(framed)
    again = NetworkOptions(reset=("beta@5000", "alpha@9"))
    assert host_pauses(framed, "3000:9000") == ((3000, 9001),)
    assert host_pauses(framed, None) == ()
    assert again.resets(framed) == ((1, 5000, 5032), (0, 9, 41))
    with pytest.raises(DagtrainError, match=r"^--reset: there is no device host; of alpha, beta$"):
        NetworkOptions(reset=("host@1",)).resets(framed)
    words = deliver(tiny_design(LIBRARY), LIBRARY, tmp_path / "words")
    with pytest.raises(DagtrainError, match=r"^--host-pause: the host has ports of its own; emit with --host network$"):
        host_pauses(words, "3")
    assert NetworkOptions().faults(words) == Faults()
    with pytest.raises(DagtrainError, match=r"^--loss, --link-down, --pcap: words go over this network as they are"):
        NetworkOptions(loss=1e-3, link_down=("alpha:3:9",), pcap=True).faults(words)


# ------------------------------------------------------------------------------------------------ by another program


@dataclass(frozen=True)
class Told:
    """A frame as it is read here by hand."""

    kind: int
    source: int
    target: int
    sequence: int
    words: tuple[tuple[int, int, bytes], ...]


def told(frame: bytes) -> Told | None:
    """What a frame says, by scapy and by the table of docs/network.md; None where it is damaged."""
    packet = Ether(frame)
    if IP not in packet or UDP not in packet:
        return None
    ip, udp = packet[IP], packet[UDP]
    checked = IP(bytes(ip)[:20])
    del checked.chksum
    if (ip.version, ip.ihl, ip.proto, ip.flags, ip.frag) != (4, 5, 17, "DF", 0) or udp.sport != 0x4454:
        return None
    if IP(bytes(checked)[:20]).chksum != ip.chksum or ip.len != len(frame) - 14 or udp.len != ip.len - 20:
        return None
    data = bytes(frame)[42:]
    first, flags, source, target, _, sequence, _, beats, _ = struct.unpack(">BBHHHIIHI", data[:22])
    if first >> 4 != 1 or flags or len(data) != 26 + 8 * beats or udp.dport != 0x4454:
        return None
    if struct.unpack(">I", data[-4:])[0] != crc32c_of_another_package(data[:-4]):
        return None
    return Told(first & 15, source, target, sequence, tuple(words_of(data[22:-4])))


def words_of(payload: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(stream, sequence, word) of a payload in beats of 8 bytes: a descriptor, then what it announces."""
    at = 0
    while at < len(payload):
        stream, count, sequence, rest = struct.unpack(">HBBI", payload[at : at + 8])
        at += 8
        assert (count == 0) == bool(rest >> 25 & 1)
        for k in range(count):
            yield stream, (sequence + k) % 256, payload[at : at + 8]
            at += 8


def captured(design: ClusterDesign, bench: Path, run: ClusterRun) -> None:
    """Every frame of the capture is read; each stream's words leave in order, arrive as they left, and are as many as
    the design sends."""
    path = bench / "capture.pcapng"
    count = write_capture(path, bench, ["alpha", "beta", "host"], 200_000_000)
    with PcapNgReader(str(path)) as reader:
        packets = list(reader)
    assert len(packets) == count == sum(pair.entered + pair.left for pair in run.pairs)
    macs = {0x0200_0000_0100 + number: name for name, number in NUMBERS.items()} | {END.mac: "host"}
    there: dict[tuple[int, int], dict[int, tuple[Any, ...]]] = defaultdict(dict)
    back: dict[tuple[int, int], dict[int, tuple[Any, ...]]] = defaultdict(dict)
    for packet in packets:
        frame = told(bytes(packet))
        if packet.direction == 2:
            # as a device or the host made it
            assert frame is not None
            assert macs[int(packet.src.replace(":", ""), 16)] == packet.sniffed_on
        if frame is None or frame.kind != DATA:
            continue
        kept = there if packet.direction == 2 else back
        was = kept[frame.source, frame.target].setdefault(frame.sequence, frame.words)
        assert was == frame.words
    assert there == back
    streams: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for frames in there.values():
        assert sorted(frames) == list(range(len(frames)))
        for number in sorted(frames):
            for stream, sequence, word in frames[number]:
                streams[stream].append((sequence, word))
    for words in streams.values():
        assert [sequence for sequence, _ in words] == [k % 256 for k in range(len(words))]
    batch = design.graph.recipe.batch
    for crossing in design.crossings:
        tensors = BATCHES if crossing.source.tensor.kind.per_batch else BATCHES * batch
        assert len(streams[crossing.number]) >= tensors * crossing.words(64)
    frames = BATCHES * batch
    for stream in design.host_streams:
        if stream.carries in ("image", "label", "result"):
            assert len(streams[stream.number]) == frames * -(-stream.elements // (64 // stream.element_bits))
