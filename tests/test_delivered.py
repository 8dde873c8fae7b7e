"""Co-simulation runs what was delivered: a file that is missing, altered or swapped is an error or a mismatch."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dagtrain.cosim.cluster import simulate_cluster
from dagtrain.cosim.compare import compare_start
from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.delivered import Delivered, load_delivered
from dagtrain.emission.design import ClusterDesign
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.manifest import MANIFEST_SCHEMA, DeliveryError
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.graph.executor import Executor, Mode
from dagtrain.progress import Silent
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.errors import ToolError
from tests.cosim_support import DEVICES, deliver, tiny_design

LIBRARY = ModuleLibrary(cache_folder() / "modules")
USED = DEVICES[:2]


@pytest.fixture(scope="module")
def design() -> ClusterDesign:
    """Two devices, DRAM on one."""
    return tiny_design(LIBRARY)


@pytest.fixture(scope="module")
def written(design: ClusterDesign, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its files."""
    folder = tmp_path_factory.mktemp("delivered")
    deliver(design, LIBRARY, folder)
    return folder


@pytest.fixture
def emit(written: Path, tmp_path: Path) -> Path:
    """A copy of them that a test may change."""
    shutil.copytree(written, tmp_path / "emit")
    return tmp_path / "emit"


def load(emit: Path) -> Delivered:
    return load_delivered([emit / name for name in USED])


def module_file(emit: Path, device: str, kind: str) -> Path:
    """The file of a module of that kind, which no other device has."""
    elsewhere = {path.name for other in USED if other != device for path in (emit / other / "rtl").iterdir()}
    found = [path for path in sorted((emit / device / "rtl").glob(f"{kind}_*.v")) if path.name not in elsewhere]
    return found[0]


def swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    assert first != second
    one.write_bytes(second)
    other.write_bytes(first)


def manifest_change(change: Callable[[dict[str, object]], object]) -> Callable[[Path], object]:
    def apply(emit: Path) -> None:
        path = emit / "beta" / "manifest.json"
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return apply


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "a missing top": (lambda emit: (emit / "beta/rtl/beta.v").unlink(), r"beta/rtl/beta\.v cannot be read: No such"),
    "a missing module": (
        lambda emit: module_file(emit, "beta", "conv_error").unlink(),
        r"beta/rtl/conv_error_\w+\.v cannot be read: No such",
    ),
    "a missing file list": (lambda emit: (emit / "beta/files.f").unlink(), r"beta/files\.f is missing"),
    "a missing manifest": (lambda emit: (emit / "beta/manifest.json").unlink(), r"beta/manifest\.json cannot be read"),
    "a missing image": (
        lambda emit: (emit / "beta/images/conv2.weights.mem").unlink(),
        r"beta/images/conv2\.weights\.mem is missing",
    ),
    "a missing image of the DRAM": (
        lambda emit: (emit / "beta/images/dram.mem").unlink(),
        r"beta/images/dram\.mem is missing",
    ),
    "a shorter image": (
        lambda emit: (emit / "beta/images/conv2.weights.mem").write_text("00\n"),
        r"conv2\.weights\.mem has 3 bytes, [\d,]+ words of \d+ bits have [\d,]+",
    ),
    "garbage in the top": (
        lambda emit: (emit / "beta/rtl/beta.v").write_text("garbage"),
        r"beta\.v has modules \(none\)",
    ),
    "bytes in the top": (lambda emit: (emit / "beta/rtl/beta.v").write_bytes(b"\xff\xfe"), r"beta\.v is no Verilog"),
    "tops of two devices swapped": (
        lambda emit: swap(emit / "beta/rtl/beta.v", emit / "alpha/rtl/alpha.v"),
        r"alpha\.v has modules beta instead of alpha; .*beta\.v has modules alpha instead of beta",
    ),
    "two modules swapped": (
        lambda emit: swap(module_file(emit, "beta", "conv_error"), module_file(emit, "beta", "online_norm_backward")),
        r"conv_error_\w+\.v has modules online_norm_backward_\w+ instead of conv_error_",
    ),
    "a module more in a file": (
        lambda emit: append(emit / "beta/rtl/beta.v", "module more;\nendmodule\n"),
        r"beta\.v has modules beta, more instead of beta",
    ),
    "a longer file list": (
        lambda emit: append(emit / "beta/files.f", "rtl/more.v\n"),
        r"files\.f names other files than",
    ),
    "another port of the top": (
        lambda emit: (emit / "beta/rtl/beta.v").write_text(
            (emit / "beta/rtl/beta.v").read_text().replace("input wire net_tx_tready", "input wire net_tx_ready")
        ),
        r"ports of .*beta\.v differ from the manifest's: net_tx_ready, net_tx_tready",
    ),
    "a manifest of another version": (
        manifest_change(lambda document: document.update(schema_version=1)),
        rf"manifest\.json has schema version 1, this version reads {MANIFEST_SCHEMA}",
    ),
    "a manifest of brackets": (
        lambda emit: (emit / "beta/manifest.json").write_text("[" * 100_000),
        r"manifest\.json is damaged \(values are nested too deep\)",
    ),
    "a manifest without a field": (
        manifest_change(lambda document: document.pop("host_ports")),
        r"manifest\.json is damaged \(host_ports: Field required\)",
    ),
    "a manifest of another pace": (
        manifest_change(lambda document: document.update(cycles_per_frame=7)),
        r"the manifests of alpha, beta differ in cycles_per_frame",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_was_delivered_is_refused_with(name: str, emit: Path) -> None:
    spoil, wanted = SPOILT[name]
    load(emit)
    spoil(emit)
    with pytest.raises(DeliveryError, match=rf"{wanted}.*; run `dagtrain emit` again$"):
        load(emit)


def test_all_that_is_wrong_is_told_at_once(emit: Path) -> None:
    for name in ("a missing top", "a missing image"):
        SPOILT[name][0](emit)
    with pytest.raises(DeliveryError, match=r"beta\.v cannot be read.*; .*conv2\.weights\.mem is missing"):
        load(emit)


def test_a_module_that_differs_between_devices_is_refused(emit: Path) -> None:
    names = [{path.name for path in (emit / device / "rtl").iterdir()} for device in USED]
    shared = sorted(names[0] & names[1])[0]
    append(emit / "beta/rtl" / shared, "// changed\n")
    with pytest.raises(DeliveryError, match=rf"alpha/rtl/{shared} and .*beta/rtl/{shared} differ, but are the same"):
        load(emit).modules()


def test_an_image_with_a_word_that_is_none_is_refused(design: ClusterDesign, emit: Path) -> None:
    path = emit / "beta/images/conv2.weights.mem"
    path.write_text(path.read_text().replace(path.read_text()[0], "x", 1))
    with pytest.raises(DeliveryError, match=r"conv2\.weights\.mem: '[0-9a-f]*x[0-9a-f]*' is no word of \d+ bits"):
        compare_start(load(emit), Executor(design.graph, Mode.GOLDEN))


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        (
            "images/conv2.weights.mem",
            r"beta: weights of conv2 at the start, in \S+: 1 of \d+ words differ, first initial\[0(, 0)*\] ",
        ),
        (
            "images/norm1_gamma_update.master.mem",
            r"beta: master of norm1\.gamma\.update at the start, in \S+: 1 of \d+ words .* master\[0\] ",
        ),
        (
            "images/dram.mem",
            r"beta: state of conv2\.w\.update at the start, in \S+: 1 of \d+ words .* master\[0(, 0)*\] ",
        ),
    ],
)
def test_a_bit_of_an_image_that_is_altered_is_a_mismatch(
    file: str, wanted: str, design: ClusterDesign, emit: Path
) -> None:
    golden = Executor(design.graph, Mode.GOLDEN)
    fine = compare_start(load(emit), golden)
    assert fine.mismatches == ()
    assert fine.words > 100
    path = emit / "beta" / file
    lines = path.read_text().splitlines()
    # the lowest bit of the first word
    at = next(index for index, line in enumerate(lines) if not line.startswith("@"))
    lines[at] = f"{int(lines[at], 16) ^ 1:0{len(lines[at])}x}"
    path.write_text("\n".join(lines) + "\n")
    (found,) = compare_start(load(emit), golden).mismatches
    assert re.match(wanted, found), found


def test_verilog_that_does_not_compile_is_an_error(design: ClusterDesign, emit: Path, tmp_path: Path) -> None:
    append(module_file(emit, "beta", "conv_error"), "this is no Verilog\n")
    feeds = [synthetic_feeds(design.graph, design.graph.recipe.batch, 100)]
    with pytest.raises(ToolError, match=r"conv_error_\w+\.v"):
        simulate_cluster(
            load(emit), design.graph, LIBRARY, feeds, tmp_path, Simulator.VERILATOR, NetworkModel(), 0, 1, Silent()
        )
