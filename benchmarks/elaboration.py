"""How fast circuits are elaborated and counted: what a user waits for whose cache is empty.

python benchmarks/elaboration.py                              # sample of ResNet-18's and MobileNetV2's circuits
python benchmarks/elaboration.py --against ../other-checkout  # the same circuits with other code, in turn
python benchmarks/elaboration.py --convert                    # Verilog too, and its digest
python benchmarks/elaboration.py --profile

The circuits are those that the planner prices for a network at 224×224 on the poster's cluster: every layer folded
for a fast and a slow level, its variants in DRAM, its FIFOs, network units and DRAM units.  A sample of them is drawn
by seed; another checkout gets the very same.  Times are CPU seconds of one process, so other load on the machine
hardly matters; two such processes work on two cores.  The digest is over all contents: two checkouts that count alike
print the same.
"""

from __future__ import annotations

import argparse
import cProfile
import hashlib
import json
import os
import pickle
import pstats
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from myhdl._instance import _Instantiator

from hdl.signals import ClockReset

ROOT = Path(__file__).parent.parent
# network -> cluster, cycles a frame of a fast level and of the slow one that is priced first
NETWORKS: dict[str, tuple[str, tuple[int, ...]]] = {
    "resnet18-dynamo-eval-norm": ("resnet18-poster", (112_896, 282_240)),
    "mobilenetv2-dynamo-eval-norm": ("mobilenetv2-arria-poster", (112_896, 282_240)),
    "resnet50-dynamo-eval-norm": ("resnet18-poster", (317_468, 610_515)),
}
# those measured if none is named
MEASURED = ["resnet18-dynamo-eval-norm", "mobilenetv2-dynamo-eval-norm"]
CORES = 2
# seconds of CPU time, in order of the table
STAGES = ("generators", "rest of elaboration", "walk", "zeros and demand", "equal bits and sums", "Verilog")


@dataclass
class Measured:
    """What one process measured."""

    circuits: int
    cpu_seconds: float
    import_seconds: float
    digest: str
    verilog_digest: str
    stages: dict[str, float] = field(default_factory=dict)
    # kind of circuit -> (number, CPU seconds)
    kinds: dict[str, tuple[int, float]] = field(default_factory=dict)


def main() -> None:
    """Draw the circuits, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--circuits", type=int, default=200, help="how many are drawn; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--networks", nargs="*", choices=list(NETWORKS), default=MEASURED)
    parser.add_argument("--against", type=Path, help="another checkout, measured in turn")
    parser.add_argument("--convert", action="store_true", help="generate the Verilog of the circuits too")
    parser.add_argument("--profile", action="store_true", help="print the functions that take most time")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure, options.convert, options.profile)
        return
    with tempfile.TemporaryDirectory() as name:
        drawn, total = draw(options.networks, options.circuits, options.seed)
        path = Path(name) / "circuits.pickle"
        path.write_bytes(pickle.dumps(drawn))
        print(f"{len(drawn)} of {total} circuits, seed {options.seed}: {', '.join(options.networks)}", flush=True)
        checkouts = {"here": ROOT} | ({"against": options.against} if options.against else {})
        found = {}
        for label, checkout in checkouts.items():
            flags = ["--convert"] * options.convert + ["--profile"] * options.profile
            found[label] = run(path, checkout, flags)
        report(found)


# ------------------------------------------------------------------------------------------- circuits


def draw(networks: list[str], number: int, seed: int) -> tuple[list[tuple[str, Any]], int]:
    """(method of `Priced`, arguments) of a sample of circuits, and how many there are."""
    wanted: dict[str, tuple[str, Any]] = {}
    for network in networks:
        for key, circuit in circuits_of(network):
            wanted.setdefault(key, circuit)
    keys = sorted(wanted)
    chosen = random.Random(seed).sample(keys, number) if number and number < len(keys) else keys
    return [wanted[key] for key in sorted(chosen)], len(keys)


def circuits_of(network: str) -> Iterator[tuple[str, tuple[str, Any]]]:
    """Every circuit that pricing the network's levels asks for."""
    from dagtrain.graph.storage import load_graph
    from dagtrain.planning.choices import cluster_dram
    from dagtrain.planning.costs import LevelCosts
    from dagtrain.planning.link_costs import PortCosts
    from placement.problem.cluster import read_cluster

    name, levels = NETWORKS[network]
    graph = load_graph(imported(network) / "import" / "graph.json")
    cluster = read_cluster(ROOT / "examples" / "clusters" / f"{name}.toml")
    parts = tuple({device.board.part.name: device.board.part for device in cluster.devices}.values())
    devices = [device.name for device in cluster.devices]
    # neighbours on different devices: every edge crosses
    apart = {node.name: devices[index % len(devices)] for index, node in enumerate(graph.nodes)}
    asked = Asked()
    for cycles in levels:
        for places in (None, apart):
            costs = LevelCosts(
                graph=graph,
                cycles=cycles,
                homes={},
                dram=cluster_dram(cluster, cycles),
                parts=parts,
                estimator=asked,
                assignment=places,
                devices=devices,
                link_word_bits=cluster.link_word_bits,
            )
            for node in costs.folded.nodes:
                for _ in costs.offers(node):
                    pass
    ports = PortCosts.of(len(devices), cluster.link_word_bits, parts, asked)
    for _edge, _producer, source, _consumer, sink in costs.folded.edges:
        ports.sender(source, sink)
        ports.receiver(source, sink)
    yield from asked.circuits.items()


class Asked:
    """Takes an estimator's place and notes what it is asked for."""

    def __init__(self) -> None:
        self.circuits: dict[str, tuple[str, Any]] = {}

    def layer(self, layer: Any) -> Any:
        """Of a layer."""
        from hdl.costs.resources import Resources

        if layer.sinks and layer.sources:
            self.circuits[repr(layer.built)] = ("layer", layer.built)
        return Resources()

    def block(self, configuration: str, widths: Any, build: Any) -> Any:
        """Of a queue, an adapter or a unit."""
        from hdl.costs.resources import Resources

        key = f"{configuration} {sorted(widths.items())}"
        unit = getattr(build, "__self__", None)
        if unit is not None:
            self.circuits[key] = ("unit", unit)
        else:
            kind, _, number = configuration.rpartition(" ")
            self.circuits[key] = (kind, (dict(widths), int(number)))
        return Resources()


def imported(network: str) -> Path:
    """Folder with the imported network, which is made if it is not there."""
    out = ROOT / "build" / "elaboration" / network
    if not (out / "import" / "graph.json").exists():
        model = ROOT / "build" / "models" / f"{network}.onnx"
        if not model.exists():
            fill = [sys.executable, "examples/models/fill.py", network]
            subprocess.run(fill, cwd=ROOT, check=True, stdout=sys.stderr)
        dagtrain = Path(sys.executable).with_name("dagtrain")
        command = [str(dagtrain), "import", str(model), "--out", str(out)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr, stderr=subprocess.DEVNULL)
    return out


def built(kind: str, what: Any) -> tuple[str, dict[str, int], Callable[[ClockReset, Any], Any]]:
    """Name of the kind, payload widths and builder of a circuit."""
    from hdl.streams import queue, width_adapter

    if kind == "layer":
        widths = {port.name: port.payload_bits for port in (*what.sinks, *what.sources, *what.beside)}
        return type(what).__name__, widths, what.circuit
    if kind == "unit":
        return type(what).__name__, dict(what.streams), what.build
    widths, number = what
    if kind == "queue":
        return "queue", widths, lambda domain, s: queue(domain, s["x"], s["y"], depth=number)
    return kind, widths, lambda domain, s: width_adapter(domain, s["x"], s["y"], element_bits=number)


# -------------------------------------------------------------------------------------------- measuring


def run(path: Path, checkout: Path, flags: list[str]) -> Measured:
    """Measure in a process that imports the code of a checkout."""
    with tempfile.NamedTemporaryFile("r") as answer:
        where = {"ELABORATION_CODE": str(checkout.resolve()), "ELABORATION_ANSWER": answer.name}
        environment = dict(os.environ) | where | {"PYTHONHASHSEED": "0"}
        command = [sys.executable, str(Path(__file__).resolve()), "--measure", str(path), *flags]
        subprocess.run(command, cwd=checkout, env=environment, check=True)
        return Measured(**json.load(answer))


def measure(path: Path, convert: bool, profile: bool) -> None:
    """Elaborate and count the circuits of a file, one after another; leaves the result as JSON."""
    start = time.process_time()
    import hdl.costs.estimate

    import_seconds = time.process_time() - start
    assert Path(hdl.costs.estimate.__file__).is_relative_to(os.environ["ELABORATION_CODE"]), hdl.costs.estimate.__file__
    circuits = pickle.loads(path.read_bytes())
    contents, texts = hashlib.sha256(), hashlib.sha256()
    kinds: dict[str, tuple[int, float]] = {}
    profiler = cProfile.Profile()
    with stage_clock() as clock:
        begin = time.process_time()
        if profile:
            profiler.enable()
        for kind, what in circuits:
            start = time.process_time()
            name, widths, build = built(kind, what)
            contents.update(text_of(hdl.costs.estimate.elaborated_contents(widths, build)).encode())
            if convert:
                with clock.running("Verilog"):
                    texts.update(verilog_of(widths, build).encode())
            number, seconds = kinds.get(name, (0, 0.0))
            kinds[name] = number + 1, seconds + time.process_time() - start
        profiler.disable()
        total = time.process_time() - begin
    found = Measured(
        len(circuits), total, import_seconds, contents.hexdigest()[:16], texts.hexdigest()[:16] if convert else "",
        {stage: clock.seconds[stage] for stage in STAGES}, kinds,
    )  # fmt: skip
    Path(os.environ["ELABORATION_ANSWER"]).write_text(json.dumps(vars(found)))
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(45)


def text_of(contents: Any) -> str:
    """All that was counted, whatever the order in which it was."""
    ordered = {name: sorted(one.items()) if isinstance(one, Mapping) else one for name, one in vars(contents).items()}
    return repr(sorted(ordered.items()))


def verilog_of(widths: dict[str, int], build: Any) -> str:
    """The Verilog text of a circuit."""
    from dagtrain.emission.modules import _converted

    return _converted("dut", widths, build).verilog.text


class StageClock:
    """CPU seconds by stage; a stage inside another one is not counted twice."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def running(self, stage: str) -> Iterator[None]:
        """The stage runs inside; within `Verilog` nothing else is counted."""
        if "Verilog" in self._open:
            yield
            return
        self._switch()
        self._open.append(stage)
        try:
            yield
        finally:
            self._switch()
            self._open.pop()

    def _switch(self) -> None:
        now = time.process_time()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


@contextmanager
def stage_clock() -> Iterator[StageClock]:
    """A clock that the functions of the stages run."""
    import hdl.analysis.liveness
    import hdl.costs.estimate
    import hdl.costs.resources

    clock = StageClock()

    def timed(owner: Any, name: str, stage: str) -> Any:
        original = getattr(owner, name)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with clock.running(stage):
                return original(*args, **kwargs)

        return patch.object(owner, name, wrapper)

    with ExitStack() as stack:
        stack.enter_context(timed(_Instantiator, "__init__", "generators"))
        stack.enter_context(timed(hdl.costs.estimate, "elaborated_contents", "rest of elaboration"))
        stack.enter_context(timed(hdl.costs.resources, "trace", "walk"))
        stack.enter_context(timed(hdl.analysis.liveness.Liveness, "finish", "zeros and demand"))
        stack.enter_context(timed(hdl.costs.resources._Counter, "result", "equal bits and sums"))
        yield clock


# ----------------------------------------------------------------------------------------------- report


def report(found: dict[str, Measured]) -> None:
    """One column a checkout."""
    measured = list(found.values())
    print(f"{'':<34}" + "".join(f"{label:>12}" for label in found))

    def row(label: str, values: list[str]) -> None:
        print(f"{label:<34}" + "".join(f"{value:>12}" for value in values))

    row("CPU s", [f"{m.cpu_seconds:.1f}" for m in measured])
    row("circuits a CPU second", [f"{m.circuits / m.cpu_seconds:.1f}" for m in measured])
    row(f"circuits a second on {CORES} cores", [f"{CORES * m.circuits / m.cpu_seconds:.1f}" for m in measured])
    row("CPU s to start a process", [f"{m.import_seconds:.1f}" for m in measured])
    for stage in STAGES:
        if any(m.stages[stage] for m in measured):
            row(f"  {stage}", [f"{m.stages[stage]:.1f} s" for m in measured])
    totals: Counter[str] = Counter({kind: round(1000 * s) for kind, (_, s) in measured[0].kinds.items()})
    for kind, _ in totals.most_common():
        number = measured[0].kinds[kind][0]
        row(f"  {number:>4} {kind}", [f"{1000 * m.kinds[kind][1] / number:.0f} ms" for m in measured])
    row("digest of the contents", [m.digest[:10] for m in measured])
    if measured[0].verilog_digest:
        row("digest of the Verilog", [m.verilog_digest[:10] for m in measured])


if __name__ == "__main__":
    # the code that is measured may be that of another tree
    sys.path[0] = os.environ.get("ELABORATION_CODE", str(ROOT))
    main()
