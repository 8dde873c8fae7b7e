"""The table of docs/importing.md: rows are tried, results kept, reasons told; equal graphs are told from others."""

from __future__ import annotations

import dataclasses
import signal
import sys
from pathlib import Path

import pytest

from benchmarks import importing
from benchmarks.importing import DONE, FAILED, OPEN, Limits, Results, general, graph_digest, rows, run, settled, table
from dagtrain.graph.executor import Executor, Mode
from dagtrain.passes.autodiff import differentiate
from dagtrain.training.feeds import synthetic_feeds
from hdl.errors import DagtrainError
from importers.onnx import import_model
from tests.import_support import example, save

MLP = next(row for row in rows() if row.network == "mlp")
GOOGLENET = next(row for row in rows() if row.published in importing.UNEXPORTABLE)


def test_rows_have_names_of_their_own() -> None:
    names = [row.name for row in rows()]
    assert len(set(names)) == len(names) == 29 * 4 + 9 + 2


def test_exports_of_one_network_share_a_graph_and_others_do_not(tmp_path: Path) -> None:
    names = ("resnet18-torchscript-training", "resnet18-dynamo-training", "shufflenet_v2-dynamo-training")
    first, second, other = (graph_digest(import_model(save(example(f"small/{name}"), tmp_path))) for name in names)
    assert first == second != other


def test_settled_weights_give_results_of_unit_variance(tmp_path: Path) -> None:
    graph = differentiate(import_model(save(example("small/squeezenet1_1-dynamo-eval"), tmp_path)))
    feeds = synthetic_feeds(graph, 2, seed=3)
    found = {}

    def watch(edge: str, array: object) -> None:
        node, _ = graph.producers[edge]
        if "w" in node.parameters and edge == node.outputs.get("y"):
            found[edge] = float((array**2).mean())  # type: ignore[operator]

    Executor(settled(graph, feeds), Mode.REFERENCE).step(feeds, watch)
    assert len(found) == 26
    assert all(value == pytest.approx(1, rel=1e-6) for value in found.values())


def test_recipes_are_tried_until_the_loss_falls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[float, float, Mode, int]] = []

    def losses_of(executor: Executor, _feeds: object, batches: int) -> tuple[float, float]:
        recipe = executor.graph.recipe
        tried.append((recipe.learning_rate, recipe.clip, executor.mode, batches))
        return 2.0, 1.0 if recipe.clip == falls_at else 3.0

    monkeypatch.setattr(importing, "losses_of", losses_of)
    # as if it were a large network
    monkeypatch.setattr(importing, "LARGE", 0)
    falls_at = 0.001
    assert importing.trains(MLP, tmp_path) == {"losses": (2.0, 1.0), "batches": 8, "learning_rate": 0.01, "clip": 0.001}
    assert [recipe for *recipe, mode, _ in tried if mode is Mode.GOLDEN] == [[0.001, 0.0], [0.0002, 0.0], [0.01, 0.001]]
    assert [batches for *_, mode, batches in tried if mode is Mode.GOLDEN] == [2, 2, 8]
    falls_at = -1.0
    with pytest.raises(
        DagtrainError, match=r"3 in 8 batches at a learning rate of 0.01 and a clip of 0.001 \(in float64 3\)"
    ):
        importing.trains(MLP, tmp_path)


def test_a_row_is_tried_in_a_process_once_and_again_when_the_source_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = Results(tmp_path / "kept.json", Limits(100, 4))
    assert f"| mlp | {OPEN} | {OPEN} | {OPEN} | {OPEN} |" in table(results)
    run(results, [MLP], ["imports", "trains"], jobs=1)
    told = capsys.readouterr().err
    assert "[1/1] mlp-onnx imports" in told
    assert importing.sums(results)[3].startswith(f"| trains | 1 | 0 | 0 | {len(list(rows())) - 1} |")
    assert "[1/1] mlp-onnx trains" in told
    assert f"| mlp | {DONE} | {DONE} | {OPEN} | {OPEN} |" in table(results)
    trained = results.get("trains", MLP)
    assert trained is not None
    assert trained["losses"][-1] < trained["losses"][0]
    assert trained["cpu_seconds"] > 0
    assert 0.05 < trained["gigabytes"] < 4
    monkeypatch.setattr(results, "make", lambda *_: pytest.fail("done again"))
    run(results, [MLP], ["imports", "trains"], jobs=1)
    again = Results(tmp_path / "kept.json", Limits(100, 4))
    assert again.known == results.known
    assert not again.is_due("imports", MLP, new=False)
    monkeypatch.setattr(importing, "source_digest", lambda _: "another")
    assert again.is_due("imports", MLP, new=False)
    assert not again.is_due("imports", MLP, new=True)
    # what was found of an earlier source is told until it is tried again, with its commit
    assert f"| mlp | {DONE} | {DONE} | {OPEN} | {OPEN} |" in table(again)
    assert f"Marks are of commits {importing.commit().partition(' ')[0]} (" in importing.explained(again)


def test_what_fails_says_why_and_what_was_cut_off_is_tried_again_with_more(tmp_path: Path) -> None:
    results = Results(tmp_path / "kept.json", Limits(0.01, 4))
    run(results, [MLP, GOOGLENET], ["imports"], jobs=2)
    lines = table(results)
    assert f"| mlp | {FAILED}1 | – | – | – |" in lines
    assert f"* {FAILED}1: not done after 0.01 s" in lines
    barred = len(list(rows())) - 2
    assert importing.sums(results)[2:] == [
        f"| imports | 0 | 2 | 0 | {barred} | | | |",
        *(f"| {step} | 0 | 0 | 2 | {barred} | | | |" for step in ("trains", "plans", "emits")),
    ]
    more = Results(results.file, dataclasses.replace(results.limits, seconds=100))
    assert more.is_due("imports", MLP, new=True)
    run(more, [GOOGLENET], ["imports"], jobs=1, new=True)
    assert not more.is_due("imports", GOOGLENET, new=True)
    found = more.get("imports", GOOGLENET)
    assert found is not None
    assert "PyTorch can't write this file" in found["reason"]


def test_a_search_ends_at_its_first_plan_in_the_background_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(20); sys.exit('not ended')"
    command, told = [sys.executable, "-c", program], tmp_path / "told"
    monkeypatch.setattr(importing, "POLL_SECONDS", 0.01)
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        importing.run_until([*command, str(tmp_path / "wanted")], tmp_path / "wanted", told)
    finally:
        signal.signal(signal.SIGINT, heard)
    assert "KeyboardInterrupt" in told.read_text()
    with pytest.raises(DagtrainError, match="No such file"):
        importing.run_until([*command, str(tmp_path / "no folder" / "wanted")], tmp_path / "no folder", told)


def test_reasons_of_both_exporters_are_one() -> None:
    reasons = {general(f"node {name} (Pad): mode is reflect") for name in ("/features/Pad", "node_pad_3")}
    assert reasons == {"(Pad): mode is reflect"}


def test_the_table_stands_between_its_markers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = tmp_path / "importing.md"
    docs.write_text(importing.DOCS.read_text())
    monkeypatch.setattr(importing, "DOCS", docs)
    importing.write_docs("| new |")
    importing.write_docs("| newer |")
    before, after = (path.split(importing.BEGIN)[0] for path in (importing.DOCS.read_text(), docs.read_text()))
    assert before == after
    assert f"{importing.BEGIN}\n| newer |\n{importing.END}\n\n## " in docs.read_text()
