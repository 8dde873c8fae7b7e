"""What `--json` prints of every command is as docs/results.schema.json says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dagtrain import cli
from dagtrain.flow.documents import results_schema
from tests.flow_support import Case, call, new_case, quick_costs, with_few_dsp
from tests.host_support import driven
from tests.import_support import ROOT

PAGE = ROOT / "docs" / "results.schema.json"


def test_the_schema_is_written_down() -> None:
    assert json.loads(PAGE.read_text()) == results_schema(), (
        "run `python -m dagtrain.flow.documents > docs/results.schema.json`"
    )


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(PAGE.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def of(validator: jsonschema.Draft202012Validator, name: str) -> jsonschema.Draft202012Validator:
    """The part of the schema for one kind of document."""
    return validator.evolve(schema={"$ref": f"#/$defs/document {name}", "$defs": validator.schema["$defs"]})


# commands that simulate or train, and those that read what these leave
LONG = ("cosim", "simulate", "debug", "probe", "train", "profile", "evaluate", "report")


def documents(case: Case, short: bool) -> dict[str, Any]:
    """Command -> what it printed, of a case in which all steps are run, or those that are ``short``."""
    data = case.data()
    words: dict[str, tuple[object, ...]] = {
        "import": ("--data", data),
        "place": ("--gap", 0.6) if short else ("--walls", "--explain", "--sweep", "--gap", 0.6),
        "emit": (),
        "cosim": ("--batches", 1, "--no-efficiency"),
        "simulate": ("--batches", 2),
        "debug": ("--batches", 1, "--data", data),
        "probe": ("c_node.y", "--data", data),
        "train": ("--epochs", 1),
        "profile": ("--batches", 1),
        "export": (),
        "evaluate": (),
        "report": (),
        "estimate": (),
        "show": (),
        "status": (),
    }
    found: dict[str, Any] = {}
    for name, more in words.items():
        if short and (name in LONG or name == "export"):
            continue
        outcome = case.step(name, *more, "--json")
        assert outcome.code == 0, (name, outcome.error)
        found[name] = json.loads(outcome.out)
    if not short:
        with driven(case.workspace, case.root) as addresses:
            found["drive"] = json.loads(case.step("drive", "--addresses", addresses, "--json").out)
        found["run"] = json.loads(
            call("run", case.model, "--norm", "as-is", "--devices", case.cluster, "--data", data, "--batches", 1,
                 "--no-efficiency", "--epochs", 1, "--out", case.out, "--json").out
        )  # fmt: skip
    verilog = min((case.out / "emit").glob("*/rtl/*.v"), key=lambda path: path.stat().st_size)
    found["timing"] = json.loads(call("timing", verilog, "--json", "--out", case.out).out)
    found["parallelize"] = json.loads(call("parallelize", case.model, "--json", "--out", case.out).out)
    found["check"] = json.loads(call("import", case.model, "--check", "--json").out)
    found["clean"] = json.loads(call("clean", "--yes", "--json", "--out", case.out).out)
    return found


def held(validator: jsonschema.Draft202012Validator, found: dict[str, Any]) -> None:
    """Hold documents against the schema, and the schema against documents that are spoilt."""
    for name, document in found.items():
        validator.validate(document)
        for part in document if isinstance(document, list) else [document]:
            kind = part.get("step", name)
            of(validator, kind).validate(part)
            # a schema that takes anything would take a document that lacks one of its words, or has it of another kind
            for key in of(validator, kind).schema["$defs"][f"document {kind}"]["required"]:
                for broken in ({k: v for k, v in part.items() if k != key}, {**part, key: {"neither": [None]}}):
                    assert list(of(validator, kind).iter_errors(broken)), (kind, key)


@pytest.mark.slow
def test_every_command_prints_what_the_schema_says(
    tmp_path: Path, validator: jsonschema.Draft202012Validator, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    found = documents(new_case(tmp_path, with_few_dsp(0.002)), short=False)
    commands = {command.name or getattr(command.callback, "__name__", "") for command in cli.app.registered_commands}
    # tests/test_serve.py and tests/test_selftest_cluster.py hold what others print against the schema
    assert commands - {"serve", "bring-up", "self-test"} <= set(found)
    held(validator, found)
    assert [part["step"] for part in found["run"]] == ["import", "place", "emit", "cosim", "train", "report"]


def test_commands_that_plan_and_emit_print_what_the_schema_says(
    tmp_path: Path, validator: jsonschema.Draft202012Validator, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    found = documents(new_case(tmp_path, with_few_dsp(0.002)), short=True)
    assert {"import", "place", "emit", "timing", "check", "status", "show"} <= found.keys()
    held(validator, found)


def test_errors_are_as_the_schema_says(tmp_path: Path, validator: jsonschema.Draft202012Validator) -> None:
    for words, code in ((("show", "--out", tmp_path), 1), (("show", "--bogus"), 2)):
        outcome = call(*words, "--json")
        assert outcome.code == code
        of(validator, "error").validate(json.loads(outcome.out))
