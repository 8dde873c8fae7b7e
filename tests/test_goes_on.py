"""Training that goes on: more epochs, after Ctrl-C within an epoch, with the bits and curves of one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagtrain.flow import train_step
from dagtrain.training.emulator import Emulator
from tests.flow_support import Case, new_case

# of 96 frames, 77 to train on, in batches of 16
BATCHES = 4


@pytest.fixture
def case(tmp_path: Path) -> Case:
    made = new_case(tmp_path / "case")
    assert made.step("import", "--data", made.data(96)).code == 0
    return made


def results(case: Case) -> tuple[bytes, bytes, list[Any], list[Any]]:
    """Weights, checkpoint, epochs and curves that training left."""
    folder = case.out / "train"
    with np.load(folder / "state.npz") as state:
        arrays = b"".join(state[name].tobytes() for name in sorted(state.files) if name != "document")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    epochs = json.loads((folder / "train.json").read_text())["epochs"]
    return (folder / "weights.npz").read_bytes(), arrays, epochs, lines


def watched(monkeypatch: pytest.MonkeyPatch, stop_at: int | None = None) -> list[int]:
    """Numbers of the batches that are trained; Ctrl-C is pressed before the one that would be the n-th."""
    trained, work = list[int](), Emulator.train_batch

    def train_batch(emulator: Emulator, *words: Any) -> Any:
        if len(trained) == stop_at:
            raise KeyboardInterrupt
        trained.append(emulator.executor.batches)
        return work(emulator, *words)

    monkeypatch.setattr(Emulator, "train_batch", train_batch)
    return trained


def test_more_epochs_go_on_from_those_that_are_done(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    assert case.step("train", "--epochs", 5).code == 0
    wanted = results(case)
    assert case.step("train", "--epochs", 2).code == 0
    assert len(results(case)[2]) == 2
    trained = watched(monkeypatch)
    outcome = case.step("train", "--epochs", 5, "--resume")
    assert outcome.code == 0, outcome.error
    assert trained == list(range(2 * BATCHES, 5 * BATCHES))
    assert results(case) == wanted


@pytest.mark.parametrize("stop", [1, 2, 3, 5, 6, 7])
def test_ctrl_c_within_an_epoch_loses_no_more_than_since_the_last_checkpoint(
    stop: int, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert case.step("train", "--epochs", 2).code == 0
    wanted = results(case)
    assert case.step("train", "--epochs", 1).code == 0
    (case.out / "train" / "train.json").unlink()
    (case.out / "train" / "state.npz").unlink()
    monkeypatch.setattr(train_step, "CHECKPOINT_BATCHES", 2)
    with monkeypatch.context() as patch:
        watched(patch, stop_at=stop)
        outcome = case.step("train", "--epochs", 2)
    assert outcome.code == 130
    saved = stop // 2 * 2
    told = f"interrupted in epoch {stop // BATCHES + 1} of 2; the same command goes on from batch {saved} of 8"
    assert (told if saved else "interrupted; the results of earlier steps are as they were") in outcome.error
    trained = watched(monkeypatch)
    assert case.step("train", "--epochs", 2).code == 0
    assert trained == list(range(saved, 2 * BATCHES))
    assert results(case) == wanted
    assert not (case.out / "train-live").exists()


def test_curves_can_be_followed_and_have_a_line_a_batch_and_an_epoch(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = case.out / "train-live" / "metrics.jsonl"
    seen: list[int] = []
    work = Emulator.train_batch

    def train_batch(emulator: Emulator, *words: Any) -> Any:
        text = live.read_text()
        assert not text or text.endswith("\n")
        seen.append(len(text.splitlines()))
        return work(emulator, *words)

    monkeypatch.setattr(Emulator, "train_batch", train_batch)
    assert case.step("train", "--epochs", 2).code == 0
    assert seen == [0, 1, 2, 3, 5, 6, 7, 8]
    lines = results(case)[3]
    assert [line["batch"] for line in lines] == [1, 2, 3, 4, 4, 5, 6, 7, 8, 8]
    assert lines[4]["held_out_accuracy"] == results(case)[2][0]["held_out_accuracy"]
    assert lines[4]["train_loss"] == pytest.approx(np.mean([line["batch_loss"] for line in lines[:4]]))


def test_tensorboard_reads_the_same_curves(case: Case) -> None:
    from tensorboardX.proto.event_pb2 import Event

    assert case.step("train", "--epochs", 1, "--tensorboard").code == 0
    (path,) = (case.out / "train" / "tensorboard").iterdir()
    data, events = path.read_bytes(), []
    while data:
        size = int.from_bytes(data[:8], "little")
        events.append(Event.FromString(data[12 : 12 + size]))
        data = data[12 + size + 4 :]
    found = [(event.step, value.tag, value.simple_value) for event in events for value in event.summary.value]
    assert [step for step, tag, _ in found if tag == "batch/loss"] == [1, 2, 3, 4]
    (held_out,) = (value for _, tag, value in found if tag == "held_out/accuracy")
    assert held_out == pytest.approx(results(case)[2][0]["held_out_accuracy"])


def test_resume_says_why_it_can_not_go_on(case: Case) -> None:
    outcome = case.step("train", "--resume")
    assert outcome.code == 1
    assert "nothing to go on from" in outcome.error
    assert "state.npz does not exist" in outcome.error
    assert not (case.out / "train").exists()
    assert case.step("train", "--epochs", 2).code == 0
    before = case.snapshot()
    for words, reason in (
        (("--epochs", 1), "has 2 epochs and 0 frames behind it, more than --epochs 1"),
        (("--epochs", 3, "--seed", 2), "is of a training with other seed"),
        (("--epochs", 3, "--held-out", 0.5), "is of a training with other data"),
    ):
        outcome = case.step("train", "--resume", *words)
        assert outcome.code == 1
        assert reason in outcome.error
        assert case.snapshot() == before
