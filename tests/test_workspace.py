"""Stamps vouch for every byte of a result: whoever reads it next names the file that changed and the cure."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dagtrain.flow.workspace import SCHEMA_VERSION, STAMP, MissingStep, Workspace, file_digests
from tests.flow_support import Case, new_case, quick_costs


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """Imported, placed, trained; as if emitted."""
    with pytest.MonkeyPatch.context() as patch:
        quick_costs(patch)
        found = new_case(tmp_path_factory.mktemp("done")).must("import", "place").pretend_emit()
        assert found.step("train", "--data", found.data(), "--epochs", 1).code == 0
        yield found


@pytest.fixture
def case(done: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """A copy of it that a test may change."""
    quick_costs(monkeypatch)
    shutil.copytree(done.root, tmp_path / "case")
    return Case(tmp_path / "case")


def flip(path: Path) -> None:
    """Another lowest bit in the byte in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


IMPORT, PLACE = "dagtrain import MODEL.onnx", "dagtrain place --devices CLUSTER.toml"
# file -> a step that reads it, directly or not, and the step that makes it
READERS = [
    ("import/graph.json", ("place", "--seed", 7), IMPORT),
    ("import/graph.npz", ("emit",), IMPORT),
    ("import/graph.npz", ("train", "--epochs", 2), IMPORT),
    ("import/import.json", ("report",), IMPORT),
    ("import/summary.json", ("show",), IMPORT),
    ("place/plan.json", ("emit",), PLACE),
    ("place/plan.json", ("estimate",), PLACE),
    ("place/plan.json", ("cosim",), PLACE),
    ("place/instance.json", ("report",), PLACE),
    ("place/cluster.toml", ("emit",), PLACE),
    ("emit/emit.json", ("cosim",), "dagtrain emit"),
    ("emit/emit.json", ("report",), "dagtrain emit"),
    ("train/weights.npz", ("report",), "dagtrain train"),
    ("train/train.json", ("report",), "dagtrain train"),
]


@pytest.mark.parametrize(
    ("file", "words", "command"), READERS, ids=[f"{file}, {words[0]}" for file, words, _ in READERS]
)
def test_a_flipped_bit_is_noticed_by_the_next_step_that_reads_the_result(
    file: str, words: tuple[object, ...], command: str, case: Case
) -> None:
    flip(case.out / file)
    before = case.snapshot()
    outcome = case.step(str(words[0]), *words[1:])
    step = file.partition("/")[0]
    wanted = f"error: {case.out / file} was changed since `dagtrain {step}` ended; run `{command}` again"
    assert (outcome.code, " ".join(outcome.error.split())) == (1, wanted)
    assert case.snapshot() == before


def test_files_removed_and_added_are_noticed_all_at_once(case: Case) -> None:
    (case.out / "place" / "instance.json").unlink()
    (case.out / "place" / "notes.txt").write_text("mine")
    flip(case.out / "import" / "graph.npz")
    outcome = case.step("emit")
    text = " ".join(outcome.error.split())
    assert outcome.code == 1
    for pattern in (
        r"import/graph\.npz was changed since `dagtrain import` ended; run `dagtrain import MODEL\.onnx` again",
        r"place/instance\.json was removed, \S+place/notes\.txt was added since `dagtrain place` ended",
    ):
        assert re.search(pattern, text), text


def test_the_command_named_makes_a_spoilt_result_again_and_what_rests_on_it_still_holds(case: Case) -> None:
    before = case.must("import", "place").snapshot()
    flip(case.out / "import" / "graph.npz")
    assert case.step("emit").code == 1
    outcome = case.step("import")
    assert outcome.code == 0, outcome.error
    assert "unchanged" not in outcome.out
    assert case.snapshot() == before
    # the same bytes, so the plan holds
    assert case.step("place").code == 0
    assert case.snapshot() == before


def test_a_spoilt_plan_is_not_gone_on_from(case: Case) -> None:
    path = case.out / "place" / "place.json"
    path.write_text(path.read_text().replace('"finished": true', '"finished": false'))
    outcome = case.step("place")
    assert outcome.code == 0, outcome.error
    assert json.loads(path.read_text())["finished"] is True
    assert json.loads(path.read_text())["begun_from"] == ""


def write(space: Workspace, step: str, depends: dict[str, str], **texts: str) -> bool:
    def work(folder: Path) -> None:
        for name, text in texts.items():
            (folder / name).write_text(text)

    return space.run(step, depends, work)


def test_another_result_from_the_same_inputs_makes_what_rests_on_it_void(tmp_path: Path) -> None:
    space = Workspace(tmp_path)
    write(space, "import", {"model": "a"}, graph="one")
    write(space, "place", {"import": space.fingerprint("import")}, plan="of one")
    assert not write(space, "import", {"model": "a"}, graph="another")
    (tmp_path / "import" / "graph").write_text("spoilt")
    assert write(Workspace(tmp_path), "import", {"model": "a"}, graph="another")
    with pytest.raises(MissingStep, match=r"place is of an earlier `dagtrain import`, .* run `again` again"):
        Workspace(tmp_path).require("place", "again")


def test_a_result_made_again_in_the_same_process_is_looked_at_again(tmp_path: Path) -> None:
    space = Workspace(tmp_path)
    write(space, "import", {"model": "a"}, graph="one")
    (tmp_path / "import" / "graph").write_text("spoilt")
    assert not Workspace(tmp_path).intact("import")
    space = Workspace(tmp_path)
    assert not space.intact("import")
    assert write(space, "import", {"model": "a"}, graph="one")
    assert space.intact("import")
    assert space.require("import", "again") == tmp_path / "import"


Spoil = Callable[[dict[str, object]], object]
STAMPS: dict[str, Spoil] = {
    "another fingerprint": lambda stamp: stamp.update(fingerprint="another"),
    "another digest": lambda stamp: stamp.update(files={"graph": "another"}),
    "no digests": lambda stamp: stamp.pop("files"),
    "a list of digests": lambda stamp: stamp.update(files=[]),
    "another version": lambda stamp: stamp.update(schema_version=SCHEMA_VERSION),
}


@pytest.mark.parametrize("name", STAMPS)
def test_a_result_counts_for_none_when_its_stamp_has(name: str, tmp_path: Path) -> None:
    write(Workspace(tmp_path), "import", {"model": "a"}, graph="one")
    path = tmp_path / "import" / STAMP
    stamp = json.loads(path.read_text())
    STAMPS[name](stamp)
    path.write_text(json.dumps(stamp))
    with pytest.raises(MissingStep, match=r"import holds no result of `dagtrain import`; run `again` first"):
        Workspace(tmp_path).require("import", "again")


def test_working_files_of_the_cosimulation_are_free_to_change(tmp_path: Path) -> None:
    space = Workspace(tmp_path)

    def work(folder: Path) -> None:
        (folder / "bench").mkdir()
        (folder / "bench" / "dump").write_text("long")
        (folder / "cosim.json").write_text("{}")

    space.run("cosim", {}, work)
    (tmp_path / "cosim" / "bench" / "dump").unlink()
    assert Workspace(tmp_path).intact("cosim")
    (tmp_path / "cosim" / "cosim.json").write_text("{ }")
    assert not Workspace(tmp_path).intact("cosim")


def test_a_file_that_became_a_folder_or_cannot_be_read_is_noticed(tmp_path: Path) -> None:
    write(Workspace(tmp_path), "import", {}, graph="one", other="two")
    (tmp_path / "import" / "graph").unlink()
    (tmp_path / "import" / "graph").mkdir()
    (tmp_path / "import" / "other").unlink()
    (tmp_path / "import" / "other").symlink_to("nowhere")
    with pytest.raises(MissingStep, match=r"import/graph was removed, \S+import/other was changed since"):
        Workspace(tmp_path).require("import", "again")


def test_what_quartus_leaves_beside_its_project_is_not_vouched_for_and_all_else_is(tmp_path: Path) -> None:
    vouched = [
        "fpga0/fpga0.qsf",
        "fpga0/rtl/fpga0.v",
        "fpga0/rtl/db.v",
        "fpga0/rtl/db/more.v",
        "db/more.v",
        "notes.qws",
    ]
    left = ["fpga0/db/fpga0.db_info", "fpga0/output_files/fpga0.sof", "fpga0/qdb/_compiler/a/b", "fpga0/fpga0.qws"]
    for name in (*vouched, *left):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert sorted(file_digests("emit", tmp_path)) == sorted(vouched)
    assert sorted(file_digests("place", tmp_path)) == sorted(vouched + left)
