"""The table of what copies learn that exchange coded gradients, as benchmarks/exchange.py makes it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks import exchange
from benchmarks.exchange import BEGIN, DOCS, END, Copied, forms, runs, table
from benchmarks.learning_table import Done, Store
from dagtrain.graph.executor import Mode
from dagtrain.training.data import Dataset
from dagtrain.training.sources import BUILT_IN
from hdl.layers.exchange.exchange import Exchange

OPTIONS = argparse.Namespace(data=["digits", "mnist5k"], copies=[2, 4, 8], bounds=[10, 8, 6], seeds=5)


def small(copies: int, compress: str) -> Copied:
    return Copied("ResNet", "digits", Mode.GOLDEN, 1, copies=copies, compress=compress)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return BUILT_IN["digits"]().split(0.2, 1)[0]


def test_copies_are_those_that_import_makes(data: Dataset) -> None:
    hops = [
        node.layer
        for node in small(2, "bounded:10,feedback").graph(data).nodes
        if isinstance(node.layer, Exchange) and node.layer.codec is not None
    ]
    plain = small(1, "none").graph(data)
    summed = sum(exchange._exchanges(node.layer) for node in plain.nodes)
    assert hops
    # each engine sums a tensor or two, which pass both copies
    assert 2 * summed <= len(hops) <= 4 * summed
    assert all(layer.feedback and layer.copies == 2 and layer.codec.drop == 5 for layer in hops if layer.codec)
    assert not any(isinstance(node.layer, Exchange) for node in plain.nodes)


def test_runs_are_a_seed_of_all_rows_before_the_next() -> None:
    every = [*runs(OPTIONS)]
    assert len(every) == len({run.name for run in every}) == 5 * 2 * (1 + 3 * 3 * 2)
    assert [run.seed for run in every] == sorted(run.seed for run in every)
    assert {(run.copies, run.compress) for run in every} == {*forms(OPTIONS)}


def filled(path: Path, plain: list[float], coded: list[float]) -> Store:
    store = Store(path)
    for form, values in ((small(1, "none"), plain), (small(4, "bounded:10,feedback"), coded)):
        for seed, value in enumerate(values, 1):
            run = Copied("ResNet", "digits", Mode.GOLDEN, seed, copies=form.copies, compress=form.compress)
            store.note(run, Done("x", [0.1, value], 1.0, None if form.copies == 1 else 3.25))
    return Store(path)


@pytest.mark.parametrize(
    ("coded", "wanted", "cells"),
    [
        # a mean that is 0.3 points lower, and one a hair below
        ([0.957, 0.957, 0.957, 0.957, 0.957], False, ("-0.30", "holds")),
        ([0.957, 0.957, 0.957, 0.957, 0.9569], True, ("-0.30", "**broken**")),
        ([0.99, 0.96, 0.96, 0.96, 0.96], False, ("+0.60", "holds")),
        # nothing is promised of four seeds
        ([0.5, 0.5, 0.5, 0.5], False, ("-46.00", "–")),
    ],
)
def test_the_promise_is_held_to(tmp_path: Path, coded: list[float], wanted: bool, cells: tuple[str, str]) -> None:
    lines, broken = table(filled(tmp_path / "store.json", [0.96] * 5, coded), OPTIONS)
    (line,) = [line for line in lines if "bounded:10,feedback" in line]
    assert broken == wanted
    assert f"| {len(coded)} |" in line
    assert f"| {cells[0]} | 3.25 × | {cells[1]} |" in line


def test_docs_have_what_is_kept() -> None:
    lines, _ = table(Store(exchange.STORE), OPTIONS)
    assert DOCS.read_text().split(BEGIN)[1].split(END)[0].strip() == "\n".join(lines)
    names = {run.name for run in runs(OPTIONS)}
    assert {*json.loads(exchange.STORE.read_text())} <= names
