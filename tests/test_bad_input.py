"""Everything a user can do wrong, through the command line.

Each time: one clear message that says what, where, which value and the cure; an exit code that is not 0; no traceback;
and whatever lay in the working folder before still lies there, byte for byte.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, external_data_helper, helper, numpy_helper

from dagtrain import cli
from dagtrain.files import write_text
from dagtrain.flow import (
    cosim_step,
    emit_step,
    estimate_step,
    export_step,
    import_step,
    profile_step,
    report_step,
    simulate_step,
)
from dagtrain.flow.import_step import load_training_graph
from dagtrain.graph.storage import load_arrays, save_arrays
from dagtrain.planning.realise import Realiser
from dagtrain.training.emulator import Emulator
from tests.flow_support import CLUSTER, Case, Outcome, call, new_case, quick_costs, tiny_model
from tests.import_support import node, save


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """A case that is placed, emitted and trained."""
    with pytest.MonkeyPatch.context() as patch:
        quick_costs(patch)
        found = new_case(tmp_path_factory.mktemp("placed")).must("import", "place").pretend_emit()
        trained = found.step("train", "--data", found.data(), "--epochs", 1)
        assert trained.code == 0, trained.error
        yield found


@pytest.fixture
def case(placed: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """A copy of it that a test may change."""
    quick_costs(monkeypatch)
    shutil.copytree(placed.root, tmp_path / "case")
    return Case(tmp_path / "case")


@pytest.fixture
def fresh(tmp_path: Path) -> Case:
    """Model and cluster file, nothing done yet."""
    return new_case(tmp_path / "fresh")


def refused(outcome: Outcome, *patterns: str, code: int = 1) -> None:
    """One message on standard error that matches all patterns (anywhere, in any order), nothing like a traceback."""
    text = " ".join(outcome.error.split())
    assert outcome.code == code, text
    assert "Traceback" not in outcome.error
    assert len(re.findall("^error: ", outcome.error, re.MULTILINE)) == 1, outcome.error
    assert "done" not in outcome.out
    for pattern in patterns:
        assert re.search(pattern, text), f"{pattern!r} is not in: {text}"


def refused_and_intact(case: Case, words: tuple[object, ...], *patterns: str) -> None:
    """As `refused`, and the working folder is as it was, without leftovers."""
    before = case.snapshot()
    refused(case.step(str(words[0]), *words[1:]), *patterns)
    assert case.snapshot() == before


# ---- the model file

CURE = r"; .+"


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"", "is empty; export or download it again"),
        (b"hello, this is text", "no ONNX model, or a truncated one of 19 bytes; export or download it again"),
        (b"\x00" * 4096, "no ONNX model"),
        (b"PK\x03\x04 archive", "ZIP archive, perhaps a PyTorch checkpoint; export it with torch.onnx.export"),
        (b"\x89HDF\r\n", "HDF5 file.*; convert it with tf2onnx"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer; fetch .* with `git lfs pull`"),
        (b"<!doctype html><html>", "HTML or XML page.*; download it again"),
    ],
    ids=["empty", "text", "zeros", "zip", "hdf5", "lfs", "html"],
)
def test_import_refuses_what_is_no_model(case: Case, data: bytes, wanted: str) -> None:
    case.model.write_bytes(data)
    refused_and_intact(case, ("import",), re.escape(str(case.model)), wanted)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.99])
def test_import_refuses_a_truncated_model(case: Case, share: float) -> None:
    data = case.model.read_bytes()
    case.model.write_bytes(data[: int(len(data) * share)])
    refused_and_intact(case, ("import",), r"net\.onnx", "truncated|damaged|cut|no nodes|can't be imported")


def test_import_refuses_a_model_that_is_not_there(case: Case) -> None:
    case.model.unlink()
    refused_and_intact(case, ("import",), r"net\.onnx does not exist; give the path of an ONNX file")


def test_import_refuses_a_folder_as_model(case: Case) -> None:
    case.model.unlink()
    case.model.mkdir()
    refused_and_intact(case, ("import",), r"net\.onnx is no file; give the path of an ONNX file")


def _unknown_operators(proto: ModelProto) -> None:
    proto.graph.node[0].op_type = "MatMulInteger"
    proto.graph.node[1].op_type = "Tan"


def _dynamic_size(proto: ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"


def _no_shape(proto: ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.ClearField("shape")


def _weights(proto: ModelProto, index: int, change: Callable[[Any], Any]) -> None:
    tensor = proto.graph.initializer[index]
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor).copy()), tensor.name))


def _nan(proto: ModelProto) -> None:
    def change(value: Any) -> Any:
        value[1, 0, 2, 1] = np.nan
        return value

    _weights(proto, 0, change)


def _infinite(proto: ModelProto) -> None:
    _weights(proto, 1, lambda value: np.full_like(value, np.inf))


def _cyclic(proto: ModelProto) -> None:
    proto.graph.node[0].input[0] = "f"


def _disconnected(proto: ModelProto) -> None:
    proto.graph.node[2].input[0] = "nowhere"


def _beside(proto: ModelProto) -> None:
    proto.graph.output[0].name = "nothing"


def _second_input(proto: ModelProto) -> None:
    proto.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 4, 6, 6]))
    proto.graph.node.insert(1, node("Add", "c z", "sum"))
    proto.graph.node[2].input[0] = "sum"


def _bytes(proto: ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8


def _old(proto: ModelProto) -> None:
    proto.opset_import[0].version = 6


def _twice(proto: ModelProto) -> None:
    proto.graph.node[1].output[0] = "c"


def _misfit(proto: ModelProto) -> None:
    _weights(proto, 1, lambda value: value[:, :100].copy())


def _kernel_misfit(proto: ModelProto) -> None:
    _weights(proto, 0, lambda value: np.concatenate([value, value], 1))


def _no_nodes(proto: ModelProto) -> None:
    del proto.graph.node[:]


Spoil = Callable[[ModelProto], None]
SPOILT: dict[str, tuple[Spoil, tuple[str, ...]]] = {
    "unknown operators, all at once": (
        _unknown_operators,
        (r"MatMulInteger .*c_node", r"Tan .*r_node", "supported are"),
    ),
    "a dynamic height": (_dynamic_size, ("input x", "height", "export with fixed height")),
    "no shape": (_no_shape, ("input x: has no shape; export with the shape",)),
    "NaN in weights": (_nan, ("weights k", r"1 of 72 .* nan at \[1, 0, 2, 1\]", "export from an earlier checkpoint")),
    "infinite weights": (_infinite, ("weights w", "432 of 432 are not finite", CURE)),
    "a cycle": (_cyclic, ("cycle: .*c_node", "remove one of these edges")),
    "a disconnected graph": (_disconnected, ("reads tensor nowhere, which nothing makes", CURE)),
    "an output nobody makes": (_beside, ("output nothing: is made by nothing", CURE)),
    "two inputs": (_second_input, (r"has 2 inputs \(x, z\); export a model with one input",)),
    "images of bytes": (_bytes, ("input x: has type UINT8; export with float images",)),
    "an old opset": (_old, ("opset 6 is not supported; export with an opset in",)),
    "a tensor made twice": (_twice, ("makes tensor c, which c_node makes too; give it another name",)),
    "a matrix that does not fit": (_misfit, ("y_node", "100", "144")),
    "a kernel that does not fit": (_kernel_misfit, ("c_node", CURE)),
    "no nodes": (_no_nodes, ("its graph has no nodes",)),
}


@pytest.mark.parametrize("name", SPOILT)
def test_import_refuses_a_model_with(name: str, case: Case) -> None:
    spoil, patterns = SPOILT[name]
    proto = tiny_model()
    spoil(proto)
    save(proto, case.root)
    refused_and_intact(case, ("import",), r"net\.onnx can't be imported", *patterns)


def test_import_tells_all_problems_of_a_model_at_once(case: Case) -> None:
    proto = tiny_model()
    for spoil in (_unknown_operators, _nan, _dynamic_size, _second_input):
        spoil(proto)
    save(proto, case.root)
    refused_and_intact(case, ("import",), "MatMulInteger", "Tan", "nan at", "dynamic height", "2 inputs")


def test_import_refuses_an_unknown_norm(case: Case) -> None:
    refused_and_intact(
        case, ("import", "--norm", "batch"), "--norm batch is unknown; choose one of online, none, as-is"
    )


# ---- recipe and data

RECIPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "bad TOML": ("batch = = 3", ("recipe.toml is not TOML", "line 1")),
    "an unknown key": ("lerning_rate = 0.1", ("recipe.toml", "unknown key lerning_rate; known are .*learning_rate")),
    "a text for a number": ('batch = "many"', ("recipe.toml", "batch", "integer")),
    "a batch of nothing": ("batch = 0", ("batch must be at least 1, not 0",)),
    "a fractional batch": ("batch = 2.5", ("batch", "integer")),
    "too much staleness": ("batch = 4\nstaleness = 5", (r"staleness must lie in 0\.\.batch = 0\.\.4, not 5",)),
    "a negative learning rate": ("learning_rate = -1.0", (r"learning_rate must be positive and finite, not -1\.0",)),
    "several mistakes": (
        "momentum = 1.0\nweight_decay = -1.0\nfoo = 1\nbar = 2",
        ("momentum must lie", "weight_decay must be finite and not negative", "unknown key foo", "unknown key bar"),
    ),
    "mistakes of type beside those of range": (
        'schedule = "cosin"\nlr = 1\nbatch = 0\nclip = -3.0',
        (r"schedule = 'cosin': input should be 'constant', 'step'", "unknown key lr", "batch must be", "clip must be"),
    ),
    "a negative seed": ("seed = -1", ("seed must not be negative: -1",)),
    "numbers that are none": (
        "learning_rate = inf\nweight_decay = nan",
        ("learning_rate.*not inf", "weight_decay.*nan"),
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_import_refuses_a_recipe_with(name: str, case: Case) -> None:
    text, patterns = RECIPES[name]
    refused_and_intact(case, ("import", "--recipe", case.write("recipe.toml", text)), r"recipe\.toml", *patterns)


def test_import_refuses_a_recipe_that_is_not_there(case: Case) -> None:
    refused_and_intact(case, ("import", "--recipe", case.root / "no.toml"), r"no\.toml", "give the path of a recipe")


def _arrays(**arrays: Any) -> Callable[[Path], None]:
    return lambda path: np.savez(path, **arrays)


IMAGES = np.zeros((40, 2, 6, 6), np.float32)
LABELS = np.arange(40) % 3
NOT_FINITE = np.full_like(IMAGES, np.inf)
DATA: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "no archive": (lambda path: path.write_text("1,2,3") and None, (r"other\.npz is not a readable \.npz file",)),
    "no labels": (_arrays(images=IMAGES), ("holds images, but no labels",)),
    "too few labels": (
        _arrays(images=IMAGES, labels=LABELS[:7]),
        (r"labels must be one an image, \(40,\), not \(7,\)",),
    ),
    "images of integers": (_arrays(images=IMAGES.astype(np.int32), labels=LABELS), ("must be floating point", "int32")),
    "one-hot labels": (
        _arrays(images=IMAGES, labels=np.eye(10)[LABELS]),
        (r"labels must be one an image, \(40,\), not \(40, 10\); of one-hot labels give the class numbers",),
    ),
    "labels of floats": (_arrays(images=IMAGES, labels=LABELS / 2), ("labels must be integers, not float64",)),
    "negative labels": (
        _arrays(images=IMAGES, labels=LABELS - 1),
        ("labels must be class numbers from 0, the least is -1",),
    ),
    "infinite pixels": (_arrays(images=NOT_FINITE, labels=LABELS), ("images hold NaN or infinity",)),
    "no images": (_arrays(images=IMAGES[:0], labels=LABELS[:0]), ("data set is empty",)),
    "images of another size": (
        _arrays(images=np.zeros((40, 1, 8, 8), np.float32), labels=LABELS),
        (r"images are \(1, 8, 8\), the model takes \(channels, height, width\) = \(2, 6, 6\)",),
    ),
    "more classes than the model": (
        _arrays(images=IMAGES, labels=LABELS + 1),
        ("labels go up to 3, the model tells 3",),
    ),
    "fewer images than a batch": (
        _arrays(images=IMAGES[:7], labels=LABELS[:7]),
        ("batch of 16 does not fit into .* images; make the batch smaller",),
    ),
}


@pytest.mark.parametrize("step", ["import", "train"])
@pytest.mark.parametrize("name", DATA)
def test_import_and_train_refuse_data_with(name: str, step: str, case: Case) -> None:
    make, patterns = DATA[name]
    make(case.root / "other.npz")
    refused_and_intact(case, (step, "--data", case.root / "other.npz"), *patterns)


@pytest.mark.parametrize("step", ["import", "train"])
def test_import_and_train_refuse_data_that_is_not_there(step: str, case: Case) -> None:
    refused_and_intact(case, (step, "--data", "nowhere.npz"), r"nowhere\.npz", "No such file")


def test_train_without_data_says_how_to_give_some(case: Case) -> None:
    refused_and_intact(case, ("train",), "train needs data: give --data FILE.npz")


def test_train_refuses_no_epochs(case: Case) -> None:
    refused_and_intact(case, ("train", "--epochs", 0), "--epochs must be at least 1, not 0")


# ---- the cluster file

CLUSTERS: dict[str, tuple[Callable[[str], str], tuple[str, ...]]] = {
    "bad TOML": (lambda text: text + "\n[[device", ("not TOML", r"line \d+")),
    "an unknown part": (
        lambda text: text.replace("AGFB014", "STRATIX"),
        (r"part = 'STRATIX': unknown part; known parts",),
    ),
    "a duplicate name": (
        lambda text: text.replace('"worker"', '"head"'),
        (r"'head': 2 times the same device name; give each its own",),
    ),
    "a negative number": (lambda text: text.replace("= 100", "= -100"), (r"link_gbit_per_s = -100: .*greater",)),
    "a missing number": (
        lambda text: text.replace("dram_gbyte = 32", ""),
        (r"board\[0\]\.dram_gbyte is missing; add",),
    ),
    "an unknown key": (
        lambda text: text.replace("dram_gbyte", "dram_gb"),
        (r"dram_gb = 32: unknown key", "dram_gbyte"),
    ),
    "names that are tables and lists": (
        lambda text: text.replace('name = "agilex"', "name = {a = 1}").replace('board = "agilex"', "board = [1]"),
        (r"board\[0\]\.name = \{'a': 1\}", r"device\[0\]\.board = \[1\]", r"device\[1\]\.board = \[1\]"),
    ),
    "a board that is a table": (
        lambda text: text.replace('board = "agilex"', "board = {a = 1}"),
        (r"device\[0\]\.board = \{'a': 1\}: .*write the name of a \[\[board\]\]",),
    ),
    "rates and sizes beyond every board": (
        lambda text: text.replace("= 100", "= 1e400").replace("= 76.8", "= 1e300").replace("= 32", "= 1e30"),
        ("link_gbit_per_s = .*at most 10", "dram_gb_per_s = .*at most 10", "dram_gbyte = .*at most 10"),
    ),
    "a link too fast for every word": (
        lambda text: text.replace("= 100", "= 500000"),
        (r"board\[0\]\.link_gbit_per_s = 500000: more than the widest word of 2048 bits .* write at most 409\.6",),
    ),
    "no devices": (lambda text: text.split("[[device]]")[0], ("device is missing; add at least one",)),
    "an unknown board": (
        lambda text: text.replace('board = "agilex"', 'board = "versal"'),
        ("'versal': no such board; boards of this file are agilex",),
    ),
    "a text for a number": (lambda text: text.replace("200", '"fast"'), ("clock_mhz = 'fast': .*number",)),
    "several mistakes": (
        lambda text: text.replace("AGFB014", "X").replace("= 100", "= -1").replace('"worker"', '"head"'),
        ("unknown part", "link_gbit_per_s = -1", "same device name"),
    ),
    "nothing in it": (lambda _text: "", ("cluster is missing", "board is missing", "device is missing")),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_place_refuses_a_cluster_file_with(name: str, case: Case) -> None:
    change, patterns = CLUSTERS[name]
    changed = change(CLUSTER)
    assert changed != CLUSTER
    case.cluster.write_text(changed)
    refused_and_intact(case, ("place",), r"cluster\.toml", *patterns)


def test_place_refuses_a_cluster_file_that_is_not_there(case: Case) -> None:
    case.cluster.unlink()
    refused_and_intact(case, ("place",), r"cluster\.toml: cannot read the cluster file", "give the path of a TOML file")


def test_place_says_what_a_device_too_small_for_any_configuration_lacks(case: Case) -> None:
    tiny = "[board.utilisation]\ndsp = 0.0001\nalm = 0.0001\n\n[[device]]"
    case.cluster.write_text(CLUSTER.replace("[[device]]", tiny, 1))
    refused_and_intact(case, ("place",), r"no placement of 'net on two'", r"(needs|of at least) \d+", "dsp|alm|DSP|ALM")


@pytest.mark.parametrize(
    ("pin", "wanted"),
    [
        ("c_node", "--pin c_node is not of the form layer=device"),
        ("c_node=moon", "no device moon; the cluster has head, worker"),
        ("stem=head", "no layer stem; `dagtrain show` lists them"),
    ],
)
def test_place_refuses_a_pin(pin: str, wanted: str, case: Case) -> None:
    refused_and_intact(case, ("place", "--pin", pin), wanted)


def test_place_refuses_pins_that_contradict_one_another(case: Case) -> None:
    words = ("place", "--pin", "c_node=head", "--pin", "c_node=worker")
    refused_and_intact(case, words, "c_node is already pinned to head")


def test_place_says_how_fast_the_cluster_can_be_when_more_is_asked(case: Case) -> None:
    refused_and_intact(case, ("place", "--least-fps", 1e12), r"frames/s|frames a second|cycles a frame")


# ---- steps out of order, damaged results

ORDER = [
    ("place", r"import holds no result of `dagtrain import`; run `dagtrain import MODEL\.onnx` first"),
    ("emit", r"run `dagtrain import MODEL\.onnx` first"),
    ("cosim", "run `dagtrain emit` first"),
    ("debug", "run `dagtrain emit` first"),
    ("simulate", "run `dagtrain emit` first"),
    ("train", r"run `dagtrain import MODEL\.onnx` first"),
    ("report", r"run `dagtrain import MODEL\.onnx` first"),
    ("estimate", r"run `dagtrain import MODEL\.onnx` first"),
    ("show", r"run `dagtrain import MODEL\.onnx` first"),
    ("profile", r"run `dagtrain import MODEL\.onnx` first"),
    ("export", "run `dagtrain train` first"),
    ("evaluate", "run `dagtrain train` first"),
    ("serve", "run `dagtrain emit` first"),
    ("drive", r"run `dagtrain import MODEL\.onnx` first"),
    ("self-test", r"run `dagtrain bring-up --devices cluster\.toml` first"),
]


@pytest.mark.parametrize(("step", "wanted"), ORDER)
def test_a_step_before_all_others_names_the_one_to_run(step: str, wanted: str, fresh: Case) -> None:
    refused(fresh.step(step), wanted)
    assert not fresh.out.exists()


@pytest.mark.parametrize(
    ("gone", "step", "wanted"),
    [
        ("place", "emit", "run `dagtrain place --devices CLUSTER.toml` first"),
        ("emit", "cosim", "run `dagtrain emit` first"),
        ("emit", "report", "run `dagtrain emit` first"),
        ("place", "report", "run `dagtrain place --devices CLUSTER.toml` first"),
    ],
)
def test_a_step_whose_predecessor_is_gone_names_it(gone: str, step: str, wanted: str, case: Case) -> None:
    shutil.rmtree(case.out / gone)
    refused_and_intact(case, (step,), wanted)


@pytest.mark.parametrize("step", ["emit", "report"])
def test_a_plan_of_an_earlier_model_is_not_used(step: str, case: Case) -> None:
    save(tiny_model(seed=2), case.root)
    assert case.step("import").code == 0
    wanted = r"place is of an earlier `dagtrain import`, .*; run `dagtrain place --devices CLUSTER\.toml` again"
    refused_and_intact(case, (step,), wanted)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) // 2],
    "emptied": lambda _data: b"",
    "overwritten": lambda _data: b"\xff\xfe\x00garbage",
    "replaced by a list": lambda _data: b"[1, 2, 3]",
    "replaced by an empty object": lambda _data: b"{}",
}
READERS = [
    ("import/graph.json", ("place", "--seed", 7), r"graph\.json"),
    ("import/graph.npz", ("place", "--seed", 7), r"graph\.(npz|json)"),
    ("import/summary.json", ("show",), r"summary\.json .*run `dagtrain import"),
    ("import/import.json", ("train",), r"import\.json .*run `dagtrain import"),
    ("import/import.json", ("place", "--seed", 7), r"import\.json .*run `dagtrain import"),
    ("place/plan.json", ("emit",), r"plan\.json .*run `dagtrain place"),
    ("place/plan.json", ("report",), r"plan\.json .*run `dagtrain place"),
    ("place/place.json", ("report",), r"place\.json .*run `dagtrain place"),
    ("place/plan.json", ("estimate",), r"plan\.json .*run `dagtrain place"),
    ("place/cluster.toml", ("emit",), r"cluster\.toml"),
    ("emit/emit.json", ("report",), r"emit\.json .*run `dagtrain emit"),
    ("train/train.json", ("report",), r"train\.json .*run `dagtrain train"),
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    ("file", "words", "wanted"), READERS, ids=[f"{file}, {words[0]}" for file, words, _ in READERS]
)
def test_a_damaged_result_names_the_file_and_the_command(
    file: str, words: tuple[object, ...], wanted: str, damage: str, case: Case
) -> None:
    path = case.out / file
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    refused_and_intact(case, words, wanted)


@pytest.mark.parametrize(
    ("file", "words", "wanted"), READERS, ids=[f"{file}, {words[0]}" for file, words, _ in READERS]
)
def test_a_result_with_a_missing_file_names_the_file(
    file: str, words: tuple[object, ...], wanted: str, case: Case
) -> None:
    (case.out / file).unlink()
    refused_and_intact(case, words, wanted)


def test_a_result_of_another_version_is_refused_with_both_versions(case: Case) -> None:
    text = json.dumps({**json.loads((case.out / "emit" / "emit.json").read_text()), "schema_version": 99})
    earlier = {step: case.workspace.fingerprint(step) for step in ("import", "place")}
    case.workspace.leave("emit", earlier, lambda folder: write_text(folder / "emit.json", text))
    refused_and_intact(
        case, ("report",), r"emit\.json has schema version 99, this version reads \d+; run `dagtrain emit`"
    )


Change = Callable[[Any], object]


def _set(*place: Any) -> Change:
    """The value at keys and indices, the last of ``place`` being the new one; names of nodes choose nodes."""
    *keys, last, value = place

    def change(document: Any) -> None:
        for key in keys:
            document = document[_index(document, key)]
        document[_index(document, last)] = value

    return change


def _remove(*place: Any) -> Change:
    def change(document: Any) -> None:
        for key in place[:-1]:
            document = document[_index(document, key)]
        del document[_index(document, place[-1])]

    return change


def _index(holder: Any, key: Any) -> Any:
    if isinstance(holder, list) and isinstance(key, str):
        return next(index for index, record in enumerate(holder) if record["name"] == key)
    return key


SHOW, EMIT, PLACE, TRAIN = ("show",), ("emit",), ("place", "--seed", 7), ("train",)
GRAPH_CURE = r"run `dagtrain import MODEL\.onnx` again"
PLACE_CURE = "run `dagtrain place --devices CLUSTER.toml` again"
IMPORT_CURE = r"run `dagtrain import .*` again"
# file, changes, command, what its message says
CHANGES: dict[str, tuple[str, tuple[Change, ...], tuple[object, ...], tuple[str, ...]]] = {
    "an edge that is a list, and a name that is a number": (
        "import/graph.json",
        (_set("nodes", "c_node", "inputs", "x", [None]), _set("nodes", 0, "name", 7)),
        TRAIN,
        (r"nodes\[\d+\]\.inputs\.x = \[None\]: input should be a valid string", r"nodes\[0\]\.name = 7", GRAPH_CURE),
    ),
    "nodes that are no list": ("import/graph.json", (_set("nodes", 3),), TRAIN, ("nodes = 3", GRAPH_CURE)),
    "an endless kernel": (
        "import/graph.json",
        (_set("nodes", "c_node", "settings", "kernel", 1, 2**70),),
        TRAIN,
        ("node c_node: Conv .*kernel", GRAPH_CURE),
    ),
    "settings out of range, of two nodes": (
        "import/graph.json",
        (
            _set("nodes", "c_node", "settings", "x_lanes", 0),
            _set("nodes", "r_node", "settings", "lanes", 2**70),
        ),
        TRAIN,
        ("node c_node: x_lanes = 0: not a whole number from 1", "node r_node: lanes = 1180", GRAPH_CURE),
    ),
    "a tile of nothing": (
        "import/graph.json",
        (_set("nodes", "c_node.w.update", "settings", "tile", "po", 0),),
        TRAIN,
        (r"node c_node\.w\.update: a tile has at least one lane of each kind, unlike Tile\(po=0", GRAPH_CURE),
    ),
    "lanes that do not divide": (
        "import/graph.json",
        (_set("nodes", "c_node", "settings", "y_lanes", 5),),
        TRAIN,
        ("node c_node: port y: 5 lanes do not divide 144 elements", GRAPH_CURE),
    ),
    "an edge that nobody makes any more": (
        "import/graph.json",
        (_remove("nodes", "y_node.gradient", "outputs", "g"),),
        TRAIN,
        (r"source y_node\.gradient\.g has no edge", GRAPH_CURE),
    ),
    "ports that no layer has": (
        "import/graph.json",
        (_set("nodes", "c_node", "inputs", "z", "r"), _set("nodes", "c_node", "parameters", "q", "k")),
        TRAIN,
        ("c_node has no sink z", "c_node has no port q for a parameter", GRAPH_CURE),
    ),
    "nodes in another order": (
        "import/graph.json",
        (lambda document: document["nodes"].reverse(),),
        TRAIN,
        ("r_node stands before c_node", GRAPH_CURE),
    ),
    "a layer that is missing": (
        "import/graph.json",
        (_remove("nodes", "r_node"),),
        PLACE,
        ("which nobody produces", "has no consumer", GRAPH_CURE),
    ),
    "counts that are a list and a text": (
        "import/summary.json",
        (_set("layers", 0, "error_macs", []), _set("layers", 1, "forward_macs", "x")),
        SHOW,
        (r"layers\[0\]\.error_macs = \[\]", r"layers\[1\]\.forward_macs = 'x'", IMPORT_CURE),
    ),
    "a data set that is a list": ("import/import.json", (_set("data", []),), TRAIN, (r"data = \[\]", IMPORT_CURE)),
    "a warning that is no text": (
        "place/place.json",
        (_set("warnings", ["\ud800"]),),
        ("place",),
        (r"place\.json is damaged \(a text holds '\\ud800', half of a character\)", PLACE_CURE),
    ),
    "levels and warnings of other kinds": (
        "place/place.json",
        (_set("warnings", [7]), _set("levels", [0])),
        ("place",),
        (r"place\.json is damaged: warnings\[0\] = 7", r"levels\[0\] = 0", PLACE_CURE),
    ),
    "a plan of batches without frames": (
        "place/plan.json",
        (_set("batch_frames", 0),),
        EMIT,
        (r"plan\.json is no plan of instance\.json: .*a batch of 0 frames", PLACE_CURE),
    ),
    "a plan with an item elsewhere": (
        "place/plan.json",
        (_set("items", 0, "device", "moon"), _set("items", 1, "item", "lost")),
        EMIT,
        ("on unknown device 'moon'", "item 'lost' is unknown", PLACE_CURE),
    ),
    "a plan with numbers that are texts": (
        "place/plan.json",
        (_set("items", 0, "dsp", "many"), _set("devices", 0, "alm", None), _remove("seed")),
        EMIT,
        (r"items\[0\]\.dsp = 'many'", r"devices\[0\]\.alm = None", "seed is missing", PLACE_CURE),
    ),
    "an instance of other devices": (
        "place/instance.json",
        (_set("devices", 0, "dsp", 1),),
        EMIT,
        (r"plan\.json is no plan of instance\.json: instance: plan is for", PLACE_CURE),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_result_that_holds_is_refused_with(name: str, case: Case) -> None:
    file, changes, words, patterns = CHANGES[name]
    path = case.out / file
    document = json.loads(path.read_text())
    for change in changes:
        change(document)
    path.write_text(json.dumps(document))
    case.restamp(path.parent.name)
    refused_and_intact(case, (*words, *(("--data", case.data()) if words == TRAIN else ())), *patterns)


@pytest.mark.parametrize("text", ["null", "1", "[]", '"x"', "[" * 3000, '{"a":' * 3000])
@pytest.mark.parametrize(
    ("file", "words"),
    # the summary of a report is of the plan before
    [
        (file, words)
        for file, words, _ in READERS
        if file.endswith(".json") and (file[:5], *words) != ("place", "report")
    ],
)
def test_a_result_that_holds_other_json_is_refused(file: str, words: tuple[object, ...], text: str, case: Case) -> None:
    path = case.out / file
    path.write_text(text)
    case.restamp(path.parent.name)
    refused_and_intact(case, words, re.escape(path.name), "again")


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda value: value[:1], r"has shape \(1, 2, 3, 3\), not \(4, 2, 3, 3\)"),
        (lambda value: value * np.nan, "holds float32, not finite numbers of 32 or 64 bits"),
        (lambda value: value.astype(np.int8), "holds int8, not finite numbers of 32 or 64 bits"),
    ],
)
def test_initial_weights_of_another_shape_or_kind_are_refused(change: Change, wanted: str, case: Case) -> None:
    path = case.out / "import" / "graph.npz"
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(path, **{**arrays, "p0": change(arrays["p0"])})
    case.restamp("import")
    refused_and_intact(case, ("train", "--data", case.data()), r"graph\.npz: c_node\.w", wanted, GRAPH_CURE)


def test_an_array_in_the_place_of_an_archive_is_refused(case: Case) -> None:
    path = case.out / "import" / "graph.npz"
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    case.restamp("import")
    refused_and_intact(case, ("train", "--data", case.data()), r"graph\.npz can't be read: it holds one array")


def test_a_damaged_stamp_counts_as_no_result(case: Case) -> None:
    (case.out / "place" / "stamp.json").write_text("{")
    refused_and_intact(case, ("emit",), "run `dagtrain place --devices CLUSTER.toml` first")


# ---- options


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("--batches", 0), "--batches must be at least 1, not 0"),
        (("--stall", 1.5), r"--stall must lie in \[0, 1\), not 1\.5"),
        (("--latency", 0), "--latency must be at least 1 cycle, not 0"),
        (("--hold", -1), "--hold must be at least 0 cycles, not -1"),
        (("--simulator", "modelsim"), "--simulator must be one of verilator, icarus, myhdl, not modelsim"),
        (("--engine", "icarus"), "--engine icarus goes with --simulator myhdl, not verilator"),
        (("--simulator", "myhdl", "--engine", "iv"), "--engine must be one of verilator, icarus, not iv"),
    ],
)
def test_cosim_refuses(words: tuple[object, ...], wanted: str, case: Case) -> None:
    refused_and_intact(case, ("cosim", *words), wanted)


def test_cosim_tells_all_wrong_options_at_once(case: Case) -> None:
    refused_and_intact(case, ("cosim", "--batches", -1, "--stall", -1), "--batches must", "--stall must")


def test_estimate_refuses_a_layer_that_is_not_there(case: Case) -> None:
    refused_and_intact(case, ("estimate", "--layer", "stem"), "no node named stem; nodes are .*c_node")


def test_estimate_refuses_a_speed_that_no_folding_reaches(case: Case) -> None:
    refused_and_intact(case, ("estimate", "--cycles", 1), "can't be folded for 1 cycles a frame", "allow more cycles")


@pytest.mark.parametrize("cycles", [0, -5])
def test_estimate_refuses_no_cycles(cycles: int, case: Case) -> None:
    refused_and_intact(case, ("estimate", "--cycles", cycles), f"--cycles must be at least 1, not {cycles}")


@pytest.mark.parametrize("words", [("import",), ("place",), ("fly",), ("train", "--epochs", "many"), ("--wings",)])
def test_a_wrong_command_shows_its_usage(words: tuple[str, ...]) -> None:
    outcome = call(*words)
    assert outcome.code == 2
    assert "Usage: dagtrain" in outcome.error
    assert "Traceback" not in outcome.error


# ---- tools


@pytest.mark.parametrize(
    ("words", "tool"),
    [
        (("emit",), "verilator"),
        (("cosim",), "verilator"),
        (("cosim", "--simulator", "icarus", "--no-efficiency"), "iverilog"),
    ],
)
def test_a_missing_simulator_is_named_before_any_work(
    words: tuple[str, ...], tool: str, case: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if words[0] == "emit":
        shutil.rmtree(case.out / "emit")
    monkeypatch.setenv("PATH", str(tmp_path))
    refused_and_intact(case, words, f"{tool}.* not installed or not on the PATH; install it with `make setup`")


# ---- places that can't be written


@pytest.mark.parametrize("step", ["import", "place", "train", "report"])
def test_a_full_disk_leaves_everything_as_it_was(step: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            super().write(bytes(data)[:10])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.name))

    def opened(path: Path, mode: str = "r", *words: Any, **options: Any) -> Any:
        return Full(path, "w+") if mode == "w+b" else usual(path, mode, *words, **options)

    words, usual = _changed(case, step), Path.open
    monkeypatch.setattr(Path, "open", opened)
    refused_and_intact(case, words, "cannot write .*No space left on device", "free or choose another --out")


@pytest.mark.parametrize("step", ["import", "place", "train", "report"])
def test_a_read_only_disk_leaves_everything_as_it_was(step: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_words: object, **_options: object) -> str:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    words = _changed(case, step)
    monkeypatch.setattr("dagtrain.files.tempfile.mkdtemp", refuse)
    refused_and_intact(case, words, f"cannot write .*{step}: Read-only file system", "free or choose another --out")


def test_a_working_folder_below_a_file_is_refused(fresh: Case) -> None:
    file = fresh.write("file", "a file")
    outcome = call("import", fresh.model, "--out", file / "build")
    refused(outcome, "cannot write .*file/build: (Not a directory|File exists)", "choose another --out")
    assert file.read_text() == "a file"


def test_a_working_folder_that_is_a_file_is_refused(fresh: Case) -> None:
    file = fresh.write("file", "a file")
    refused(call("import", fresh.model, "--out", file), "cannot write .*file: File exists", "choose another --out")
    assert file.read_text() == "a file"


# ---- Ctrl-C


def _changed(case: Case, step: str) -> tuple[object, ...]:
    """A call of the step that has something to do although the step has been done."""
    if step == "report":
        case.must("report").pretend(
            "train", ("import",), {"train_frames": 32, "held_out_frames": 8, "epochs": [_epoch()]}
        )
    return {
        "import": ("import", "--recipe", case.write("recipe.toml", "seed = 2")),
        "place": ("place", "--seed", 7),
        "emit": ("emit",),
        "cosim": ("cosim",),
        "debug": ("debug",),
        "simulate": ("simulate", "--batches", 1),
        "train": ("train", "--data", case.data(), "--epochs", 3),
        "report": ("report",),
        "estimate": ("estimate", "--cycles", 400),
        "profile": ("profile", "--batches", 1),
        "export": ("export",),
        "evaluate": ("evaluate",),
    }[step]


def _epoch() -> dict[str, float]:
    return {"epoch": 1, "train_loss": 1.0, "train_accuracy": 0.5, "held_out_loss": 1.0, "held_out_accuracy": 0.5}


INTERRUPTED: dict[str, tuple[Any, str]] = {
    "import": (import_step, "calibrate"),
    "place": (Realiser, "with_links"),
    "emit": (emit_step, "planned_design"),
    "cosim": (cosim_step, "load_emitted"),
    "debug": (cosim_step, "load_emitted"),
    "simulate": (simulate_step, "load_emitted"),
    "train": (Emulator, "train_batch"),
    "report": (report_step, "render"),
    "estimate": (estimate_step, "library"),
    "profile": (profile_step, "render_profile"),
    "export": (export_step, "write_model"),
    "evaluate": (Emulator, "judge"),
}


# they need no result, and leave none (tests/test_console.py)
HARMLESS = {"status", "clean", "probe"}


@pytest.mark.parametrize("step", INTERRUPTED)
def test_ctrl_c_in_a_step_leaves_all_results_as_they_were(
    step: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_words: object, **_options: object) -> None:
        raise KeyboardInterrupt

    words = _changed(case, step)
    if step == "emit":
        # so that there is something to do
        (case.out / "emit" / "stamp.json").write_text('{"fingerprint": "of another version"}')
    before = case.snapshot()
    target, name = INTERRUPTED[step]
    monkeypatch.setattr(target, name, interrupt)
    outcome = case.step(*map(str, words))
    assert outcome.code == 130, outcome.error
    assert "interrupted; the results of earlier steps are as they were" in outcome.error
    assert "Traceback" not in outcome.error
    assert case.snapshot() == before


def test_ctrl_c_while_a_new_result_takes_the_place_of_the_old_one_brings_the_old_one_back(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, before, rename = _changed(case, "place"), case.snapshot(), Path.rename

    def interrupt(path: Path, target: Path) -> Path:
        if target == case.out / "place" and ".old-" not in path.name:
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupt)
    assert case.step(*map(str, words)).code == 130
    assert case.snapshot() == before


def test_ctrl_c_from_outside_stops_a_running_training(case: Case) -> None:
    data, checkpoint = case.data(), case.out / ".train-checkpoint.npz"
    command = [sys.executable, "-m", "dagtrain.cli", "train", "--data", str(data), "--out", str(case.out)]
    before = case.snapshot()
    with subprocess.Popen(
        [*command, "--epochs", "100000"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 60
        while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        try:
            out, error = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, error
    assert "interrupted" in error
    assert "Traceback" not in error
    assert "done" not in out
    assert {
        name: data for name, data in case.snapshot().items() if not name.startswith((".train", "train-live"))
    } == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_within_an_archive_waits_until_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Without that the archive could not be closed, and said so in place of the interrupt."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    opened = zipfile.ZipFile.open

    def open_and_press(archive: zipfile.ZipFile, *words: Any, **further: Any) -> Any:
        member = opened(archive, *words, **further)
        signal.raise_signal(number)
        return member

    path = tmp_path / "arrays.npz"
    save_arrays(path, {"old": np.zeros(3)})
    monkeypatch.setattr(zipfile.ZipFile, "open", open_and_press)
    before = signal.signal(number, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            save_arrays(path, {"a": np.arange(1000), "b": np.arange(3)})
        assert signal.getsignal(number) is interrupt
    finally:
        signal.signal(number, before)
    monkeypatch.undo()
    assert load_arrays(path)["old"].tolist() == [0, 0, 0]
    assert list(tmp_path.iterdir()) == [path]


def test_a_training_goes_on_where_ctrl_c_stopped_it_and_ends_with_the_same_weights(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("train", "--data", case.data(), "--epochs", 4)
    assert case.step(*map(str, words)).code == 0
    wanted = (case.out / "train" / "weights.npz").read_bytes()
    shutil.rmtree(case.out / "train")
    train_epoch, epochs = Emulator.train_epoch, []

    def two_epochs(emulator: Emulator, data: Any, seed: int, epoch: int, *further: Any) -> Any:
        epochs.append(epoch)
        if len(epochs) == 3:
            raise KeyboardInterrupt
        return train_epoch(emulator, data, seed, epoch, *further)

    monkeypatch.setattr(Emulator, "train_epoch", two_epochs)
    assert case.step(*map(str, words)).code == 130
    assert case.step(*map(str, words)).code == 0
    assert epochs == [0, 1, 2, 2, 3]
    assert (case.out / "train" / "weights.npz").read_bytes() == wanted


def test_a_damaged_checkpoint_is_not_taken_up(case: Case) -> None:
    def checkpoint(record: object) -> bytes:
        Emulator(load_training_graph(case.workspace)).save(case.out / "made.npz", record)
        return (case.out / "made.npz").read_bytes()

    whole = checkpoint({"identity": 3, "epochs": [], "begun": {}})
    for data in (b"", b"{", whole[:-40], whole, checkpoint({"identity": {}}), checkpoint(None), checkpoint([1])):
        (case.out / ".train-checkpoint.npz").write_bytes(data)
        outcome = case.step("train", "--data", case.data(), "--epochs", 2)
        assert outcome.code == 0, outcome.error
        assert len(json.loads((case.out / "train" / "train.json").read_text())["epochs"]) == 2
        shutil.rmtree(case.out / "train")


# ---- what other processes do, or did


def test_a_second_run_in_the_same_folder_is_told_of_the_first(case: Case) -> None:
    script = (
        "import sys, pathlib\nfrom dagtrain.files import working_folder\n"
        "with working_folder(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(case.out)]
    before = case.snapshot()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        refused(
            case.step("report"),
            rf"dagtrain is already at work in .*build \(process {first.pid}\)",
            "choose another --out",
        )
        first.communicate("")
    assert {name: data for name, data in case.snapshot().items() if name != ".lock"} == {
        name: data for name, data in before.items() if name != ".lock"
    }
    assert case.step("report").code == 0


def test_what_a_killed_run_left_half_written_is_cleared_and_what_it_moved_away_comes_back(case: Case) -> None:
    before = case.snapshot()
    (case.out / ".emit.tmp-x7f").mkdir()
    (case.out / ".emit.tmp-x7f" / "emit.json").write_text("{")
    (case.out / "import" / ".graph.json.tmp-12.34").write_text("half")
    (case.out / ".train-checkpoint.npz.tmp-12.34").write_bytes(b"half")
    (case.out / ".place.old-99").mkdir()
    (case.out / "import").rename(case.out / ".import.old-99")
    assert case.step("show").code in (0, 1)
    assert case.step("place").code == 0
    left = {str(path.relative_to(case.out)) for path in case.out.rglob(".*")}
    assert left <= {".lock"}
    assert {name: data for name, data in case.snapshot().items() if name != ".lock"} == {
        name: data for name, data in before.items() if name != ".lock"
    }


def test_a_folder_in_which_nothing_was_written_is_not_left_behind(fresh: Case) -> None:
    outcome = call("place", "--devices", fresh.cluster, "--out", fresh.root / "mistyped")
    assert outcome.code == 1
    assert not (fresh.root / "mistyped").exists()


def test_weights_that_changed_beside_a_model_make_the_import_anew(fresh: Case) -> None:
    proto = onnx.load(fresh.model)
    external_data_helper.convert_model_to_external_data(proto, location="net.data", size_threshold=0)
    onnx.save(proto, fresh.model)
    assert "import: done" in fresh.step("import").out
    assert "unchanged" in fresh.step("import").out
    data = fresh.root / "net.data"
    words = np.frombuffer(data.read_bytes(), "<f4") * np.float32(0.5)
    data.write_bytes(words.tobytes())
    assert "import: done" in fresh.step("import").out


def test_place_refuses_words_of_the_network_that_carry_no_element(case: Case) -> None:
    text = CLUSTER.replace("clock_mhz = 200", "clock_mhz = 200\nlink_word_bits = 8")
    path = case.write("narrow.toml", text.replace("link_gbit_per_s = 100", "link_gbit_per_s = 1"))
    wanted = r"narrow\.toml: cluster\.link_word_bits = 8: elements of .* have \d+ bits"
    refused(case.step("place", "--devices", path), wanted, "write at least", "or leave it out")


# ---- one message for programs, too


def test_with_json_an_error_is_the_one_document_on_standard_output(case: Case) -> None:
    outcome = case.step("train", "--epochs", 0, "--json")
    refused(outcome, "--epochs must be at least 1")
    assert json.loads(outcome.out)["error"]["exit_code"] == 1


def test_all_steps_at_once_stop_at_the_first_that_fails(fresh: Case) -> None:
    fresh.cluster.write_text("")
    outcome = call("run", fresh.model, "--norm", "as-is", "--devices", fresh.cluster, "--out", fresh.out)
    assert outcome.code == 1
    assert "import: done" in outcome.out
    assert re.search(r"error: .*cluster\.toml: cluster is missing", outcome.error)
    assert sorted(path.name for path in fresh.out.iterdir()) == [".lock", "import"]


def test_every_command_of_the_command_line_is_tried_here() -> None:
    commands = {command.name or getattr(command.callback, "__name__", "") for command in cli.app.registered_commands}
    # timing takes Verilog files, parallelize a model (tests/test_hypar.py), not a working folder; tests/test_drive.py
    # interrupts drive, tests/test_serve.py serve, tests/test_selftest_cluster.py tries bring-up and self-test
    alone = {"timing", "parallelize", "bring-up"}
    assert commands == {*INTERRUPTED, *HARMLESS, *alone, "show", "run", "drive", "serve", "self-test"}
    assert {step for step, _ in ORDER} | {*HARMLESS, *alone, "import", "run"} == commands
