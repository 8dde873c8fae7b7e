"""What tests of the command line share: a model that all steps take in seconds, a cluster, and a way to call it."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from dagtrain import cli
from dagtrain.emission.device import instance_name, produced_net
from dagtrain.emission.manifest import (
    MANIFEST_SCHEMA,
    CopyRecord,
    CrossingRecord,
    Manifest,
    MemoryRecord,
    NetworkRecord,
    RegionRecord,
    StreamRecord,
)
from dagtrain.flow import place_step
from dagtrain.flow.placed import load_plan
from dagtrain.flow.workspace import SCHEMA_VERSION, STAMP, Workspace, file_digests, stamp_fingerprint
from hdl.costs.estimate import Circuit
from hdl.costs.resources import Resources
from hdl.dram.axi import AxiFormat
from hdl.layers.base import Layer
from hdl.link.format import LinkFormat
from placement.problem.plan import DeviceUse, Plan
from tests.import_support import model, node, save

CLUSTER = """
[cluster]
name = "two"
clock_mhz = 200

[[board]]
name = "agilex"
part = "AGFB014"
dram_gb_per_s = 76.8
dram_gbyte = 32
link_gbit_per_s = 100

[[device]]
name = "head"
board = "agilex"

[[device]]
name = "worker"
board = "agilex"
"""


def with_few_dsp(share: float, cluster: str = CLUSTER) -> str:
    """The cluster with such a share of its DSP blocks: circuits of few multipliers are emitted and built in a fraction
    of the time."""
    speed = "link_gbit_per_s = 100\n"
    return cluster.replace(speed, f"{speed}\n[board.utilisation]\ndsp = {share}\n")


def tiny_model(seed: int = 1) -> ModelProto:
    """Convolution, relu, matrix product: 2 channels of 6x6 pixels in, 3 classes out."""
    rng = np.random.default_rng(seed)
    constants = {"k": rng.standard_normal((4, 2, 3, 3)) / 4, "w": rng.standard_normal((3, 144)) / 12}
    nodes = [
        node("Conv", "x k", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("Flatten", "r", "f"),
        node("Gemm", "f w", "y", transB=1),
    ]
    return model(nodes, constants)


class QuickEstimator:
    """Stands in for elaboration, which takes seconds a layer: multipliers as declared, registers by width."""

    def prepare(self, wanted: Mapping[str, Circuit], on_done: Callable[[int], None] = lambda _: None) -> None:
        """Nothing takes time."""

    def layer(self, layer: Layer) -> Resources:
        """Declared multipliers."""
        multipliers = {(16, 16): int(layer.multipliers)} if layer.multipliers else {}
        return Resources(multipliers=multipliers, registers=100)

    def block(self, configuration: str, widths: Mapping[str, int], build: Callable[..., Any]) -> Resources:
        """Two words a stream."""
        del configuration, build
        return Resources(registers=2 * sum(widths.values()))


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Outcome:
    """What a call of the command line left."""

    code: int
    out: str
    error: str


def call(*words: object) -> Outcome:
    """The command line with these words, in this process.

    Whatever is not an exit is let through: the command line must turn every error of a user into one."""
    out, error = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["dagtrain", *map(str, words)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            cli.main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        return Outcome(code, out.getvalue(), error.getvalue())
    finally:
        sys.argv = before
    return Outcome(0, out.getvalue(), error.getvalue())


@dataclass(frozen=True)
class Case:
    """A folder with a model, a cluster file and a working folder."""

    root: Path

    @property
    def model(self) -> Path:
        """The ONNX file."""
        return self.root / "net.onnx"

    @property
    def cluster(self) -> Path:
        """The cluster file."""
        return self.root / "cluster.toml"

    @property
    def out(self) -> Path:
        """The working folder."""
        return self.root / "build"

    @property
    def workspace(self) -> Workspace:
        """The working folder, as the flow sees it."""
        return Workspace(self.out)

    def write(self, name: str, text: str) -> Path:
        """A text file beside the model."""
        path = self.root / name
        path.write_text(text)
        return path

    def data(self, frames: int = 40) -> Path:
        """Random images with labels for the model."""
        rng = np.random.default_rng(frames)
        path = self.root / "data.npz"
        images = rng.standard_normal((frames, 2, 6, 6)).astype(np.float32)
        np.savez(path, images=images, labels=rng.integers(0, 3, frames))
        return path

    def step(self, name: str, *words: object) -> Outcome:
        """A command in the working folder, with the arguments it needs."""
        needed = {"import": (self.model, "--norm", "as-is"), "place": ("--devices", self.cluster)}
        return call(name, *needed.get(name, ()), *words, "--out", self.out)

    def must(self, *names: str) -> Case:
        """These commands, which must succeed."""
        for name in names:
            outcome = self.step(name)
            assert outcome.code == 0, f"{name}: {outcome.error}"
        return self

    def pretend(
        self, step: str, earlier: tuple[str, ...], document: Mapping[str, Any], beside: Mapping[str, str] | None = None
    ) -> None:
        """A result of a step that takes long, with what other steps read of it, and other texts by file name."""

        def work(folder: Path) -> None:
            (folder / f"{step}.json").write_text(json.dumps({"schema_version": SCHEMA_VERSION, **document}))
            for name, text in (beside or {}).items():
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_text(text)

        self.workspace.leave(step, {name: self.workspace.fingerprint(name) for name in earlier}, work)

    def restamp(self, step: str) -> None:
        """As if the step had left its files as they are now."""
        path = self.out / step / STAMP
        stamp = json.loads(path.read_text())
        stamp["files"] = file_digests(step, self.out / step)
        path.write_text(json.dumps({**stamp, "fingerprint": stamp_fingerprint(stamp)}))

    def pretend_emit(self) -> Case:
        """What `dagtrain emit` leaves of the plan, so far as later steps read it: the summary, and manifests."""
        plan = load_plan(self.workspace)
        used = [use for use in plan.devices if use.items]
        devices = [{"name": use.device, "nodes": use.items, "modules": 5, "egress": 1, "ingress": 2} for use in used]
        self.pretend(
            "emit",
            ("import", "place"),
            {"cycles_per_frame": 36, "needed_staleness": 4, "devices": devices},
            {f"{use.device}/manifest.json": made_up_manifest(plan, use).to_json() for use in used},
        )
        return self

    def snapshot(self) -> dict[str, bytes]:
        """Every file in the working folder with its bytes."""
        return {
            str(path.relative_to(self.out)): path.read_bytes() for path in sorted(self.out.rglob("*")) if path.is_file()
        }


def made_up_manifest(plan: Plan, use: DeviceUse) -> Manifest:
    """Of an FPGA with FIFOs of all kinds in front of its nodes, a stream from elsewhere and a region in DRAM."""
    nodes = [item.item for item in plan.items if item.device == use.device]
    fifos = {
        f"FIFO of {node}.x": (node, depth) for node, depth in zip(nodes, cycle((4, 2000, 0, 36, 300)), strict=False)
    }
    streams = [
        StreamRecord(net=f"{way}_{n}", writer=ends[0], reader=ends[1], payload_bits=24)
        for n, (name, (node, _)) in enumerate(fifos.items())
        for way, ends in (("p", ("fork", name)), ("c", (name, node)))
    ]
    arrives = CrossingRecord(
        edge="far.y", stream_number=0, source="elsewhere", target=use.device, kind="activation", element_bits=12,
        elements=64, words=48, credit_batch=12,
    )  # fmt: skip
    streams.append(StreamRecord(net="c_far", writer="receiver of far.y", reader=nodes[0], payload_bits=12))
    form = AxiFormat(data_bits=512, address_bits=32)
    region = RegionRecord(name="late.y", base=0, words=640, contents=None)
    return Manifest(
        schema_version=MANIFEST_SCHEMA, device=use.device, part=use.part, clock_mhz=plan.clock_hz / 1e6,
        cycles_per_frame=36, needed_staleness=4, top=use.device, ports=(), sources=(), nodes=tuple(nodes), images=(),
        host_ports=(), weights=(), streams=tuple(streams),
        copies=tuple(CopyRecord(part=name, depth=depth) for name, (_, depth) in fifos.items()),
        memory=(MemoryRecord(port="m_axi", format=form, image="images/dram.mem", words=640, regions=(region,)),),
        network=NetworkRecord(format=LinkFormat(word_bits=64, streams=2, devices=2), device=0), egress=(),
        ingress=(arrives,),
    )  # fmt: skip


def new_case(root: Path, cluster: str = CLUSTER) -> Case:
    """A case with the tiny model and a cluster, that of two."""
    root.mkdir(parents=True, exist_ok=True)
    save(tiny_model(), root)
    case = Case(root)
    case.write("cluster.toml", cluster)
    return case


def quick_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `place` take costs from `QuickEstimator`."""
    monkeypatch.setattr(place_step, "Estimator", QuickEstimator)


def spoil(case: Case, node: str, edge: str, beat: int, bit: int) -> Path:
    """Let a node send one wrong bit, as if `dagtrain emit` had left it so."""
    (path,) = (
        path for path in (case.out / "emit").glob("*/rtl/*.v") if f" {instance_name(node)} (" in path.read_text()
    )
    text, net = path.read_text(), produced_net(edge)
    head = re.search(rf"^\w[^;]* {instance_name(node)} \([^;]*;", text, re.MULTILINE)
    width = re.search(rf"^wire \[(\d+):0\] {net}_payload;", text, re.MULTILINE)
    assert head
    assert width
    right = head[0].replace(f"({net}_payload)", "(right)")
    own = f"""wire [{width[1]}:0] right;
reg [31:0] beat = 0;
always @(posedge clk) if ({net}_valid && {net}_ready && !rst) beat <= beat + 1;
assign {net}_payload = right ^ ((beat == {beat}) << {bit});
{right}"""
    path.write_text(text.replace(head[0], own))
    case.restamp("emit")
    return path


def relu_beats(case: Case) -> int:
    """Beats a frame of what the relu of the tiny model sends, as emitted."""
    for path in (case.out / "emit").glob("*/rtl/*.v"):
        found = re.search(r"^wire \[(\d+):0\] p_r_node_y_payload;", path.read_text(), re.MULTILINE)
        if found:
            return 6 * 6 * 4 * 16 // (int(found[1]) + 1)
    raise AssertionError("no top has the relu's result")
