"""`dagtrain serve` with `dagtrain drive`: emitted Verilog trains over UDP and a network that loses frames, to the bits
of `dagtrain train`.

One cluster is served to all tests here; each host that comes resets it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.utils import PcapNgReader

from dagtrain.cosim.network import SWITCH_FILE
from dagtrain.files import open_archive
from dagtrain.flow.documents import results_schema
from dagtrain.flow.placed import load_placed_graph, load_plan
from dagtrain.graph.executor import Executor
from dagtrain.host.wiring import ADDRESSES, read_wiring
from dagtrain.passes.access_state import access_state
from dagtrain.planning.choices import folded_graph
from dagtrain.training.feeds import synthetic_feeds
from tests.flow_support import CLUSTER, Case, new_case, quick_costs, with_few_dsp
from tests.host_support import hosted, work_of

pytestmark = pytest.mark.slow
# batches of an epoch
BATCHES, EPOCHS = 8, 2
SECONDS = 240.0
NETWORK = """
[network]
kind = "ethernet"
host_rtt_us = 10
host_mac = "02:00:00:00:ff:ff"
"""
FAULTS = ("--loss", "0.01", "--duplicate", "0.01", "--reorder", "0.01", "--corrupt", "0.01")


@dataclass
class Served:
    """A cluster that is served, and the options by which it is found."""

    case: Case
    port: int
    program: subprocess.Popen[str]

    @property
    def options(self) -> list[object]:
        return ["--host", f"127.0.0.1:{self.port}", "--answer-seconds", 30, "--epochs", EPOCHS]


# of `import`: one of each layer, and two that exchange gradients through a codec and keep what it takes
NETS: dict[str, tuple[object, ...]] = {
    "plain": (),
    "copies": ("--norm", "none", "--copy", "*=2", "--exchange", "chain", "--compress", "integer:4,feedback"),
}


@pytest.fixture(scope="module", params=NETS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        quick_costs(patch)
        text = with_few_dsp(0.02, CLUSTER).replace("link_gbit_per_s = 100", "link_gbit_per_s = 12.8")
        case = new_case(
            tmp_path_factory.mktemp("serve"),
            text.replace("clock_mhz = 200", "clock_mhz = 200\nlink_word_bits = 64") + NETWORK,
        )
        recipe = case.write("recipe.toml", "batch = 4\nstaleness = 4\n")
        for words in (
            ("import", "--recipe", recipe, "--data", case.data(), *NETS[request.param]),
            ("place",),
            ("emit", "--state-access", "ports"),
            ("train", "--epochs", EPOCHS),
        ):
            outcome = case.step(*words)
            assert outcome.code == 0, outcome.error
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = _program("serve", "--port", port, "--no-optimise", "--pcap", *FAULTS, "--json", "--out", case.out)
    try:
        end = time.monotonic() + SECONDS
        while not (case.out / "serve" / "bench" / SWITCH_FILE).is_file():
            assert program.poll() is None, program.communicate()
            assert time.monotonic() < end
            time.sleep(0.1)
        yield Served(case, port, program)
    finally:
        program.kill()
        program.communicate()


def _program(*words: object) -> subprocess.Popen[str]:
    code = "from dagtrain.cli import main; main()"
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code, *map(str, words)], stdout=pipe, stderr=pipe, text=True)


def arrays(path: Path) -> dict[str, np.ndarray]:
    with open_archive(path) as file:
        return {name: file[name] for name in file.files}


def of_record(path: Path) -> dict[str, object]:
    """The document of a checkpoint, without what a batch of it wrapped."""
    found: dict[str, object] = json.loads(str(arrays(path)["document"]))
    return found


def test_what_is_driven_ends_in_the_bits_of_train(served: Served, tmp_path: Path) -> None:
    case, run = served.case, tmp_path / "run.npz"
    done = case.step("drive", *served.options, "--save", run, "--compare", "--json")
    assert done.code == 0, done.error
    told = json.loads(done.out)
    assert told["compared"]["mismatches"] == []
    assert told["compared"]["batches"] == EPOCHS * BATCHES
    assert told["compared"]["words"] > 1000
    assert told["epochs"] == json.loads((case.out / "train" / "train.json").read_text())["epochs"]
    lines = [
        [json.loads(line) for line in (case.out / step / "metrics.jsonl").read_text().splitlines()]
        for step in ("drive", "train")
    ]
    losses, wanted = ([(line["batch"], line["batch_loss"]) for line in each if "batch_loss" in line] for each in lines)
    assert losses == wanted
    # the emulator goes on with either checkpoint to the same end
    ends = []
    for name, checkpoint in (("own", case.out / "train" / "state.npz"), ("driven", run)):
        assert case.step("export", "--weights", checkpoint).code == 0
        ends.append((case.out / "export" / "net.onnx").read_bytes())
        assert name
    assert ends[0] == ends[1]


def test_a_driver_that_is_killed_goes_on_to_the_same_bits(served: Served, tmp_path: Path) -> None:
    case, whole, run = served.case, tmp_path / "whole.npz", tmp_path / "run.npz"
    assert case.step("drive", *served.options, "--save", whole).code == 0
    program = _program("drive", *served.options, "--save", run, "--every", 1, "--out", case.out)
    try:
        end = time.monotonic() + SECONDS
        while not run.exists():
            assert time.monotonic() < end
            assert program.poll() is None
            time.sleep(0.01)
    finally:
        program.kill()
        program.communicate()
    assert program.returncode == -signal.SIGKILL
    batches = of_record(run)["batches"]
    assert isinstance(batches, int)
    assert 0 < batches < EPOCHS * BATCHES
    again = case.step("drive", *served.options, "--resume", run, "--save", run)
    assert again.code == 0, again.error
    found, wanted = arrays(run), arrays(whole)
    assert found.keys() == wanted.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=name)


def test_a_host_that_shares_no_code_trains_a_batch_of_it(served: Served, tmp_path: Path) -> None:
    """`tests/ethernet_host.py`, on a blocking socket."""
    workspace = served.case.workspace
    graph = access_state(folded_graph(load_placed_graph(workspace), load_plan(workspace)))
    wiring = read_wiring(workspace.folder("emit") / ADDRESSES)
    feeds = synthetic_feeds(graph, graph.recipe.batch, 9)
    came = hosted(wiring, work_of(graph, wiring, feeds), ("127.0.0.1", served.port), tmp_path)
    stream = wiring.only("result")
    bits = stream.element_bits
    per = wiring.word_bits // bits
    words = came[stream.number]
    found = [word >> bits * place & (1 << bits) - 1 for word in words for place in range(min(per, stream.elements))]
    (wanted,) = Executor(graph).step(feeds).values()
    np.testing.assert_array_equal(found, wanted.ravel() & (1 << bits) - 1)


def test_a_second_one_is_told_of_the_first(served: Served) -> None:
    outcome = served.case.step("serve", "--port", 0)
    assert outcome.code == 1
    assert "serve (process " in outcome.error
    assert "wait until it has ended, or choose another --out" in outcome.error


def test_an_interrupt_ends_it_with_what_was_counted(served: Served) -> None:
    served.program.send_signal(signal.SIGINT)
    out, error = served.program.communicate(timeout=SECONDS)
    assert served.program.returncode == 0, error
    assert "Traceback" not in error
    printed = json.loads(out)
    folder = served.case.out / "serve"
    told = json.loads((folder / "serve.json").read_text())
    assert printed.items() >= told.items()
    shape = {"$ref": "#/$defs/document serve", "$defs": results_schema()["$defs"]}
    jsonschema.Draft202012Validator(shape).validate(printed)
    assert told["from_host"] > 20
    befell = {name: sum(pair[name] for pair in told["pairs"]) for name in ("lost", "duplicated", "corrupted")}
    assert any(befell.values()), befell
    with PcapNgReader(str(folder / "capture.pcapng")) as reader:
        frames = [frame for frame in reader if IP in frame and UDP in frame]
    assert len(frames) > 50
    # the folder is free again; a port that is not is told before anything is built
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        outcome = served.case.step("serve", "--port", port, "--pcap")
    assert outcome.code == 1
    assert f"UDP port 127.0.0.1:{port} is in use; end the other program, or choose another with --port" in outcome.error
    wrong = served.case.step("serve", "--port", 70_000, "--loss", 2, "--latency", 0)
    for said in (
        "--port must lie in 0 to 65535, not 70000",
        "--loss must lie in [0, 1], not 2",
        "--latency must be at",
    ):
        assert said in wrong.error
