"""Copies of layers that train in processes of their own: the bits of one process, whoever runs them."""

from __future__ import annotations

import multiprocessing
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagtrain.flow.workspace import STAMP, program_hash
from dagtrain.graph.executor import Executor
from dagtrain.graph.ir import Graph, GraphError
from dagtrain.passes.exchange import CENTRAL, Exchanging
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.replicate import replicate
from dagtrain.runs.dask import DaskRunner
from dagtrain.runs.job import Job, Outcome, T, attempt
from dagtrain.runs.local import LocalRunner
from dagtrain.training import post
from dagtrain.training import team as team_module
from dagtrain.training.emulator import Emulator, coded_edges
from dagtrain.training.feeds import synthetic_feeds
from dagtrain.training.post import Board, Inbox, Placed
from dagtrain.training.team import HOME, Part, Team, address_towards, parts_of
from hdl.errors import DagtrainError, ProcessLost
from hdl.fixed import Fixed
from tests.flow_support import Case, new_case
from tests.test_copies import SETS, net
from tests.test_exchange import CHAIN, CODED_RING, FED_BACK

HERE = address_towards(None)
WAYS = {"central": CENTRAL, "chain": CHAIN, "coded ring": CODED_RING, "feedback": FED_BACK}
BATCHES = 3


class Threads:
    """Runs all jobs at once in threads of this process, which begin sooner than processes."""

    def __init__(self, workers: int = 8) -> None:
        self.workers = workers

    def outcomes(self, jobs: Sequence[Job[T]]) -> Iterator[Outcome[T]]:
        """What comes of each job, as it ends."""
        with ThreadPoolExecutor(self.workers) as pool:
            begun = {pool.submit(attempt, job.work, *job.words): job for job in jobs}
            for future in as_completed(begun):
                yield future.result().of(begun[future])


def copied(name: str, way: Exchanging = CENTRAL) -> Graph:
    return insert_forks(replicate(net(5, 3), SETS[name], way))


def frames(graph: Graph, batch: int) -> Mapping[str, Any]:
    return synthetic_feeds(graph, graph.recipe.batch, 100 + batch)


def step(executor: Executor, batch: int, seen: dict[str, list[int]]) -> dict[str, list[int]]:
    """What the host gets, and what a watcher sees of coded edges."""
    coded = coded_edges(executor.graph)

    def watch(edge: str, array: np.ndarray) -> None:
        if edge in coded:
            seen[edge] = array.ravel().tolist()

    results = executor.step(frames(executor.graph, batch), watch)
    return {name: array.ravel().tolist() for name, array in results.items()}


def checkpoint(executor: Executor, path: Path) -> bytes:
    Emulator(executor.graph, executor=executor).save(path)
    return path.read_bytes()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "processes"), [("two of all", 2), ("three of all", 2), ("unlike numbers", 4)])
def test_processes_train_to_the_bits_of_one(
    name: str, processes: int, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # by messages, and by common memory
    monkeypatch.setattr(post, "LEAST_SHARED_BYTES", 1 << 16 if way == "central" else 1)
    graph = copied(name, WAYS[way])
    one = Executor(graph)
    with Team(graph, processes, Threads(), HERE) as team:
        for batch in range(BATCHES):
            seen: dict[str, list[int]] = {}
            wanted_seen: dict[str, list[int]] = {}
            assert step(team, batch, seen) == step(one, batch, wanted_seen)
            assert seen == wanted_seen
            # of fewer frames than copies, too
            for count in (1, 7):
                feeds = synthetic_feeds(graph, count, batch)
                ours, wanted = team.evaluate(feeds), one.evaluate(feeds)
                assert all(np.array_equal(ours[output], wanted[output]) for output in wanted)
        assert checkpoint(team, tmp_path / "team.npz") == checkpoint(one, tmp_path / "one.npz")
        values, wanted_values = team.parameters(), one.parameters()
    assert values.keys() == wanted_values.keys()
    assert all(np.array_equal(values[key], wanted_values[key]) for key in values)


def test_each_process_has_its_copies_and_a_share_of_what_is_of_all() -> None:
    for way in (CENTRAL, CODED_RING):
        parts = parts_of(copied("three of all", way), 3)
        assert {*parts.values()} == {HOME, 1, 2, 3}
        assert all(part == int(name[-1]) + 1 for name, part in parts.items() if name[-2:] in ("@0", "@1", "@2"))
    assert parts_of(copied("three of all", CHAIN), 3)["conv1.w.update@2"] == 3
    graph = copied("three of all")
    parts = parts_of(graph, 3)
    updates = {name: part for name, part in parts.items() if name.endswith(".update")}
    sums = {graph.by_name[name].inputs["g"]: part for name, part in updates.items()}
    assert all(parts[graph.maker(edge)[0].name] == part for edge, part in sums.items())
    # no process has more than its share and the largest tensor
    elements = Counter[int]()
    for edge, part in sums.items():
        elements[part] += graph.tensor(edge).elements
    largest = max(graph.tensor(edge).elements for edge in sums)
    assert max(elements.values()) <= sum(elements.values()) / 3 + largest
    assert HOME not in elements


def test_a_training_goes_on_from_one_process_in_several_and_back(tmp_path: Path) -> None:
    graph = copied("two of all", FED_BACK)
    one, path = Executor(graph), tmp_path / "between.npz"
    for batch in range(4):
        one.step(frames(graph, batch))
    begun = Executor(graph)
    begun.step(frames(graph, 0))
    checkpoint(begun, path)
    with Team(graph, 2, Threads(), HERE) as team:
        # whatever it was at before
        team.step(frames(graph, 3))
        Emulator(graph, executor=team).load(path)
        for batch in (1, 2):
            team.step(frames(graph, batch))
        checkpoint(team, path)
    alone = Emulator(graph)
    alone.load(path)
    alone.executor.step(frames(graph, 3))
    assert checkpoint(alone.executor, tmp_path / "a.npz") == checkpoint(one, tmp_path / "b.npz")


def test_copies_that_differ_are_named() -> None:
    graph = copied("two of all", CHAIN)
    with Team(graph, 2, Threads(), HERE) as team:
        team.step(frames(graph, 0))
        states, weights = team.snapshot()
        states["conv2.w.update@1"]["master"] += 1 << 12
        team.restore(states, weights, team.batches)
        with pytest.raises(GraphError, match=r"copies of conv2.w differ after batch 2: conv2.*@0, conv2.*@1"):
            team.step(frames(graph, 1))


def test_too_few_copies_are_told_with_the_cure() -> None:
    with pytest.raises(GraphError, match=r"3 processes can't share the layers, which have 2 copies at most.*'\*=3'"):
        Team(copied("two of all"), 3, Threads(), HERE)
    with pytest.raises(GraphError, match="which have 1 copies at most"):
        Team(insert_forks(net(5, 3)), 2, Threads(), HERE)


def test_processes_that_do_not_begin_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team_module, "BEGIN_SECONDS", 1.0)
    with pytest.raises(DagtrainError, match=r"only 1 of 2 processes have begun within 1.0 s; have the scheduler give"):
        Team(copied("two of all"), 2, Threads(1), HERE)


def test_who_does_not_know_the_key_is_left_out() -> None:
    graph = copied("two of all")
    team = Team.__new__(Team)
    greeted = []

    class Strangers(Threads):
        def outcomes(self, jobs: Sequence[Job[T]]) -> Iterator[Outcome[T]]:
            address = jobs[0].words[1]
            with pytest.raises(AuthenticationError):
                Client(address, authkey=b"another")
            greeted.append(address)
            yield from super().outcomes(jobs)

    Team.__init__(team, graph, 2, Strangers(), HERE)
    with team:
        assert step(team, 0, {}) == step(Executor(graph), 0, {})
    assert len(greeted) == 1


@pytest.mark.parametrize("error", [DagtrainError("on purpose"), ZeroDivisionError("a fault")], ids=str)
def test_what_goes_wrong_in_a_process_is_raised_here(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = copied("two of all")
    with Team(graph, 2, Threads(), HERE) as team:
        team.step(frames(graph, 0))
        whole = Part.step

        def spoilt(self: Part, *given: Any, **named: Any) -> Any:
            if self.own == 2:
                raise error
            return whole(self, *given, **named)

        monkeypatch.setattr(Part, "step", spoilt)
        with pytest.raises(type(error), match=str(error)):
            team.step(frames(graph, 1))


@pytest.mark.slow
def test_a_process_that_is_killed_is_told_and_leaves_no_other() -> None:
    graph = copied("two of all")
    before = multiprocessing.active_children()
    with Team(graph, 2, LocalRunner(2), HERE) as team:
        assert step(team, 0, {}) == step(Executor(graph), 0, {})
        begun = [child for child in multiprocessing.active_children() if child not in before]
        begun[0].kill()
        with pytest.raises(ProcessLost, match=r"ended from outside.*the same command goes on from the last checkpoint"):
            _ = [team.step(frames(graph, batch)) for batch in range(1, 100)]
    for child in multiprocessing.active_children():
        if child not in before:
            # the pool's own thread may be the one that is told of the end first
            end = time.monotonic() + 20
            while child.exitcode is None and time.monotonic() < end:
                time.sleep(0.05)
            assert child.exitcode is not None


def test_workers_of_dask_train_to_the_same_bits(tmp_path: Path) -> None:
    graph = copied("two of all", CODED_RING)
    one = Executor(graph)
    with Team(graph, 2, DaskRunner(None, 2, program_hash), HERE) as team:
        for batch in range(2):
            assert step(team, batch, {}) == step(one, batch, {})
        assert checkpoint(team, tmp_path / "team.npz") == checkpoint(one, tmp_path / "one.npz")


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("fixed", [Fixed(1, 0, signed=False), Fixed(8, 3), Fixed(8, 0, signed=False), Fixed(46, 20)])
def test_codes_go_in_few_bytes_and_come_back(fixed: Fixed, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post, "LEAST_SHARED_BYTES", 1)
    board, reader = Board(shared), Board(shared)
    for codes in (np.array([[fixed.low, 0, fixed.high]]), np.array([[fixed.high, 1, fixed.low]])):
        sent = board.put("edge", codes, fixed)
        assert isinstance(sent, Placed) == shared
        assert np.array_equal(reader.codes(sent), codes)
        kind = np.dtype(sent.kind) if isinstance(sent, Placed) else sent.dtype
        assert kind.itemsize == {1: 1, 8: 1 if fixed.signed else 2, 46: 8}[fixed.width]
    board.close()
    # of another length beside it, and after all is over
    assert np.array_equal(reader.codes(sent), codes)


def test_an_inbox_gives_what_came_before_it_says_that_no_more_will() -> None:
    inbox = Inbox()
    inbox.put("edge", {}, [])
    inbox.fail(ProcessLost("gone"))
    assert inbox.take("edge") == ({}, [])
    with pytest.raises(ProcessLost):
        inbox.take("edge")
    with pytest.raises(TimeoutError):
        Inbox().take("edge", 0.01)


def test_a_scheduler_s_workers_are_told_an_address_that_they_can_reach() -> None:
    assert address_towards("tcp://127.0.0.1:8786") == "127.0.0.1"
    assert address_towards("127.0.0.1:8786") == "127.0.0.1"
    for wrong in ("tcp://no.such.machine.invalid:8786", "tcp://127.0.0.1:port", ""):
        with pytest.raises(DagtrainError, match=rf"--scheduler {wrong} is no address that this machine reaches"):
            address_towards(wrong)


# ---- the command


def copies(root: Path, *words: str) -> Case:
    case = new_case(root)
    outcome = case.step("import", "--data", case.data(), "--copy", "*=2", *words)
    assert outcome.code == 0, outcome.error
    return case


def results(case: Case) -> dict[str, bytes]:
    """All files of a training but the stamp, which says by what command it was left."""
    return {name: data for name, data in case.snapshot().items() if name[:6] == "train/" != name.replace(STAMP, "")}


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("--exchange", "ring", "--compress", "bounded:10"), id="ring"),
        pytest.param((), id="central", marks=pytest.mark.slow),
    ],
)
def test_train_leaves_the_same_files_with_replicas(tmp_path: Path, words: tuple[str, ...]) -> None:
    one, two = copies(tmp_path / "one", *words), Case(tmp_path / "two")
    shutil.copytree(one.root, two.root)
    for case, more in ((one, ()), (two, ("--replicas", 2))):
        outcome = case.step("train", "--epochs", 1, *more)
        assert outcome.code == 0, outcome.error
    # goes on in one process where two were, and the other way round
    for case, more in ((one, ("--replicas", 2)), (two, ())):
        outcome = case.step("train", "--epochs", 2, "--resume", *more)
        assert outcome.code == 0, outcome.error
    assert len(results(one)) == 4
    assert results(one) == results(two)
    # nothing to do: no bit depends on who trains
    outcome = one.step("train", "--epochs", 2, "--json")
    assert '"done": false' in outcome.out or "up to date" in outcome.out, outcome.out


def test_all_that_is_wrong_with_replicas_is_told(tmp_path: Path) -> None:
    case = copies(tmp_path)
    outcome = case.step("train", "--replicas", 0, "--epochs", 0)
    assert outcome.code == 1
    assert "--epochs must be at least 1, not 0" in outcome.error
    assert "--replicas must be at least 1, not 0" in outcome.error
    for words, what in {
        ("--runner", "dask"): "--runner and --scheduler are of several processes; add --replicas",
        ("--replicas", 2, "--scheduler", "tcp://x:1"): "only Dask has a scheduler",
        ("--replicas", 2, "--runner", "cloud"): "no such runner",
        ("--replicas", 3): "3 processes can't share the layers, which have 2 copies at most",
    }.items():
        outcome = case.step("train", *words)
        assert (outcome.code, what in outcome.error) == (1, True), outcome.error
    assert not results(case)
