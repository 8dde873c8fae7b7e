"""The table of what copies learn with statistics of their own, as benchmarks/norm_sync.py makes it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.learning_table import Done, Store
from benchmarks.norm_sync import BEGIN, DOCS, END, NORMED, STORE, Apart, forms, runs, table
from dagtrain.graph.executor import Mode
from dagtrain.passes.replicate import advancing
from dagtrain.training.sources import BUILT_IN
from hdl.layers.norm.online_norm import OnlineNorm

OPTIONS = argparse.Namespace(only=NORMED, data=["digits"], copies=[1, 2, 4], seeds=5)
ROWS = [(1, False), (2, False), (2, True), (4, False), (4, True)]


def of(copies: int, matched: bool, seed: int = 1) -> Apart:
    return Apart("ResNet", "digits", Mode.GOLDEN, seed, copies=copies, matched=matched)


def test_copies_are_those_that_import_makes() -> None:
    data = BUILT_IN["digits"]().split(0.2, 1)[0]
    one, four = (of(*form).graph(data) for form in ((1, False), (4, True)))
    assert set(advancing(one).values()) == {1}
    assert set(advancing(four).values()) == {4}
    decays = {
        (node.layer.recipe.norm_forward_decay, node.layer.recipe.norm_backward_decay)
        for graph in (one, four)
        for node in graph.nodes
        if isinstance(node.layer, OnlineNorm)
    }
    assert decays == {(0.999, 0.99), (0.999**4, 0.99**4)}


def test_runs_are_a_seed_of_all_rows_before_the_next() -> None:
    every = [*runs(OPTIONS)]
    assert forms(OPTIONS) == ROWS
    assert {"ResNet", "MobileNetV2", "DenseNet"} < {*NORMED}
    assert not {"ConvNeXt", "VGG"} & {*NORMED}
    assert len(every) == len({run.name for run in every}) == len(NORMED) * len(ROWS) * 5
    assert [run.seed for run in every] == sorted(run.seed for run in every)


def test_rows_stand_beside_one_copy_of_the_same_seeds(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.json")
    for form, values in (((1, False), [0.97, 0.98]), ((4, False), [0.96, 0.98, 0.5])):
        for seed, value in enumerate(values, 1):
            store.note(of(*form, seed), Done("x", [0.1, value], 1.0, None))
    assert table(store, OPTIONS)[2:] == [
        "| ResNet | digits | 1 | 2 | 97.50 (97.0–98.0) | – | – |",
        "| ResNet | digits | 4 | 3 | 81.33 (50.0–98.0) | -0.50 | -1.0 to +0.0 |",
    ]


def test_docs_have_what_is_kept() -> None:
    lines = table(Store(STORE), OPTIONS)
    assert DOCS.read_text().split(BEGIN)[1].split(END)[0].strip() == "\n".join(lines)
    assert {*json.loads(STORE.read_text())} <= {run.name for run in runs(OPTIONS)}
