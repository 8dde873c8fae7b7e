"""Static timing of Verilog modules: the slowest path between registers, what is on it, and where products stand.

A module is mapped to the cells of Cyclone 10 GX by Yosys (`hdl.costs.synthesis.mapping_script`).  Every cell has the
delays of `hdl.costs.cell_delays`; every net between two cells has the same ``net_ps``, and the carry from one bit of an
adder to the next has none.  The clock arrives everywhere at once.  What stands around a module is taken for registers:
an input comes from one and an output goes to one, each over one more net.

A multiplier whose operands come straight from registers and whose product goes straight into registers uses the
registers of its DSP block, which is then as fast as the block is, and is no path here.  Every other multiplier is a
`Product` that isn't `registered`, and its delay (that of Cyclone V, see `hdl.costs.cell_delays`) is on the paths.

`ModuleTiming.delays` are those of the module seen from outside, as of one big cell; so a top whose instances are
modules timed before is walked in the same way, with hierarchy kept.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import itertools
import json
import os
import re
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hdl.convert.tools import run_tool
from hdl.costs.cell_delays import FLIP_FLOP, CellDelays, Pin, cell_delays
from hdl.costs.synthesis import mapping_script, without_contents, yosys_version
from hdl.errors import ToolError

# delay of a net between two cells, unless told otherwise
NET_PS = 350
# paths that are kept of a module, to different words
KEPT_PATHS = 8
_CARRY = "MISTRAL_ALUT_ARITH"
# what stands in names that Yosys gave
_MADE_UP = ("MISTRAL_", "TRELLIS_", "$")
_CLOCKS = frozenset(("clk", "CLK", "CLK1", "clock0", "clock1"))

# a net's number in Yosys' netlist; constants are strings and no nets
Bit = int


@dataclass(frozen=True)
class Step:
    """A cell on a path: what it is, the signal that it drives, ps since the clock edge at its output."""

    cell: str
    signal: str
    ps: int


@dataclass(frozen=True)
class TimingPath:
    """From a register or port to a register or port."""

    start: str
    end: str
    ps: int
    # cells in between; an adder is one, however long
    levels: int
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Product:
    """A multiplier cell."""

    # what it drives
    signal: str
    # operand bits that the cell has
    cell: str
    # "" if it stands between registers, else what it touches instead
    touches: str

    @property
    def registered(self) -> bool:
        """Whether it stands between registers of its DSP block."""
        return not self.touches


@dataclass(frozen=True)
class Netlist:
    """A mapped module: cells by name as (type, connections), ports as (direction, bits), names of nets."""

    name: str
    ports: Mapping[str, tuple[str, tuple[Any, ...]]]
    cells: Mapping[str, tuple[str, Mapping[str, tuple[Any, ...]]]]
    names: Mapping[Bit, str]


@dataclass(frozen=True)
class ModuleTiming:
    """What the walk over one module found."""

    module: str
    net_ps: int
    # the slowest to each word of registers or ports, slowest first
    paths: tuple[TimingPath, ...]
    products: tuple[Product, ...]
    # seen from outside; delays of nets to and from it are not in
    delays: CellDelays

    @property
    def worst(self) -> TimingPath:
        """The slowest path."""
        return self.paths[0] if self.paths else TimingPath("", "", 0, 0)

    @property
    def loose_products(self) -> tuple[Product, ...]:
        """Multipliers that don't stand between registers."""
        return tuple(product for product in self.products if not product.registered)


# ------------------------------------------------------------------------------------------------ mapping


def time_module(text: str, name: str, net_ps: int = NET_PS, cache: Path | None = None) -> ModuleTiming:
    """Map a Verilog module and walk it.  ``cache`` is a folder that keeps mapped modules by the digest of their text,
    and what the walk found.

    Raises `ToolError`, `ToolMissing`."""
    if cache is None:
        return time_netlist(map_module(text, name), net_ps)
    key = hashlib.sha256("\0".join((yosys_version(), mapping_script(name), text)).encode()).hexdigest()[:24]
    found = cache / f"{name}-{key}-{net_ps}-{walk_hash()}.json.gz"
    if not found.exists():
        timing = time_netlist(_kept_netlist(text, name, cache / f"{name}-{key}.json.gz"), net_ps)
        _keep(found, {**dataclasses.asdict(timing), "delays": _delays_as_lists(timing.delays)})
        return timing
    data = _kept(found)
    paths = [TimingPath(**{**path, "steps": tuple(Step(**step) for step in path["steps"])}) for path in data["paths"]]
    products = tuple(Product(**product) for product in data["products"])
    return ModuleTiming(name, net_ps, tuple(paths), products, _delays_of_lists(data["delays"]))


@cache
def walk_hash() -> str:
    """Of the code that walks: another version does not trust what this one found."""
    code = b"".join((Path(__file__).parent / name).read_bytes() for name in ("timing.py", "cell_delays.py"))
    return hashlib.sha256(code).hexdigest()[:12]


def _kept_netlist(text: str, name: str, path: Path) -> Netlist:
    if path.exists():
        data = _kept(path)
        return Netlist(
            name,
            {port: (way, tuple(bits)) for port, (way, bits) in data["ports"].items()},
            {cell: (kind, {p: tuple(b) for p, b in pins.items()}) for cell, (kind, pins) in data["cells"].items()},
            {int(bit): called for bit, called in data["names"].items()},
        )
    netlist = map_module(text, name)
    _keep(path, {"ports": netlist.ports, "cells": netlist.cells, "names": netlist.names})
    return netlist


def _kept(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


def _keep(path: Path, data: Any) -> None:
    """Whole or not at all: several may write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    beside.write_bytes(gzip.compress(json.dumps(data).encode(), 5))
    beside.replace(path)


def _delays_as_lists(delays: CellDelays) -> list[list[Any]]:
    through = [[*source, *target, ps] for (source, target), ps in delays.through.items()]
    return [through, *([[*pin, ps] for pin, ps in item.items()] for item in (delays.launch, delays.setup))]


def _delays_of_lists(lists: list[list[Any]]) -> CellDelays:
    through, launch, setup = lists
    return CellDelays(
        {((a, i), (b, j)): ps for a, i, b, j, ps in through},
        *({(port, index): ps for port, index, ps in item} for item in (launch, setup)),
    )


def map_module(text: str, name: str, timeout: float = 900.0, blackboxes: str = "") -> Netlist:
    """The module mapped by Yosys; ``blackboxes`` are Verilog modules that stay instances.

    Raises `ToolError`, `ToolMissing`."""
    with tempfile.TemporaryDirectory(prefix="dagtrain-") as folder_name:
        folder = Path(folder_name)
        (folder / "circuit.v").write_text(without_contents(text))
        (folder / "modules.v").write_text(blackboxes)
        first = "read_verilog -lib modules.v; " if blackboxes else ""
        script = f"{first}{mapping_script(name)}; json -o mapped.json {name}"
        run_tool(["yosys", "-q", "-p", script], folder, timeout)
        module = json.loads((folder / "mapped.json").read_text())["modules"][name]
    return Netlist(
        name,
        {port: (data["direction"], tuple(data["bits"])) for port, data in module["ports"].items()},
        {
            cell: (data["type"], {port: tuple(bits) for port, bits in data["connections"].items()})
            for cell, data in module["cells"].items()
        },
        net_names(module["netnames"]),
    )


def net_names(netnames: Mapping[str, Any]) -> dict[Bit, str]:
    """One name a net: the shortest of those that the source gave."""
    found: dict[Bit, tuple[tuple[bool, int, str], str]] = {}
    for name, data in netnames.items():
        made_up = bool(data["hide_name"]) or any(mark in name for mark in _MADE_UP)
        rank = (made_up, len(name), name)
        for index, bit in enumerate(data["bits"]):
            if isinstance(bit, int) and (bit not in found or rank < found[bit][0]):
                found[bit] = rank, f"{name}[{index}]" if len(data["bits"]) > 1 else name
    return {bit: name for bit, (_, name) in found.items()}


# --------------------------------------------------------------------------------------------------- walk


@dataclass
class _Graph:
    """Nets with what drives and reads them, delays of nets included."""

    # net -> (net before, ps from that net's driver to this net's, name of the cell)
    before: dict[Bit, list[tuple[Bit, int, str]]] = field(default_factory=dict)
    # net -> (ps since the clock edge, name of what launches it)
    starts: dict[Bit, tuple[int, str]] = field(default_factory=dict)
    # (net, ps from its driver to the edge, where)
    ends: list[tuple[Bit, int, str]] = field(default_factory=list)


class _Walk:
    """Arrival times in one netlist."""

    def __init__(self, netlist: Netlist, models: Mapping[str, CellDelays], net_ps: int) -> None:
        self.netlist, self.models, self.net_ps = netlist, models, net_ps
        self.inputs = {
            bit: (port, index)
            for port, (direction, bits) in netlist.ports.items()
            if direction == "input" and port not in _CLOCKS
            for index, bit in enumerate(bits)
        }
        # net -> (type of cell, cell, port) that drives it
        self.driver: dict[Bit, tuple[str, str, str]] = {}
        self.outputs: dict[str, set[str]] = {}
        for cell, (kind, pins) in netlist.cells.items():
            driven = self._output_ports(kind)
            for port in driven:
                for bit in pins.get(port, ()):
                    if isinstance(bit, int):
                        self.driver[bit] = kind, cell, port
        self.products, self.packed = self._judge_products()
        self.graph = self._build()
        self.order = self._topological()
        self.position = {bit: index for index, bit in enumerate(self.order)}

    def name(self, bit: Bit) -> str:
        """What a person calls a net."""
        return self.netlist.names.get(bit, f"net {bit}")

    def _model(self, kind: str) -> CellDelays:
        model = self.models.get(plain_kind(kind))
        if model is None:
            raise ToolError(f"{self.netlist.name}: cell {kind} has no delays", "is this another Yosys than 0.23?")
        return model

    def _output_ports(self, kind: str) -> set[str]:
        if kind not in self.outputs:
            model = self._model(kind)
            self.outputs[kind] = {pin[0] for _, pin in model.through} | {pin[0] for pin in model.launch}
        return self.outputs[kind]

    # ......................................................................................... products

    def _judge_products(self) -> tuple[tuple[Product, ...], frozenset[str]]:
        readers: dict[Bit, list[tuple[str, str, str]]] = {}
        cells = self.netlist.cells
        multipliers = [name for name, (kind, _) in cells.items() if kind.startswith("MISTRAL_MUL")]
        if not multipliers:
            return (), frozenset()
        for cell, (kind, pins) in cells.items():
            for port in pins.keys() - self._output_ports(kind):
                for bit in pins[port]:
                    if isinstance(bit, int):
                        readers.setdefault(bit, []).append((kind, cell, port))
        leaving = {bit for _, (way, bits) in self.netlist.ports.items() if way == "output" for bit in bits}
        found, packed = [], set()
        for name in multipliers:
            kind, pins = cells[name]
            touches = self._operand_trouble(pins) or self._product_trouble(pins, readers, leaving)
            signal = next((self.name(bit) for bit in pins["Y"] if isinstance(bit, int)), name)
            found.append(Product(re.sub(r"\[\d+\]$", "", signal), kind, touches))
            if not touches:
                packed.add(name)
        return tuple(found), frozenset(packed)

    def _operand_trouble(self, pins: Mapping[str, tuple[Any, ...]]) -> str:
        for bit in (*pins["A"], *pins["B"]):
            if not isinstance(bit, int):
                continue
            kind, cell, _ = self.driver.get(bit, ("", "", ""))
            if kind != FLIP_FLOP:
                return f"operand {self.name(bit)} comes from {'a port' if bit in self.inputs else kind}"
            if self._cleared(cell):
                return f"operand register {self.name(bit)} has a synchronous clear"
        return ""

    def _product_trouble(
        self, pins: Mapping[str, tuple[Any, ...]], readers: Mapping[Bit, list[tuple[str, str, str]]], leaving: set[Any]
    ) -> str:
        for bit in pins["Y"]:
            if not isinstance(bit, int):
                continue
            if bit in leaving:
                return f"product {self.name(bit)} leaves the module"
            for kind, cell, port in readers.get(bit, ()):
                if kind != FLIP_FLOP or port != "DATAIN":
                    return f"product {self.name(bit)} goes into {kind}"
                if self._cleared(cell):
                    return f"product register {self.name(self._q(cell))} has a synchronous clear"
        return ""

    def _cleared(self, cell: str) -> bool:
        """The registers of an Arria 10 DSP block have enables, and no synchronous clear."""
        return self.netlist.cells[cell][1]["SCLR"] != ("0",)

    def _q(self, cell: str) -> Bit:
        bit: Bit = self.netlist.cells[cell][1]["Q"][0]
        return bit

    # ............................................................................................ graph

    def _build(self) -> _Graph:
        graph = _Graph()
        for cell, (kind, pins) in self.netlist.cells.items():
            if cell in self.packed:
                continue
            model = self._model(kind)
            for source, target, delay in _expanded_arcs(model, pins):
                net = 0 if kind == _CARRY and self._carries(pins, source) else self.net(source)
                graph.before.setdefault(target, []).append((source, net + delay, cell))
            for bit, _, delay in _expanded(model.launch, pins):
                graph.starts[bit] = delay, self._launcher(kind, cell, bit)
            for bit, pin, delay in _expanded(model.setup, pins):
                graph.ends.append((bit, self.net(bit) + delay, self._where(kind, cell, pin)))
        return graph

    def net(self, source: Bit) -> int:
        """A net is paid for by its driver; that of an input is one outside."""
        return 0 if source in self.inputs else self.net_ps

    def _carries(self, pins: Mapping[str, tuple[Any, ...]], source: Bit) -> bool:
        kind, _, port = self.driver.get(source, ("", "", ""))
        return kind.endswith(_CARRY) and port == "CO" and source in pins["CI"]

    def _launcher(self, kind: str, cell: str, bit: Bit) -> str:
        if kind == FLIP_FLOP:
            return self.name(bit)
        return f"{self.name(bit)} of {cell}"

    def _where(self, kind: str, cell: str, pin: Pin) -> str:
        if kind == FLIP_FLOP:
            bit = self.netlist.cells[cell][1]["Q"][0]
            name = self.name(bit) if isinstance(bit, int) else cell
            return name if pin[0] == "DATAIN" else f"{name} ({_PINS.get(pin[0], pin[0])})"
        index = "" if pin[1] is None else f"[{pin[1]}]"
        return f"{cell}.{pin[0]}{index}"

    def _topological(self) -> list[Bit]:
        """Nets behind cells, each after those it depends on.  Raises `ToolError` for a combinational loop."""
        order: list[Bit] = []
        state: dict[Bit, int] = {}
        before = self.graph.before
        for root in before:
            if root in state:
                continue
            stack = [(root, iter(before[root]))]
            state[root] = 1
            while stack:
                bit, rest = stack[-1]
                for source, _, _ in rest:
                    if source not in before:
                        continue
                    known = state.get(source, 0)
                    if known == 1:
                        loop = [self.name(item) for item, _ in stack]
                        raise ToolError(f"{self.netlist.name}: a combinational loop through {', '.join(loop[-8:])}")
                    if not known:
                        state[source] = 1
                        stack.append((source, iter(before[source])))
                        break
                else:
                    state[bit] = 2
                    order.append(bit)
                    stack.pop()
        return order

    # ......................................................................................... arrivals

    def arrivals(self, starts: Mapping[Bit, int]) -> dict[Bit, tuple[int, Bit | None, str]]:
        """net -> (ps at its driver's output, the net before on the slowest way, the cell between)."""
        found: dict[Bit, tuple[int, Bit | None, str]] = {bit: (ps, None, "") for bit, ps in starts.items()}
        for bit in self.order:
            best = found.get(bit)
            for source, ps, cell in self.graph.before[bit]:
                at = found.get(source)
                if at is not None and (best is None or at[0] + ps > best[0]):
                    best = at[0] + ps, source, cell
            if best is not None:
                found[bit] = best
        return found

    def way(self, found: Mapping[Bit, tuple[int, Bit | None, str]], bit: Bit) -> list[tuple[Bit, str]]:
        """The slowest way to a net, as (net, cell that drives it), from its start."""
        back: list[tuple[Bit, str]] = []
        at: Bit | None = bit
        while at is not None:
            _, before, cell = found[at]
            back.append((at, cell))
            at = before
        return back[::-1]

    def levels(self, way: Sequence[tuple[Bit, str]]) -> int:
        """Cells on a way; a carry chain is one."""
        count = 0
        for (before, _), (_, cell) in itertools.pairwise(way):
            kind, pins = self.netlist.cells[cell]
            count += not (kind.endswith(_CARRY) and self._carries(pins, before))
        return count


# how a person calls the pins of a flip-flop
_PINS = {"ENA": "enable", "SCLR": "clear", "SLOAD": "load", "SDATA": "load data"}


def _expanded(delays: Mapping[Pin, int], pins: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[Bit, Pin, int]]:
    for (port, index), delay in delays.items():
        bits = pins.get(port, ())
        for position, bit in enumerate(bits):
            if isinstance(bit, int) and index in (None, position):
                yield bit, (port, position if len(bits) > 1 else None), delay


def _expanded_arcs(model: CellDelays, pins: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[Bit, Bit, int]]:
    for (source, target), delay in model.through.items():
        for target_bit, _, _ in _expanded({target: 0}, pins):
            for source_bit, _, _ in _expanded({source: 0}, pins):
                yield source_bit, target_bit, delay


def time_netlist(
    netlist: Netlist, net_ps: int = NET_PS, modules: Mapping[str, CellDelays] | None = None
) -> ModuleTiming:
    """Walk a mapped netlist; ``modules`` are the delays of its instances of other modules."""
    walk = _Walk(netlist, {**cell_delays(), **(modules or {})}, net_ps)
    register = cell_delays()[FLIP_FLOP]
    clock_to_output, setup = max(register.launch.values()), max(register.setup.values())
    outputs = [
        (bit, port, index, len(bits))
        for port, (direction, bits) in netlist.ports.items()
        if direction == "output"
        for index, bit in enumerate(bits)
        if isinstance(bit, int)
    ]
    starts = {bit: ps for bit, (ps, _) in walk.graph.starts.items()}
    outside = dict.fromkeys(walk.inputs, clock_to_output + net_ps)
    ends = list(walk.graph.ends)
    ends += [(bit, walk.net(bit) + setup, f"output {_pin_name(port, i, n)}") for bit, port, i, n in outputs]
    paths = _slowest(walk, walk.arrivals(starts | outside), ends)
    return ModuleTiming(netlist.name, net_ps, paths, walk.products, _seen_from_outside(walk, starts, outputs))


def _pin_name(port: str, index: int, width: int) -> str:
    return f"{port}[{index}]" if width > 1 else port


def _slowest(
    walk: _Walk, found: Mapping[Bit, tuple[int, Bit | None, str]], ends: Iterable[tuple[Bit, int, str]]
) -> tuple[TimingPath, ...]:
    """The slowest path to each word."""
    worst: dict[str, tuple[int, Bit, str]] = {}
    for bit, ps, where in ends:
        if bit in found:
            total, word = found[bit][0] + ps, re.sub(r"\[\d+\]", "", where)
            if word not in worst or total > worst[word][0]:
                worst[word] = total, bit, where
    chosen = sorted(worst.values(), key=lambda item: (-item[0], item[2]))[:KEPT_PATHS]
    return tuple(_path(walk, found, bit, total, where) for total, bit, where in chosen)


def _path(
    walk: _Walk, found: Mapping[Bit, tuple[int, Bit | None, str]], end: Bit, total: int, where: str
) -> TimingPath:
    way = walk.way(found, end)
    first = way[0][0]
    start = f"input {walk.name(first)}" if first in walk.inputs else walk.graph.starts[first][1]
    steps = tuple(
        Step(walk.netlist.cells[cell][0].removeprefix("MISTRAL_"), walk.name(bit), found[bit][0])
        for bit, cell in way[1:]
    )
    return TimingPath(start, where, total, walk.levels(way), steps)


def _seen_from_outside(
    walk: _Walk, starts: Mapping[Bit, int], outputs: Sequence[tuple[Bit, str, int, int]]
) -> CellDelays:
    """The delays of the whole module as of one cell."""
    from_registers = walk.arrivals(starts)
    launch: dict[Pin, int] = {}
    through: dict[tuple[Pin, Pin], int] = {}
    from_inputs = _reached_from(walk, walk.inputs)
    for bit, port, index, width in outputs:
        pin: Pin = (port, index if width > 1 else None)
        if bit in from_registers:
            launch[pin] = from_registers[bit][0]
        if bit in from_inputs:
            for source, ps in _cone(walk, bit, from_inputs).items():
                through[_input_pin(walk, source), pin] = ps
    setup: dict[Pin, int] = {}
    for bit, ps in _to_registers(walk).items():
        if bit in walk.inputs:
            setup[_input_pin(walk, bit)] = ps
    return CellDelays(through, launch, setup)


def _input_pin(walk: _Walk, bit: Bit) -> Pin:
    port, index = walk.inputs[bit]
    return port, index if len(walk.netlist.ports[port][1]) > 1 else None


def _reached_from(walk: _Walk, sources: Iterable[Bit]) -> set[Bit]:
    found = set(sources)
    for bit in walk.order:
        if any(source in found for source, _, _ in walk.graph.before[bit]):
            found.add(bit)
    return found


def _cone(walk: _Walk, bit: Bit, from_inputs: set[Bit]) -> dict[Bit, int]:
    """input -> ps to this net, without the nets at both ends; a wire straight through is a net less than none."""
    if bit in walk.inputs:
        return {bit: -walk.net_ps}
    members, stack = {bit}, [bit]
    while stack:
        for source, _, _ in walk.graph.before.get(stack.pop(), ()):
            if source in from_inputs and source not in members:
                members.add(source)
                stack.append(source)
    longest: dict[Bit, int] = {bit: 0}
    found: dict[Bit, int] = {}
    position = walk.position
    for at in sorted((item for item in members if item not in walk.inputs), key=lambda item: -position[item]):
        for source, ps, _ in walk.graph.before[at]:
            if source in walk.inputs:
                found[source] = max(found.get(source, 0), longest[at] + ps)
            elif source in members:
                longest[source] = max(longest.get(source, 0), longest[at] + ps)
    return found


def _to_registers(walk: _Walk) -> dict[Bit, int]:
    """net -> ps from its driver to the latest clock edge behind it."""
    found: dict[Bit, int] = {}
    for bit, ps, _ in walk.graph.ends:
        found[bit] = max(found.get(bit, 0), ps)
    for bit in reversed(walk.order):
        if bit in found:
            for source, ps, _ in walk.graph.before[bit]:
                found[source] = max(found.get(source, 0), found[bit] + ps)
    return found


# -------------------------------------------------------------------------------------------------- ready


@dataclass(frozen=True)
class ReadyPath:
    """A combinational path along the ready signals between modules."""

    # the net or port at which it leaves a register or enters the top
    start: str
    # instances that it enters, the last one where it ends
    instances: tuple[str, ...]


def ready_paths(netlist: Netlist, modules: Mapping[str, CellDelays]) -> tuple[ReadyPath, ...]:
    """The longest path along ready signals to each place where one ends; the longest first."""
    # net -> (net before, instance between)
    before: dict[Bit, list[tuple[Bit, str]]] = {}
    ends: list[tuple[Bit, str]] = []
    for cell, (kind, pins) in netlist.cells.items():
        model = modules.get(plain_kind(kind))
        if model is None:
            continue
        for (source, target), _ in model.through.items():
            if source[0].endswith("_ready") and target[0].endswith("_ready"):
                entry, leave = pins[source[0]][0], pins[target[0]][0]
                if isinstance(entry, int) and isinstance(leave, int):
                    before.setdefault(leave, []).append((entry, cell))
        for (port, _), _ in model.setup.items():
            if port.endswith("_ready") and isinstance(pins[port][0], int):
                ends.append((pins[port][0], cell))
    known: dict[Bit, tuple[Bit, tuple[str, ...]]] = {}

    def longest(bit: Bit) -> tuple[Bit, tuple[str, ...]]:
        if bit not in known:
            ways = [(start, (*way, cell)) for entry, cell in before.get(bit, ()) for start, way in [longest(entry)]]
            known[bit] = max(ways, key=lambda item: len(item[1]), default=(bit, ()))
        return known[bit]

    outputs = [bits[0] for port, (way, bits) in netlist.ports.items() if way == "output" and port.endswith("ready")]
    found = [ReadyPath(netlist.names[longest(bit)[0]], (*longest(bit)[1], cell)) for bit, cell in ends]
    found += [ReadyPath(netlist.names[longest(bit)[0]], longest(bit)[1]) for bit in outputs if isinstance(bit, int)]
    return tuple(sorted(found, key=lambda path: (-len(path.instances), path.instances)))


def plain_kind(kind: str) -> str:
    """The name of a module without the parameters that Yosys puts into it."""
    return re.sub(r"^\$paramod(?:\$[0-9a-f]+)?\\+(\w+).*$", r"\1", kind)
