"""The files beside the Verilog of one FPGA: file list, constraints, Quartus project, manifest, memory images."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Self

from dagtrain.emission.design import ClusterDesign
from dagtrain.emission.device import STATE_DUMP, STATE_LOAD, DeviceDesign
from dagtrain.emission.ethernet import DevicePort
from dagtrain.emission.links import Crossing, held_words
from dagtrain.emission.manifest import (
    FILE_LIST,
    MANIFEST,
    MANIFEST_SCHEMA,
    CableRecord,
    CodedRecord,
    ContentsRecord,
    CopyRecord,
    CrossingRecord,
    EndRecord,
    EthernetRecord,
    FileRecord,
    HostRecord,
    HostStreamRecord,
    ImageRecord,
    Manifest,
    MemoryRecord,
    NetworkRecord,
    PortRecord,
    RegionRecord,
    StateRecord,
    StreamRecord,
    WeightRecord,
)
from dagtrain.emission.memory import DeviceMemory, Held
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.files import write_text
from hdl.convert.images import write_image, write_sparse_image
from hdl.convert.netlist import Module
from hdl.convert.tools import LINT, lint_verilog, run_tool
from hdl.convert.verilog import VerilogModule
from hdl.link.ethernet.clocked import MAC_CLOCKS
from hdl.link.ethernet.frame import Address
from hdl.link.format import credit_batch

# part of a cycle by which bits of a count that goes to another clock may arrive apart
SKEW = 0.8


def write_cluster(
    folder: Path,
    design: ClusterDesign,
    library: ModuleLibrary,
    parts: Mapping[str, str],
    clock_mhz: float,
    shared: Sequence[Path] = (),
) -> None:
    """Write ``<folder>/<device>/`` for every device; ``parts`` names their FPGAs, ``clock_mhz`` is the network's,
    ``shared`` are files below ``folder`` that tell of their Ethernet."""
    pace = Pace.of(design.cycles_per_frame, design.needed_staleness, folder, shared)
    for device in design.devices:
        own = design.periods.get(device.name)
        network = None if own is None else clock_mhz
        clocks = Clocks(clock_mhz if own is None else float(Fraction(clock_mhz) / own), network)
        write_device(folder / device.name, device, library, parts[device.name], clocks, pace)


@dataclass(frozen=True)
class Clocks:
    """Of a device, and of the network where that is another one; MHz."""

    mhz: float
    network_mhz: float | None


@dataclass(frozen=True)
class Pace:
    """What a manifest says of the whole cluster."""

    cycles_per_frame: int
    # frames
    needed_staleness: int
    # what tells of its Ethernet
    files: tuple[FileRecord, ...] = ()

    @classmethod
    def of(cls, cycles_per_frame: int, needed_staleness: int, folder: Path, shared: Sequence[Path]) -> Self:
        """With these files below the folder of all devices."""
        files = tuple(FileRecord(file=f"../{path.relative_to(folder)}", sha256=_sha256(path)) for path in shared)
        return cls(cycles_per_frame, needed_staleness, files)


def write_device(
    folder: Path, design: DeviceDesign, library: ModuleLibrary, part: str, clocks: Clocks, pace: Pace
) -> None:
    """Write ``<folder>/`` with rtl/, images/, files.f, a Quartus project and manifest.json."""
    used = used_modules(design.top, library)
    sources = [f"rtl/{module.name}.v" for module in used] + [f"rtl/{design.top.name}.v"]
    for module in used:
        write_text(folder / "rtl" / f"{module.name}.v", module.text)
    write_text(folder / "rtl" / f"{design.top.name}.v", design.top.to_verilog())
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for image in design.images:
        write_image(folder / "images" / image.file_name, image.words, image.width)
    for memory in design.memories:
        write_sparse_image(folder / "images" / memory.file_name, memory.image, memory.format.data_bits)
    write_text(folder / FILE_LIST, "\n".join(sources) + "\n")
    write_text(folder / f"{design.top.name}.sdc", _constraints(clocks, design))
    write_text(folder / f"{design.top.name}.qpf", f'PROJECT_REVISION = "{design.top.name}"\n')
    write_text(folder / f"{design.top.name}.qsf", _quartus(design, sources, part))
    write_text(folder / MANIFEST, _manifest(design, sources, part, clocks, pace).to_json())


def lint_devices(tops: Mapping[Path, str], known: Path, on_clean: Callable[[str], None] = lambda _: None) -> None:
    """Check the Verilog that `write_device` left in folders with these top modules; what was clean once is not checked
    again, and what several devices have is checked once.

    Modules are flat, so each is checked alone, and the top with their heads (`module_head`): else Verilator copies a
    module for every memory image that an instance is given, which takes many gigabytes for a large device.

    ``known`` is a folder that remembers clean sources; ``on_clean`` is told each device.  Raises `ToolError` with
    everything that Verilator found in a module."""
    verilator = " ".join([run_tool(["verilator", "--version"]), *LINT])
    sources = {folder: [folder / line for line in (folder / FILE_LIST).read_text().split()] for folder in tops}
    modules = {path.read_bytes(): path for paths in sources.values() for path in paths[:-1]}
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    try:
        list(pool.map(lambda module: _lint_once([module], module.stem, known, verilator), modules.values()))
        checked = pool.map(lambda folder: _lint_top(sources[folder], tops[folder], known, verilator), tops)
        for folder, _ in zip(tops, checked, strict=True):
            on_clean(folder.name)
    finally:
        pool.shutdown(cancel_futures=True)


def _lint_top(sources: Sequence[Path], top: str, known: Path, verilator: str) -> None:
    *modules, last = sources
    with tempfile.TemporaryDirectory(prefix="dagtrain-") as name:
        heads = Path(name) / "heads.v"
        heads.write_text("\n".join(module_head(module.read_text()) for module in modules))
        _lint_once([heads, last], top, known, verilator)


def _lint_once(sources: Sequence[Path], top: str, known: Path, verilator: str) -> None:
    texts = [verilator.encode(), top.encode(), *(source.read_bytes() for source in sources)]
    mark = known / hashlib.sha256(b"\0".join(texts)).hexdigest()
    if not mark.exists():
        lint_verilog(sources, top)
        write_text(mark, "")


def module_head(text: str) -> str:
    """Name, parameters and ports of a module as `hdl.convert.verilog.convert` writes it, without what is inside."""
    start, end = text.index("module "), text.index(");\n") + len(");\n")
    ports = re.findall(r"^(?:input|output)\b[^;\n]*;$", text, re.MULTILINE)
    return "\n".join([text[start:end], *ports, "endmodule", ""])


def used_modules(top: Module, library: ModuleLibrary) -> list[VerilogModule]:
    """The library's modules that a top instantiates, by name; what a vendor makes is none of them."""
    names = {instance.module for instance in top.instances}
    return [module.verilog for module in library if module.name in names]


def _constraints(clocks: Clocks, design: DeviceDesign) -> str:
    period_ns = 1000 / clocks.mhz
    text = (
        f"create_clock -name clk -period {period_ns:.3f} [get_ports clk]\n"
        "derive_clock_uncertainty\n"
        "set_false_path -from [get_ports rst]\n"
    )
    if design.port is not None and design.port.mac_mhz is not None:
        return text + _mac_constraints(period_ns, 1000 / design.port.mac_mhz)
    if clocks.network_mhz is None or not design.has_network:
        return text
    network_ns = 1000 / clocks.network_mhz
    crossings = "".join(
        skew(f"*crossing_{name}|{count}_code", f"*crossing_{name}|synchroniser*_first", ns)
        for name, counts in (("left", (period_ns, network_ns)), ("arrived", (network_ns, period_ns)))
        for count, ns in zip(("written", "taken"), counts, strict=True)
    )
    return (
        f"{text}create_clock -name net_clk -period {network_ns:.3f} [get_ports net_clk]\n"
        "set_clock_groups -asynchronous -group {clk} -group {net_clk}\n"
        f"set_false_path -from [get_ports net_rst]\n{crossings}"
    )


def _mac_constraints(own_ns: float, mac_ns: float) -> str:
    """Of a MAC with clocks of its own: that at which it takes frames, and the one that it has of the cable."""
    made = "".join(f"create_clock -name {clk} -period {mac_ns:.3f} [get_ports {clk}]\n" for clk in MAC_CLOCKS)
    groups = " ".join(f"-group {{{clk}}}" for clk in ("clk", *MAC_CLOCKS))
    return f"{made}set_clock_groups -asynchronous {groups}\n{''.join(mac_skews(own_ns, mac_ns))}"


def mac_skews(own_ns: float, mac_ns: float) -> list[str]:
    """Of the counts that cross between a device and its MAC, whose clocks have these periods."""
    to_mac, from_mac = (f"*mac|mac_crossings0_packet_crossing{number}" for number in range(2))
    return [
        skew(f"{way}_{count}", f"{way}_{seen}", ns)
        for way, count, seen, ns in (
            (to_mac, "whole_code", "synchroniser0_first", own_ns),
            (to_mac, "taken_code", "synchroniser1_first", mac_ns),
            (from_mac, "whole_code", "synchroniser0_first", mac_ns),
            (from_mac, "taken_code", "synchroniser1_first", own_ns),
            (from_mac, "event_count0_code", "event_count0_synchroniser0_first", mac_ns),
        )
    ]


def skew(count: str, seen: str, ns: float) -> str:
    """A count in Gray code crosses from a clock of this period, by a part of which its bits may arrive apart."""
    return f"set_max_skew -from [get_registers {{{count}[*]}}] -to [get_registers {{{seen}[*]}}] {SKEW * ns:.3f}\n"


QUARTUS_FAMILIES: Mapping[str, str] = {"10AX": "Arria 10", "AGF": "Agilex 7"}
# Quartus refuses loops of more than 5 000 rounds, which those are that clear memories (Quartus Prime Settings File
# Reference, VERILOG_CONSTANT_LOOP_LIMIT); no part holds so many words
QUARTUS_LOOP_LIMIT = 1 << 28


def quartus_family(part: str) -> str | None:
    """What Quartus calls the family of a part; None: it is none of Intel's."""
    return next((name for prefix, name in QUARTUS_FAMILIES.items() if part.startswith(prefix)), None)


def _quartus(design: DeviceDesign, sources: Sequence[str], part: str) -> str:
    family = quartus_family(part)
    lines = [f"# {design.name}: {part}"]
    if family:
        lines += [f'set_global_assignment -name FAMILY "{family}"']
    lines += [f"set_global_assignment -name TOP_LEVEL_ENTITY {design.top.name}"]
    lines += [f"set_global_assignment -name VERILOG_CONSTANT_LOOP_LIMIT {QUARTUS_LOOP_LIMIT}"]
    lines += [f"set_global_assignment -name VERILOG_FILE {source}" for source in sources]
    lines += [f"set_global_assignment -name SDC_FILE {design.top.name}.sdc"]
    lines += [f'set_parameter -name {image.parameter} "images/{image.file_name}"' for image in design.images]
    return "\n".join(lines) + "\n"


def _manifest(design: DeviceDesign, sources: Sequence[str], part: str, clocks: Clocks, pace: Pace) -> Manifest:
    images = tuple(
        ImageRecord(
            node=image.node,
            image=image.image,
            file=f"images/{image.file_name}",
            parameter=image.parameter,
            path=image.path,
            depth=len(image.words),
            width=image.width,
            is_state=image.is_state,
        )
        for image in design.images
    )
    host_ports = tuple(
        HostRecord(
            node=host.node,
            net=host.net,
            direction=host.direction,
            payload_bits=host.port.payload_bits,
            beats_per_frame=host.port.beats,
        )
        for host in design.host_ports
    )
    return Manifest(
        schema_version=MANIFEST_SCHEMA,
        device=design.name,
        part=part,
        clock_mhz=clocks.mhz,
        network_mhz=clocks.network_mhz,
        cycles_per_frame=pace.cycles_per_frame,
        needed_staleness=pace.needed_staleness,
        top=design.top.name,
        ports=tuple(PortRecord(name=p.name, width=p.width, direction=p.direction) for p in design.top.ports),
        sources=tuple(sources),
        nodes=design.nodes,
        images=images,
        host_ports=host_ports,
        weights=tuple(WeightRecord(edge=w.edge, net=w.net, beats_per_batch=w.beats) for w in design.weights),
        streams=tuple(
            StreamRecord(net=net, writer=writer, reader=reader, payload_bits=bits)
            for net, writer, reader, bits in design.streams
        ),
        copies=tuple(CopyRecord(part=part, depth=depth) for part, depth in sorted(design.copies.items())),
        memory=tuple(map(_memory, design.memories)) or None,
        network=_network(design) if design.has_network else None,
        egress=tuple(_crossing(crossing, design) for crossing in design.egress),
        ingress=tuple(_crossing(crossing, design) for crossing in design.ingress),
        state=_state(design),
        ethernet=_ethernet(design.port, pace.files) if design.port else None,
    )


def _network(design: DeviceDesign) -> NetworkRecord:
    cables = None
    if design.cables is not None:
        cables = tuple(
            CableRecord(port=port.number, device=port.peer, device_port=port.peer_port, bits_per_s=port.bits_per_s)
            for port in design.cables.ports
        )
    return NetworkRecord(format=design.form, device=design.number, cables=cables)


def _state(design: DeviceDesign) -> StateRecord | None:
    if not design.links:
        return None
    return StateRecord(load=STATE_LOAD, dump=STATE_DUMP, batch=design.batch, rounds=design.rounds, links=design.links)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _ethernet(port: DevicePort, files: tuple[FileRecord, ...]) -> EthernetRecord:
    ethernet, timing = port.ethernet, port.unit.timing
    return EthernetRecord(
        mac_port=port.adapter.kind,
        mac_mhz=port.mac_mhz,
        mac_word_bits=None if port.mac_mhz is None else port.adapter.beats.bits,
        word_bits=ethernet.frames.word_bits,
        mtu=ethernet.frames.mtu,
        own=_end(port.own),
        peers=tuple(map(_end, port.peers)),
        digest=f"{ethernet.digest:08x}",
        window=timing.window,
        timer_cycles=timing.timer_cycles,
        ack_cycles=timing.ack_cycles,
        host_timer_cycles=port.unit.timings[-1].timer_cycles,
        host_streams=tuple(
            HostStreamRecord(
                carries=stream.carries,
                node=stream.node,
                stream_number=stream.number,
                element_bits=stream.element_bits,
                elements=stream.elements,
                words=stream.words,
            )
            for stream in port.streams
        ),
        files=files,
    )


def _end(address: Address) -> EndRecord:
    return EndRecord(number=address.number, mac=address.mac_text, ip=address.ip_text)


def _crossing(crossing: Crossing, design: DeviceDesign) -> CrossingRecord:
    coding, bursts = crossing.coding, crossing.bursts(design.form.word_bits)
    words = design.link_words[crossing.edge]
    return CrossingRecord(
        edge=crossing.edge,
        stream_number=crossing.number,
        source=crossing.source_device,
        target=crossing.target_device,
        kind=crossing.source.tensor.kind.value,
        element_bits=crossing.element_bits,
        elements=crossing.elements,
        words=held_words(crossing, design.form, words),
        credit_batch=credit_batch(words),
        coded=CodedRecord(coding.codec.drop, coding.codec.window, bursts.lanes) if coding and bursts else None,
    )


def _memory(memory: DeviceMemory) -> MemoryRecord:
    regions = tuple(
        RegionRecord(
            name=region.name,
            base=region.base,
            words=region.words,
            contents=_contents(region.holds) if region.holds else None,
        )
        for region in memory.regions
    )
    return MemoryRecord(
        port=memory.port,
        format=memory.format,
        image=f"images/{memory.file_name}",
        words=memory.words,
        regions=regions,
    )


def _contents(held: Held) -> ContentsRecord:
    return ContentsRecord(
        node=held.node,
        image=held.image,
        is_state=held.is_state,
        loaded=held.loaded,
        tensors=held.tensors,
        elements=held.unit.elements,
        element_bits=held.unit.element_bits,
        word_bits=held.unit.format.data_bits,
        burst=held.unit.burst,
        lanes=held.unit.y_lanes,
    )
