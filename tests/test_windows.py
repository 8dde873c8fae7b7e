"""Ranks that simulate a cluster together do what one program does, in every bit and in every cycle."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from dagtrain.cosim import ranks as ranks_module
from dagtrain.cosim.cluster import Feeds, simulate_cluster
from dagtrain.cosim.compare import ClusterRun
from dagtrain.cosim.ranks import Job, check_alike, first_of, help_out, simulate_on_ranks
from dagtrain.cosim.simulator import Simulator
from dagtrain.cosim.windows import (
    AllError,
    Conductor,
    End,
    Fault,
    LanePort,
    LocalTransport,
    Orders,
    RankError,
    Ranks,
    Share,
    Status,
    dealt_out,
)
from dagtrain.emission.delivered import Delivered
from dagtrain.emission.design import ClusterDesign, design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.graph.ir import Graph
from dagtrain.progress import Silent
from dagtrain.training.feeds import synthetic_feeds
from hdl.errors import DagtrainError
from tests.cosim_support import (
    CYCLES,
    DEVICES,
    TINY_CYCLES,
    deliver,
    placement,
    residual_net,
)
from tests.test_cosim_ethernet import LIBRARY, OFTEN, designed

PROGRAM = "this one"
WINDOW, SETTLE, STUCK = 10, 50, 200


# ------------------------------------------------------------------------------------------------ without benches


@pytest.mark.parametrize(
    ("devices", "ranks", "homes"),
    [
        (3, 1, (0, 0, 0)),
        (3, 2, (0, 0, 1)),
        (3, 3, (0, 1, 2)),
        (3, 4, (1, 2, 3)),
        (11, 4, (0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3)),
    ],
)
def test_devices_are_dealt_out_in_their_order(devices: int, ranks: int, homes: tuple[int, ...]) -> None:
    assert dealt_out(devices, ranks) == homes
    assert Share(0, homes).here == tuple(place for place in range(devices) if not homes[place])


def test_more_ranks_than_devices_and_a_host_are_refused() -> None:
    message = "^5 ranks for 3 devices; start at most 4: one a device, and one for the emulator and the comparison$"
    with pytest.raises(DagtrainError, match=message):
        dealt_out(3, 5)


def test_all_is_over_in_the_cycle_in_which_one_bench_would_say_so() -> None:
    conductor = Conductor(WINDOW, SETTLE, STUCK)

    def standing(cycle: int, first: int, second: int) -> list[Status]:
        return [Status(cycle, 90, first, 0), Status(cycle, 95, second, 0)]

    assert conductor.orders(standing(100, 91, -1)) == [Orders(110)] * 2
    # a bench counts the cycles behind the one in which the last of them had all
    assert conductor.orders(standing(110, 91, 105)) == [Orders(120)] * 2
    assert conductor.orders(standing(150, 91, 105)) == [Orders(155)] * 2
    assert conductor.orders(standing(155, 91, 105)) == [Orders(156, over=True)] * 2
    assert conductor.orders(standing(156, 91, 105)) == [Orders(156, end=End.FINISHED)] * 2


def test_a_network_with_frames_has_to_be_quiet_for_a_while_before_all_end() -> None:
    conductor = Conductor(WINDOW, SETTLE, STUCK)

    def standing(cycle: int, busy: int) -> list[Status]:
        return [Status(cycle, 90, 91, 0, busy=busy, heard=15), Status(cycle, 95, 105, 0, busy=7, heard=3)]

    assert conductor.orders(standing(155, 120)) == [Orders(156, over=True)] * 2
    # one bench counts from the cycle in which it has finished
    assert conductor.orders(standing(156, 120)) == [Orders(166)] * 2
    # a frame came late
    assert conductor.orders(standing(166, 160)) == [Orders(176)] * 2
    assert conductor.orders(standing(176, 160)) == [Orders(176, end=End.FINISHED)] * 2
    assert Status.of(Status.FORM.pack(*vars(standing(9, 8)[0]).values())) == standing(9, 8)[0]


def test_where_nothing_moves_all_stop_in_the_cycle_in_which_one_bench_would() -> None:
    conductor = Conductor(WINDOW, SETTLE, STUCK)

    def standing(cycle: int, changed: int) -> list[Status]:
        return [Status(cycle, changed, -1, 0), Status(cycle, -1, 0, 0)]

    assert conductor.orders(standing(205, 7)) == [Orders(208)] * 2
    assert conductor.orders(standing(208, 207)) == [Orders(218)] * 2
    assert conductor.orders(standing(408, 207)) == [Orders(409, halt=True)] * 2
    assert conductor.orders(standing(409, 207)) == [Orders(409, end=End.STUCK)] * 2


def test_the_first_fault_ends_all() -> None:
    conductor = Conductor(WINDOW, SETTLE, STUCK)
    faults = [
        Status(20, 0, -1, 0),
        Status(17, 0, -1, 0, Fault.NETWORK),
        Status(17, 0, -1, 0, Fault.MEMORY),
        Status(19, 0, -1, 0, Fault.MEMORY),
    ]
    ends = [End.ABANDONED, End.ABANDONED, End.FAULTY, End.ABANDONED]
    assert [orders.end for orders in conductor.orders(faults)] == ends


def test_lanes_have_rooms_as_verilator_makes_ports() -> None:
    row = LanePort(source=0, target=2, leaves=True, bits=65).row
    assert row == "    {0, 2, 12, true, &bench.lane_0_2_valid, &bench.lane_0_2_payload, nullptr},\n"
    sizes = {bits: LanePort(source=0, target=1, leaves=False, bits=bits).row.split(", ")[2] for bits in (8, 9, 17, 33)}
    assert sizes == {8: "1", 9: "2", 17: "4", 33: "8"}


@contextmanager
def others(size: int, work: Callable[[Ranks], Any]) -> Iterator[tuple[Ranks, dict[int, Any]]]:
    """Rank 0, while the others are at work in threads, and what these return."""
    first, *rest = LocalTransport.of(size)
    found: dict[int, Any] = {}

    def run(transport: LocalTransport) -> None:
        found[transport.rank] = work(Ranks(transport))

    threads = [Thread(target=run, args=(transport,), daemon=True) for transport in rest]
    for thread in threads:
        thread.start()
    yield Ranks(first), found
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()


def test_ranks_share_and_give_and_collect() -> None:
    def work(ranks: Ranks) -> object:
        return ranks.shared(ranks.rank * 10), ranks.given(), ranks.collected(f"rank {ranks.rank}")

    with others(3, work) as (first, found):
        assert first.shared(0) == [0, 10, 20]
        assert first.given(["a", "b", "c"]) == "a"
        assert first.collected("rank 0") == ["rank 0", "rank 1", "rank 2"]
    assert found == {1: ([0, 10, 20], "b", []), 2: ([0, 10, 20], "c", [])}


def test_what_fails_at_one_rank_is_told_at_the_first_and_ends_all() -> None:
    def work(ranks: Ranks) -> object:
        try:
            with ranks.together():
                if ranks.rank == 2:
                    raise DagtrainError("no room", "make some")
                ranks.shared(0)
        except DagtrainError as error:
            return type(error), str(error)
        return None

    told = pytest.raises(DagtrainError, match=r"^rank 2: no room; make some$")
    with others(3, work) as (first, found), told, first_of(first):
        first.shared(0)
    assert first.failed
    assert found == {1: (RankError, "no room; make some"), 2: (DagtrainError, "no room; make some")}
    # nobody waits for it any more
    first.dismiss()


def test_what_differs_between_ranks_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_module, "delivered_digest", lambda delivered: delivered)
    monkeypatch.setattr(ranks_module, "_simulator", lambda: "Verilator 5")
    monkeypatch.setattr(ranks_module.platform, "node", lambda: "here")
    # program, files, what is wrong with these
    have: list[tuple[str, Any, str]] = [
        (PROGRAM, "same", ""),
        ("older", "same", ""),
        (PROGRAM, "other", ""),
        (PROGRAM, None, "emit/beta is missing"),
    ]

    def checked(ranks: Ranks) -> str:
        with pytest.raises(AllError) as caught, ranks.together():
            check_alike(ranks, *have[ranks.rank])
        return str(caught.value)

    with others(len(have), checked) as (first, found):
        wrong = checked(first)
    assert found == {1: wrong, 2: wrong, 3: wrong}
    assert wrong == (
        "cosim: rank 1 on here has another version of dagtrain than rank 0 on here; "
        "rank 2 on here has other files of the FPGAs than rank 0 on here; rank 3 on here: emit/beta is missing; "
        "install the same programs everywhere, and copy the working folder's emit/ from rank 0's machine"
    )


# ------------------------------------------------------------------------------------------------ with benches


@dataclass(frozen=True)
class Trained:
    """A cluster as it was delivered, and what one program makes of it."""

    delivered: Delivered
    graph: Graph
    feeds: Sequence[Feeds]
    folder: Path
    options: Mapping[str, Any]
    run: ClusterRun

    @classmethod
    def of(
        cls, design: ClusterDesign, folder: Path, network: NetworkModel, cycles: int, host_stall_256: int
    ) -> Trained:
        delivered = deliver(design, LIBRARY, folder / "emit")
        batch = design.graph.recipe.batch
        feeds: list[Feeds] = [synthetic_feeds(design.graph, batch, 100 + index) for index in range(4)]
        options: dict[str, Any] = {"optimise": False, "stretch_cycles": cycles, "host_stall_256": host_stall_256}
        options |= {"network": network, "seed": network.seed, "progress": Silent()}
        bench = folder / "one" / "bench"
        run = simulate_cluster(delivered, design.graph, LIBRARY, feeds, bench, Simulator.VERILATOR, **options)
        assert run.mismatches == (), f"seed {network.seed}"
        return cls(delivered, design.graph, feeds, folder, options, run)

    def on_ranks(self, size: int, emitted: Path | None = None) -> ClusterRun:
        """By so many, of which the others find what was delivered in a folder."""
        there = emitted or self.folder / "emit"

        def work(ranks: Ranks) -> bool:
            return help_out(ranks, PROGRAM, there, LIBRARY)

        bench = self.folder / str(size) / "bench"
        with others(size, work) as (first, _):
            try:
                return simulate_on_ranks(
                    first, PROGRAM, self.delivered, self.graph, LIBRARY, self.feeds, bench, **self.options
                )
            finally:
                first.dismiss()

    def check(self, size: int) -> None:
        """So many leave the same, in every file but those of which each rank has its own."""
        assert self.on_ranks(size) == self.run, f"{size} ranks, seed {self.options['seed']}"
        one, many = self.folder / "one" / "bench", self.folder / str(size) / "bench"
        for path in one.iterdir():
            if path.is_file() and path.name != "timeline.txt":
                assert (many / path.name).read_bytes() == path.read_bytes(), path.name


def words(folder: Path, latency: int, seed: int) -> Trained:
    """Three devices that all speak to one another."""
    graph = residual_net(2)
    design = design_cluster(graph, placement(graph, "dealt out"), DEVICES, CYCLES, LIBRARY, word_bits=64)
    network = NetworkModel(latency_cycles=latency, words=1, cycles=2, stall_256=40, seed=seed)
    return Trained.of(design, folder, network, CYCLES, 64)


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return words(tmp_path_factory.mktemp("far"), latency=90, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_leave_what_one_program_does(far: Trained, size: int) -> None:
    far.check(size)


@pytest.fixture(scope="module")
def framed(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A device each, over Ethernet that does its worst, with a host at the switch that loads state."""
    network = NetworkModel(latency_cycles=60, stall_256=16, faults=OFTEN, capture=True, seed=1)
    return Trained.of(designed({}, {}), tmp_path_factory.mktemp("framed"), network, TINY_CYCLES, 0)


@pytest.mark.slow
def test_ranks_on_ethernet_leave_what_one_program_does(framed: Trained) -> None:
    """Every frame in its cycle, and every fault."""
    framed.check(2)
    assert all(sum(getattr(pair, name) for pair in framed.run.pairs) for name in ("lost", "doubled", "again"))
    assert (framed.folder / "2" / "bench" / "frames.bin").stat().st_size > 10_000
    with pytest.raises(DagtrainError, match=r"3 ranks for 2 devices on Ethernet, whose host is .*; start at most 2"):
        framed.on_ranks(3)


@pytest.mark.slow
def test_ranks_on_ethernet_with_clocks_of_their_own_count_the_same(tmp_path: Path) -> None:
    network = NetworkModel(latency_cycles=60, stall_256=16, faults=OFTEN, seed=3)
    design = designed({"beta": (156.25, 128)}, {"beta": Fraction(200, 250)})
    Trained.of(design, tmp_path, network, TINY_CYCLES, 0).check(2)


@pytest.mark.slow
def test_a_frame_that_comes_too_late_is_found(framed: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Job.look_ahead.fget
    monkeypatch.setattr(Job, "look_ahead", property(lambda job: honest(job) + 2))
    with pytest.raises(DagtrainError, match="the window is longer than it was under way"):
        framed.on_ranks(2)


@pytest.mark.slow
def test_a_window_a_cycle_too_long_is_found(far: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Job.look_ahead.fget
    monkeypatch.setattr(Job, "look_ahead", property(lambda job: honest(job) + 1))
    with pytest.raises(DagtrainError, match="the window is longer than it was under way"):
        far.on_ranks(2)


@pytest.mark.slow
def test_a_word_a_cycle_late_is_found(far: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Job.share_text.fget

    def later(job: Job) -> str:
        ranks, latency, *rest = honest(job).split()
        return " ".join([ranks, str(int(latency) + 1), *rest])

    monkeypatch.setattr(Job, "share_text", property(later))
    run = far.on_ranks(2)
    # bits stay, cycles don't
    assert run.mismatches == ()
    assert run.cycles != far.run.cycles


@pytest.mark.slow
def test_a_rank_with_another_plan_is_found(far: Trained, tmp_path: Path) -> None:
    shutil.copytree(far.folder / "emit", tmp_path / "emit")
    top = tmp_path / "emit" / "beta" / "rtl" / "beta.v"
    top.write_text(top.read_text() + "// another one\n")
    with pytest.raises(DagtrainError, match=r"^cosim: rank 1 on \S+ has other files of the FPGAs than rank 0 on"):
        far.on_ranks(2, tmp_path / "emit")
