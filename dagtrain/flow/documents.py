"""What `--json` prints, by command, and what stands in files beside it, as one JSON schema; docs/results.schema.json is
this, written down.

python -m dagtrain.flow.documents > docs/results.schema.json
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from dagtrain.flow.records import (
    BringUpRecord,
    CosimRecord,
    Count,
    DebugRecord,
    DriveRecord,
    EmitRecord,
    EstimateRecord,
    EvaluateRecord,
    ExplainRecord,
    ExportRecord,
    ImportRecord,
    MappingRecord,
    ParallelRecord,
    PointRecord,
    ProfileRecord,
    SelfTestRecord,
    ServeRecord,
    SimulationRecord,
    SummaryRecord,
    TimelineRecord,
    TimingRecord,
    TrainRecord,
    WallsRecord,
)
from dagtrain.flow.workspace import State
from dagtrain.passes.replicate import NormSync
from placement.problem.plan import plan_schema

# ---- what leaves no files


class ProblemDocument(TypedDict):
    """One thing that is wrong."""

    # node, file, option …; empty where ``what`` says it
    where: str
    what: str
    cure: str


class ErrorDocument(TypedDict):
    """A command that could not be done."""

    # the class of the error, or usage, system, memory, crash, aborted
    kind: str
    # as people read it
    message: str
    problems: list[ProblemDocument]
    exit_code: int


class OperatorDocument(TypedDict):
    """Nodes of an operator in a model."""

    operator: str
    nodes: Count
    # kind of layer -> how many they become
    layers: dict[str, Count]
    lost: Count


class NormDocument(TypedDict):
    """A normalisation of a model, and what becomes of it."""

    node: str
    fate: str
    why: str


class CheckDocument(TypedDict):
    """`dagtrain import --check`."""

    model: str
    # None where it can't be imported
    layers: Count | None
    operators: list[OperatorDocument]
    # idiom -> how often it is spelt out
    idioms: dict[str, Count]
    folded: Count
    norms: list[NormDocument]
    notes: list[str]
    problems: list[ProblemDocument]


class StandingDocument(TypedDict):
    """How the result of a step stands."""

    step: str
    state: State
    why: str
    command: str


class StatusDocument(TypedDict):
    """`dagtrain status`."""

    folder: str
    steps: list[StandingDocument]
    # the command to run next; empty where all hold
    next: str


class CleanDocument(TypedDict):
    """`dagtrain clean`."""

    removed: list[str]
    size_bytes: Count


class ElementDocument(TypedDict):
    """A number of a tensor."""

    index: list[Count]
    code: int
    # as values
    emulator: float
    float: float
    # from float to emulator, in steps of the format
    steps: float
    # code; None where no simulation saw it
    simulation: int | None


class ProbeDocument(TypedDict):
    """`dagtrain probe`."""

    edge: str
    node: str
    format: str
    # why there is nothing of a simulation; "" where there is
    note: str
    elements: list[ElementDocument]


class SweepDocument(TypedDict):
    """`dagtrain place --sweep`."""

    points: list[PointRecord]


class ReportDocument(TypedDict):
    """`dagtrain report`."""

    # paths
    page: str
    picture: str


class ExportDocument(ExportRecord):
    """`dagtrain export`."""

    path: str


# ---- all of them

# step -> what it tells beside the envelope; place is a plan
LEAVING: Mapping[str, type[Any]] = {
    "import": ImportRecord,
    "emit": EmitRecord,
    "cosim": CosimRecord,
    "simulate": SimulationRecord,
    "debug": DebugRecord,
    "train": TrainRecord,
    "serve": ServeRecord,
    "drive": DriveRecord,
    "bring-up": BringUpRecord,
    "self-test": SelfTestRecord,
    "profile": ProfileRecord,
    "report": ReportDocument,
    "export": ExportDocument,
    "evaluate": EvaluateRecord,
    "parallelize": ParallelRecord,
    "estimate": EstimateRecord,
    "timing": TimingRecord,
    "walls": WallsRecord,
    "mapping": MappingRecord,
    "explain": ExplainRecord,
    "sweep": SweepDocument,
}
LOOKING: Mapping[str, type[Any]] = {
    "check": CheckDocument,
    "status": StatusDocument,
    "clean": CleanDocument,
    "probe": ProbeDocument,
}
# files that no command prints
BESIDE: Mapping[str, type[Any]] = {"timeline.json": TimelineRecord}
TRUTH = {"type": "boolean"}
ENVELOPE = {"folder": {"type": "string"}, "done": TRUTH, "left_out": TRUTH, "passed": TRUTH}
# of a plan, what its search took
SEARCHED = {
    "seconds": {"type": "number"},
    "finished": TRUTH,
    "splits": {"type": "object", "additionalProperties": {"type": "string"}},
    "copies": {
        "type": "object",
        "additionalProperties": {
            "type": ["integer", "string"],
            "minimum": 1,
            "pattern": "^[1-9][0-9]*(:[1-9][0-9]*)+$",
        },
    },
    "norm_sync": {"enum": [sync.value for sync in NormSync]},
    "remote": {"type": "array", "items": {"type": "string"}},
    "share_without_stores": {"type": ["number", "null"]},
    "never_idle_fps": {"type": ["number", "null"]},
}


def results_schema() -> dict[str, Any]:
    """The JSON schema of what any command prints with --json: the document of a step, a list of such, or an error.

    Among its definitions are those of files beside."""
    documents: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    for step, kind in LEAVING.items():
        documents[step] = _document(step, _parts(TypeAdapter(kind).json_schema(), shared), ENVELOPE)
    for step, kind in LOOKING.items():
        documents[step] = _document(step, _parts(TypeAdapter(kind).json_schema(), shared), {"passed": TRUTH})
    plan = _parts({key: value for key, value in plan_schema().items() if key != "$schema"}, shared)
    del plan["additionalProperties"]
    documents["place"] = _document("place", plan, {**ENVELOPE, **SEARCHED})
    # a step that could not be done for want of data says that and no more
    documents["left out"] = {
        "type": "object",
        "properties": {"step": {"type": "string"}, **ENVELOPE, "left_out": {"const": True}},
        "required": ["step", *ENVELOPE],
    }
    documents["show"] = _parts(_without_version(TypeAdapter(SummaryRecord).json_schema()), shared)
    error = _parts(TypeAdapter(ErrorDocument).json_schema(), shared)
    documents["error"] = {"type": "object", "properties": {"error": error}, "required": ["error"]}
    beside = {f"file {name}": _parts(TypeAdapter(kind).json_schema(), shared) for name, kind in BESIDE.items()}
    any_of = [{"$ref": f"#/$defs/{_name(name)}"} for name in sorted(documents)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What dagtrain prints with --json",
        "anyOf": [*any_of, {"type": "array", "items": {"anyOf": any_of}}],
        "$defs": {
            **{_name(name): documents[name] for name in sorted(documents)},
            **beside,
            **dict(sorted(shared.items())),
        },
    }


def _name(document: str) -> str:
    return f"document {document}"


def _document(step: str, body: dict[str, Any], envelope: Mapping[str, Any]) -> dict[str, Any]:
    properties = {"step": {"const": step}, **envelope, **body["properties"]}
    required = sorted({"step", *envelope, *body.get("required", ())})
    return {**body, "title": f"dagtrain {step}", "properties": properties, "required": required}


def _parts(schema: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    """The schema without its parts, which join the shared ones."""
    shared |= schema.pop("$defs", {})
    return schema


def _without_version(schema: dict[str, Any]) -> dict[str, Any]:
    schema["properties"].pop("schema_version")
    schema["required"].remove("schema_version")
    return schema


if __name__ == "__main__":
    print(json.dumps(results_schema(), indent=1))
