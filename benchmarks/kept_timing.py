"""Timing of fixed circuits, kept in tests/timing.json under digests of the Verilog that it was measured of.

python benchmarks/kept_timing.py        # the circuits of benchmarks/timing.py, the smallest of each kind of the demo
python benchmarks/kept_timing.py --all  # all circuits of the demo, its devices, layers of ResNet-18 and MobileNetV2
python benchmarks/kept_timing.py --plan build/digits/place/plan.json  # the demo by another plan from now on
python benchmarks/kept_timing.py --draw                               # draw the layers of networks anew

Exits with 1 if a module takes more than 4.0 ns at 350 ps a net or a device 4.5 ns, a multiplier does not stand between
registers, ready enters more than two modules, or a signal of a stream follows its other one in the same cycle.

Mapping all of them takes Yosys 12 minutes, so only what is not in the file is measured: a circuit with another
text, all of them with another Yosys or another walk.  Nothing is found by name.  A run that was interrupted goes on
where it was.  `pytest tests/test_kept_timing.py` reads that file, and measures what is not in it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.circuits import ROOT, FixedCircuits, circuits_of_each_kind, draw_layers, fixed_circuits, keep_plan
from dagtrain.console import BarProgress
from dagtrain.files import write_text
from dagtrain.flow.timing_step import READY_MODULES, DeviceVerilog, TimingOptions, time_device
from hdl.analysis.same_cycle import FORBIDDEN
from hdl.cache import cache_folder
from hdl.costs.cell_delays import CellDelays, Pin
from hdl.costs.synthesis import mapping_script, yosys_version
from hdl.costs.timing import NET_PS, ModuleTiming, time_module, walk_hash
from hdl.errors import DagtrainError
from placement.problem.plan import plan_from_json

TABLE = ROOT / "tests" / "timing.json"
# limits of modules and of device tops
MODULE_PS, TOP_PS = TimingOptions().module_ps, TimingOptions().top_ps


@dataclass(frozen=True)
class Entry:
    """The timing of a module, or of a device top."""

    ps: int
    levels: int
    start: str
    end: str
    products: int = 0
    # products that don't stand between registers
    loose: int = 0
    # modules that the longest path of ready enters; of devices
    ready: int = 0
    # delays from port to port, of the slowest bit of each: ["through", from, to, ps], ["launch" or "setup", port, ps]
    ports: tuple[tuple[Any, ...], ...] = ()

    @property
    def followed(self) -> dict[str, set[str]]:
        """Port -> ports that it follows in the same cycle."""
        found: dict[str, set[str]] = {}
        for what, *where in self.ports:
            if what == "through":
                found.setdefault(where[1], set()).add(where[0])
        return found

    @property
    def own_handshakes(self) -> list[tuple[str, str]]:
        """Paths from one signal of a stream to its other one, which the contract of `hdl.stream` forbids."""
        paths = [(source, target) for target, sources in self.followed.items() for source in sorted(sources)]
        named = [(source, target, source.rpartition("_"), target.rpartition("_")) for source, target in paths]
        return [(s, t) for s, t, of, to in named if of[0] == to[0] and (to[2], of[2]) in FORBIDDEN]

    @property
    def delays(self) -> CellDelays:
        """The module seen from outside, no faster than it is."""
        through: dict[tuple[Pin, Pin], int] = {}
        ends: dict[str, dict[Pin, int]] = {"launch": {}, "setup": {}}
        for what, *where, ps in self.ports:
            if what == "through":
                through[(where[0], None), (where[1], None)] = ps
            else:
                ends[what][where[0], None] = ps
        return CellDelays(through, ends["launch"], ends["setup"])


def entry_of(timing: ModuleTiming) -> Entry:
    """What is kept of a module."""
    slowest: dict[tuple[str, ...], int] = {}

    def note(ps: int, *key: str) -> None:
        slowest[key] = max(slowest.get(key, ps), ps)

    for (source, target), ps in timing.delays.through.items():
        note(ps, "through", source[0], target[0])
    for what, pins in (("launch", timing.delays.launch), ("setup", timing.delays.setup)):
        for pin, ps in pins.items():
            note(ps, what, pin[0])
    worst = timing.worst
    return Entry(
        ps=worst.ps,
        levels=worst.levels,
        start=worst.start,
        end=worst.end,
        products=len(timing.products),
        loose=len(timing.loose_products),
        ports=tuple(sorted((*key, ps) for key, ps in slowest.items())),
    )


@dataclass
class KeptTiming:
    """The file: digest -> (circuit, its timing)."""

    path: Path = TABLE
    entries: dict[str, tuple[str, Entry]] = field(default_factory=dict)

    @staticmethod
    def load(path: Path = TABLE) -> KeptTiming:
        """Empty where there is no file."""
        kept = KeptTiming(path)
        if path.exists():
            for line in json.loads(path.read_text()):
                entry = Entry(**{**line["timing"], "ports": tuple(map(tuple, line["timing"].get("ports", ())))})
                kept.entries[line["digest"]] = line["circuit"], entry
        return kept

    def save(self) -> None:
        """A line a circuit, by name."""
        lines = []
        for digest, (name, entry) in sorted(self.entries.items(), key=lambda item: (item[1][0], item[0])):
            timing = {key: value for key, value in vars(entry).items() if value not in (0, ())}
            lines.append(json.dumps({"circuit": name, "digest": digest, "timing": {"ps": 0, "levels": 0, **timing}}))
        write_text(self.path, "[\n" + ",\n".join(lines) + "\n]\n")

    def missing(self, circuits: FixedCircuits) -> dict[str, str]:
        """Circuits that must be measured: name -> text."""
        modules = {name: text for name, (module, text) in circuits.modules.items() if self.module(module, text) is None}
        tops = {device.name: device.text for device in circuits.devices if self.device(device) is None}
        return {**modules, **tops}

    def of(self, circuits: FixedCircuits) -> dict[str, Entry]:
        """The timing of circuits that were measured, the slowest first."""
        modules = {name: self.module(module, text) for name, (module, text) in circuits.modules.items()}
        found = {**modules, **{device.name: self.device(device) for device in circuits.devices}}
        known = {name: entry for name, entry in found.items() if entry is not None}
        return dict(sorted(known.items(), key=lambda item: (-item[1].ps, item[0])))

    def forget_others(self, circuits: FixedCircuits) -> None:
        """Drop what is of none of these circuits."""
        wanted = {module_digest(module, text) for module, text in circuits.modules.values()}
        wanted |= {device_digest(device) for device in circuits.devices}
        self.entries = {digest: item for digest, item in self.entries.items() if digest in wanted}

    def module(self, module: str, text: str) -> Entry | None:
        """Of a Verilog module, if it was measured."""
        return self.entries.get(module_digest(module, text), ("", None))[1]

    def device(self, device: DeviceVerilog) -> Entry | None:
        """Of a device top, if it was measured with these very modules."""
        return self.entries.get(device_digest(device), ("", None))[1]

    def measure(self, circuits: FixedCircuits, names: Iterable[str]) -> Iterable[str]:
        """Measure circuits one by one, modules first; their names as they are done.  Raises `ToolError`."""
        wanted = set(names)
        for name, (module, text) in circuits.modules.items():
            if name in wanted:
                timing = time_module(text, module, NET_PS, cache_folder() / "timing")
                self._note(name, module_digest(module, text), entry_of(timing))
                yield name
        for device in circuits.devices:
            if device.name in wanted:
                self._note(device.name, device_digest(device), self._time(device))
                yield device.name

    def _note(self, name: str, digest: str, entry: Entry) -> None:
        """In place of what the circuit was before."""
        self.entries = {key: item for key, item in self.entries.items() if item[0] != name}
        self.entries[digest] = name, entry

    def _time(self, device: DeviceVerilog) -> Entry:
        inside: dict[str, CellDelays] = {}
        for name, text in device.modules.items():
            entry = self.module(name, text)
            if entry is None:
                raise KeyError(f"{name} of {device.name} must be measured first")
            inside[name] = entry.delays
        found = time_device(device, inside, NET_PS)
        worst = found.timing.worst
        longest = max((len(path.instances) for path in found.ready), default=0)
        return Entry(worst.ps, worst.levels, worst.start, worst.end, ready=longest)


def module_digest(module: str, text: str) -> str:
    """Of everything that the timing of a module follows from."""
    return _digest(yosys_version(), walk_hash(), str(NET_PS), mapping_script(module), text)


def device_digest(device: DeviceVerilog) -> str:
    """Of everything that the timing of a device top follows from."""
    inside = [module_digest(name, text) for name, text in sorted(device.modules.items())]
    return _digest(module_digest(device.top, device.text), *inside)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def broken_rules(kept: KeptTiming, circuits: FixedCircuits) -> list[str]:
    """A line for each limit that a circuit breaks, the slowest first.  All must be measured."""
    entries = kept.of(circuits)
    devices = {device.name for device in circuits.devices}
    found = []
    for name, entry in entries.items():
        limit_ps = TOP_PS if name in devices else MODULE_PS
        if entry.ps > limit_ps:
            path = f"{entry.start} -> {entry.end}"
            found.append(f"{name}: {entry.ps / 1000:.2f} ns, at most {limit_ps / 1000:.1f}: {path}")
        if entry.loose:
            found.append(f"{name}: {entry.loose} of {entry.products} products do not stand between registers")
        if entry.ready > READY_MODULES:
            found.append(f"{name}: ready enters {entry.ready} modules, at most {READY_MODULES}")
        found += [f"{name}: {target} follows {source} in the same cycle" for source, target in entry.own_handshakes]
    return found


def line(name: str, entry: Entry) -> str:
    """Of the table."""
    products = f"{entry.loose} of {entry.products}" if entry.products else ""
    figures = f"{entry.ps / 1000:>6.2f}{entry.levels:>8}{products:>12}"
    return f"{name:<44}{figures}  {entry.start} -> {entry.end}"


def main() -> int:
    """Measure, print, slowest first; 1 if one breaks a limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="not only one circuit of each kind")
    parser.add_argument("--plan", type=Path, help="plan.json of the demo, instead of tests/demo_plan.json")
    parser.add_argument("--draw", action="store_true", help="draw the layers of ResNet-18 and MobileNetV2 anew")
    options = parser.parse_args()
    kept = KeptTiming.load()
    try:
        if options.plan:
            keep_plan(plan_from_json(options.plan.read_text()))
        if options.draw:
            draw_layers()
        circuits = fixed_circuits() if options.all else circuits_of_each_kind()
        if options.all:
            kept.forget_others(circuits)
        missing = kept.missing(circuits)
        with BarProgress() as progress:
            progress.begin("timing", len(missing))
            for name in kept.measure(circuits, missing):
                kept.save()
                progress.advance(note=name)
            progress.end()
    except (DagtrainError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on where this one was", file=sys.stderr)
        return 130
    kept.save()
    print(f"{'circuit':<44}{'ns':>6}{'levels':>8}{'loose':>12}  path")
    for name, entry in kept.of(circuits).items():
        print(line(name, entry))
    broken = broken_rules(kept, circuits)
    print("\n".join(broken) or f"all {len(kept.of(circuits))} keep the limits")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
