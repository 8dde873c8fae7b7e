"""`dagtrain drive`, against devices that share no code with it (`tests/ethernet_peer.py`)."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from rich.console import Console

from dagtrain.console import BarProgress
from dagtrain.files import open_archive
from dagtrain.flow.placed import load_placed_graph, load_plan
from dagtrain.flow.trained import begun_from
from dagtrain.graph.ir import Role
from dagtrain.graph.storage import StorageError
from dagtrain.host.cluster import Trained
from dagtrain.host.twin import Twin
from dagtrain.host.wiring import wiring_text
from dagtrain.passes.access_state import access_state
from dagtrain.planning.choices import folded_graph
from dagtrain.training.emulator import Emulator
from dagtrain.training.spec import choose_data
from tests.flow_support import Case, new_case, quick_costs
from tests.host_support import driven, wiring_of

# batches of an epoch
BATCHES = 8
SECONDS = 300.0


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A plan with data, and what a host knows of its devices."""
    with pytest.MonkeyPatch.context() as patch:
        quick_costs(patch)
        found = new_case(tmp_path_factory.mktemp("drive"))
        recipe = found.write("recipe.toml", "batch = 4\nstaleness = 4\n")
        assert found.step("import", "--recipe", recipe, "--data", found.data()).code == 0
        assert found.step("place").code == 0
    return found


@contextmanager
def cluster(case: Case, folder: Path, *options: str) -> Iterator[list[object]]:
    """Devices that run, and the options by which they are found."""
    with driven(case.workspace, folder, *options) as addresses:
        yield ["--addresses", addresses]


def arrays(path: Path) -> dict[str, np.ndarray]:
    with open_archive(path) as file:
        return {name: file[name] for name in file.files}


def assert_same(path: Path, other: Path) -> None:
    """Checkpoints of the same state and record."""
    found, wanted = arrays(path), arrays(other)
    assert found.keys() == wanted.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=name)


def test_a_driven_training_is_recorded_like_any_other(case: Case, tmp_path: Path) -> None:
    run = tmp_path / "run.npz"
    with cluster(case, tmp_path) as found:
        done = case.step("drive", *found, "--epochs", 2, "--save", run, "--json")
        assert done.code == 0, done.error
        # more of the same go on from it
        more = case.step("drive", *found, "--epochs", 3, "--resume", run, "--save", run)
        assert more.code == 0, more.error
    told = json.loads(done.out)
    assert (told["batches"], len(told["epochs"]), told["saved"]) == (2 * BATCHES, 2, str(run))
    assert {"name", "sent", "heard", "retransmitted", "drops", "credits"} <= set(told["devices"][0])
    lines = [json.loads(line) for line in (case.out / "drive" / "metrics.jsonl").read_text().splitlines()]
    assert [line["batch"] for line in lines if "batch_loss" in line] == list(range(1, 3 * BATCHES + 1))
    assert [line["epoch"] for line in lines if "held_out_accuracy" in line] == [1, 2, 3]
    assert f"checkpoint at batch {3 * BATCHES}: {run}" in more.out
    assert not list(tmp_path.glob(".*"))


def test_the_emulator_beside_it_names_what_differs(case: Case, tmp_path: Path) -> None:
    """These devices count and train nothing, so the first loss and the state differ."""
    with cluster(case, tmp_path) as found:
        done = case.step("drive", *found, "--compare", "--tensorboard", "--json")
    assert done.code == 1
    told = json.loads(done.out)
    assert not told["passed"]
    compared = told["compared"]
    assert compared["batches"] == BATCHES
    assert compared["words"] > 100
    assert compared["mismatches"][0].startswith("batch 1: loss ")
    assert any(f"behind batch {BATCHES}: " in line for line in compared["mismatches"])
    assert list((case.out / "drive" / "tensorboard").iterdir())


def test_a_twin_that_trains_the_same_finds_nothing_until_a_bit_is_turned(case: Case) -> None:
    graph = load_placed_graph(case.workspace)
    data = choose_data(str(case.data()), None, False).parts(1)[0]
    twin, other = Twin(Emulator(graph), data), Emulator(graph)

    async def train(batches: range) -> None:
        for number in batches:
            index = np.arange(4) + number
            twin.feed(index, (0, number))
            # once more, as from a checkpoint on
            twin.feed(index, (0, number))
            metrics, none = other.train_batch(data, index, (0, number)), np.zeros((0, 2), np.int64)
            await twin.check(
                Trained(batch=number + 1, metrics=metrics, images_per_second=1.0, records=none, devices=())
            )
            twin.check_state(other)

    asyncio.run(train(range(3)))
    assert (twin.batches, twin.mismatches) == (3, [])
    assert twin.words > 100
    update = next(node for node in graph.nodes if node.role is Role.UPDATE)
    words = list(update.layer.state_words(other.executor.states[update.name]))
    update.layer.with_state_words(other.executor.states[update.name], [words[0] ^ 1, *words[1:]])
    twin.check_state(other)
    (told,) = twin.mismatches
    assert told == (
        f"behind batch 3: 1 of {len(words)} words of {update.name}, the first at 0: {words[0] ^ 1:#x} where the "
        f"emulator has {words[0]:#x}"
    )


def test_checkpoints_go_on_in_the_emulator_and_on_devices(case: Case, tmp_path: Path) -> None:
    run = tmp_path / "run.npz"
    assert case.step("train", "--epochs", 1).code == 0
    trained = case.out / "train" / "state.npz"
    with cluster(case, tmp_path) as found:
        done = case.step("drive", *found, "--epochs", 2, "--resume", trained, "--save", run)
    assert done.code == 0, done.error
    assert f"{2 * BATCHES} batches on 2 devices" in done.out
    ends = [Emulator(load_placed_graph(case.workspace)) for _ in range(2)]
    for emulator, path in zip(ends, (trained, run), strict=True):
        emulator.load(path)
    before, after = (emulator.executor for emulator in ends)
    assert (before.batches, after.batches) == (BATCHES, 2 * BATCHES)
    updates = [node for node in after.graph.nodes if node.role is Role.UPDATE]
    was, now = ([node.layer.state_words(each.states[node.name]) for node in updates] for each in (before, after))
    # these devices count in the lowest bits of the first word of each node of the first one, and do nothing else
    assert sum(a != b for a, b in zip(was, now, strict=True)) == len(updates) - 1
    for a, b in zip(was, now, strict=True):
        assert (a[0] >> 8, list(a[1:])) == (b[0] >> 8, list(b[1:]))
    begun = begun_from(after.graph, run)
    assert begun.begun == 2 * BATCHES
    # and back: the emulator goes on with what devices have, and it is exported
    more = case.step("train", "--epochs", 3, "--checkpoint", run)
    assert more.code == 0, more.error
    done_epochs = json.loads((case.out / "train" / "train.json").read_text())["epochs"]
    held = json.loads(str(arrays(run)["document"]))["record"]["epochs"]
    assert (len(done_epochs), done_epochs[:2]) == (3, held)
    exported = case.step("export", "--weights", run, "--json")
    assert exported.code == 0, exported.error
    proto = onnx.load(json.loads(exported.out)["path"])
    found = {item.name: onnx.numpy_helper.to_array(item) for item in proto.graph.initializer}
    for name, values in after.parameters().items():
        np.testing.assert_array_equal(found[name.replace(".w", ".weight")].ravel(), values.ravel())


def test_a_killed_driver_s_checkpoint_ends_in_the_bits_of_an_uninterrupted_one(case: Case, tmp_path: Path) -> None:
    whole, run = tmp_path / "whole.npz", tmp_path / "run.npz"
    with cluster(case, tmp_path) as found:
        assert case.step("drive", *found, "--epochs", 2, "--save", whole).code == 0
    with cluster(case, tmp_path, "--pause", "0.1") as found:
        words = ["drive", *found, "--epochs", "2", "--save", run, "--every", "1", "--out", case.out]
        program = _program(words)
        try:
            _until(run.exists)
        finally:
            program.kill()
            program.communicate()
        assert program.returncode == -signal.SIGKILL
        batches = json.loads(str(arrays(run)["document"]))["batches"]
        assert 0 < batches < 2 * BATCHES
    with cluster(case, tmp_path) as found:
        again = case.step("drive", *found, "--epochs", 2, "--resume", run, "--save", run)
        assert again.code == 0, again.error
    assert_same(run, whole)


@pytest.mark.slow
def test_ctrl_c_keeps_a_checkpoint_and_tells_what_was_compared(case: Case, tmp_path: Path) -> None:
    run = tmp_path / "run.npz"
    with cluster(case, tmp_path, "--pause", "0.05") as found:
        often = ["--epochs", "50", "--save", run, "--every", "2", "--compare"]
        program = _program(["drive", *found, *often, "--out", case.out])
        try:
            _until(run.exists)
            program.send_signal(signal.SIGINT)
            _, error = program.communicate(timeout=SECONDS)
        finally:
            program.kill()
            program.wait()
    assert program.returncode == 130, error
    batches = json.loads(str(arrays(run)["document"]))["batches"]
    assert f"a checkpoint stands at batch {batches}: --resume {run} goes on" in error
    assert "Traceback" not in error
    # these devices train nothing, so what the emulator has beside them differs
    assert f"\n{batches} batches and " in error
    assert " against the emulator: MISMATCH: batch 1: loss " in error
    told = json.loads((case.out / "drive" / "drive.json").read_text())
    assert (told["batches"], told["compared"]["batches"]) == (batches, batches)
    assert told["compared"]["words"] > 100


class _Trap:
    """Unpickled, it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_a_checkpoint_is_read_without_running_anything_in_it(case: Case, tmp_path: Path) -> None:
    trap, bad = tmp_path / "sprung", tmp_path / "bad.npz"
    np.savez(bad, document=np.array([_Trap(trap)], object), allow_pickle=True)
    for command in (("drive", "--addresses", tmp_path / "addresses.toml"), ("emit", "--weights", bad)):
        with cluster(case, tmp_path):
            outcome = case.step(*command, *(("--resume", bad) if command[0] == "drive" else ()))
        assert outcome.code == 1
        assert "bad.npz" in outcome.error
        assert "Object arrays cannot be loaded" in outcome.error
    assert not trap.exists()


def test_a_damaged_checkpoint_is_a_message(case: Case, tmp_path: Path) -> None:
    """300 checkpoints of which one value is another: each is taken, or refused in words."""
    graph, seed = load_placed_graph(case.workspace), 17
    rng, path = random.Random(seed), tmp_path / "state.npz"
    emulator = Emulator(graph)
    emulator.save(path, {"mine": [1]})
    held = arrays(path)
    document = json.loads(str(held["document"]))
    refused = 0
    for _ in range(300):
        changed = json.loads(json.dumps(document))
        _change(changed, rng)
        np.savez(path, **(held | {"document": np.array(json.dumps(changed))}))
        try:
            emulator.load(path)
        except StorageError:
            refused += 1
        assert type(emulator.executor.batches) is int
    assert 100 < refused <= 300, f"seed {seed}"


def _change(document: object, rng: random.Random) -> None:
    """Another value somewhere inside a document."""
    places = list(document.items() if isinstance(document, dict) else enumerate(document))  # type: ignore[call-overload]
    key, value = rng.choice(places)
    if isinstance(value, dict | list) and value and rng.random() < 0.8:
        _change(value, rng)
        return
    if isinstance(document, dict) and rng.random() < 0.3:
        del document[key]
        return
    other = [None, True, -1, 1e308, "x", [], {}, {"array": "a0"}, {"array": "none"}, {"dict": 3}, {"deque": [[]]}]
    document[key] = rng.choice([new for new in other if new != value])  # type: ignore[index]


def _program(words: list[object]) -> subprocess.Popen[str]:
    code = "from dagtrain.cli import main; main()"
    return subprocess.Popen([sys.executable, "-c", code, *map(str, words)], stderr=subprocess.PIPE, text=True)


def _until(ready: object) -> None:
    end = time.monotonic() + SECONDS
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_what_cannot_be_driven_is_said(case: Case, tmp_path: Path) -> None:
    graph = access_state(folded_graph(load_placed_graph(case.workspace), load_plan(case.workspace)))
    file, wiring = tmp_path / "addresses.toml", wiring_of(graph)
    file.write_text(wiring_text(wiring.model_copy(update={"batch": 5, "rounds": 1})))
    for words, said in (
        (["--epochs", 0, "--every", 0], "--epochs must be at least 1, not 0; --every must be at least 1, not 0"),
        ([], "cannot read"),
        (["--addresses", file], "batch 5 where the plan has 4\n  rounds 1 where the plan has 2"),
    ):
        outcome = case.step("drive", *words)
        assert outcome.code == 1
        assert said in outcome.error
    file.write_text(wiring_text(wiring))
    for word, said in (("nowhere.invalid", "'nowhere.invalid' is no address"), ("127.0.0.1:x", "'x' is no port")):
        assert said in case.step("drive", "--addresses", file, "--host", word).error
    outcome = case.step("drive", "--addresses", file, "--host", "127.0.0.1:9", "--answer-seconds", 0.5)
    assert outcome.code == 1
    assert outcome.error.count("at 127.0.0.1:9: no answer within 0.5 s; see that it runs") == 2
    # a checkpoint without the record of a training, or with one that is of another kind
    foreign = tmp_path / "foreign.npz"
    with cluster(case, tmp_path) as found:
        other = case.step("drive", *found, "--resume", tmp_path / "none.npz")
        assert other.code == 1
        assert "none.npz" in other.error
        for record in (None, {"identity": {}, "epochs": [{"epoch": "x"}], "begun": {}}):
            Emulator(graph).save(foreign, record)
            other = case.step("drive", *found, "--resume", foreign)
            assert other.code == 1
            assert "has no record of a training; leave --resume out to begin anew" in other.error


def test_a_panel_stands_below_the_bars() -> None:
    console = Console(force_terminal=True, width=80, record=True)
    bars = BarProgress(console)
    bars.begin("drive", 3)
    bars.show([("device", "sent"), ("fpga-0", "1,234")])
    console.print(bars._bars.get_renderable())
    assert "fpga-0" in console.export_text()
