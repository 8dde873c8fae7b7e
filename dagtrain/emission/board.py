"""What stands around the top of an FPGA on a board with Intel's IP: PLL, MAC, memory controllers, resets, constraints.

    pins ─ MAC ─ top ─ AXI4 ─▶ crossings ─▶ AvalonMemory ─▶ memory controller ─ pins      a channel
            ▲     ▲               ▲                              ▲
            └ StartUp ◀─ locked, lanes stable      MemoryGate ───┘ reset, until it is calibrated

IP stands there as black boxes (`dagtrain.emission.ip`), which a project replaces by what the vendor's tool generates.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dagtrain.emission.assembly import Assembly
from dagtrain.emission.device import DeviceDesign
from dagtrain.emission.ip import (
    MACS,
    MEMORY_BITS,
    MEMORY_FAMILIES,
    MEMORY_PINS,
    RESET_RELEASE,
    SLOW,
    STOPPED,
    BlackBox,
    MacIp,
    MemoryIp,
    device_pll,
    memory_ip,
)
from dagtrain.emission.links import unit_module
from dagtrain.emission.manifest import FILE_LIST
from dagtrain.emission.memory import DeviceMemory, axi4_payloads, axi_nets
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.emission.project import QUARTUS_LOOP_LIMIT, mac_skews, module_head, quartus_family, skew, used_modules
from dagtrain.files import write_text
from hdl.convert.netlist import Direction, Module, PortDecl
from hdl.convert.tools import LINT, run_tool
from hdl.dram.avalon import MOST_BURST, AvalonMemory
from hdl.dram.axi import CHANNELS, FORWARD
from hdl.link.clocks import ClockCrossing
from hdl.link.resets import MemoryGate, StartUp
from placement.problem.cluster import Board

FOLDER = "board"
# MHz of the slow clock, of the reference of a MAC, and of the fastest user clock of a memory controller (DDR4-3200)
SLOW_MHZ, REFERENCE_MHZ, MEMORY_MHZ = 100, 644.53125, 400
RESET_PIN = "reset_n"


@dataclass(frozen=True, kw_only=True)
class BoardDesign:
    """The outermost module of an FPGA on a board, and what its project holds."""

    top: Module
    # of the device
    inner: Module
    # own modules around the device
    library: ModuleLibrary
    boxes: tuple[BlackBox, ...]
    part: str
    # of the device and its MAC
    clock_mhz: float
    mac_mhz: float
    channels: int


def reasons_against(board: Board) -> list[str]:
    """Why there is no such design of a board; none: there is one."""
    part, found = board.part.name, []
    if board.mac != "avalon-st" or not board.mac_clock_hz:
        found.append('a MAC of Intel needs mac = "avalon-st", mac_clock_mhz and mac_word_bits')
    elif mac_of(board) is None:
        known = ", ".join(f"{mac.family}… {mac.bits} bits to {mac.most_gbit}G" for mac in MACS)
        gbit = board.link_bits_per_s / 10**9
        found.append(f"no MAC is known of a {part} with {board.mac_word_bits} bits at {gbit:g} Gbit/s; known: {known}")
    if board.dram_bytes and not part.startswith(MEMORY_FAMILIES):
        found.append(f"no memory controller is known of a {part}")
    return found


def mac_of(board: Board) -> MacIp | None:
    """What there is for its part, width and rate."""
    gbit = board.link_bits_per_s / 10**9
    fits = (
        mac
        for mac in MACS
        if board.part.name.startswith(mac.family) and mac.bits == board.mac_word_bits and mac.least_gbit < gbit
    )
    return next((mac for mac in fits if gbit <= mac.most_gbit), None)


def top_reasons(device: DeviceDesign) -> list[str]:
    """Why a top can't be joined to what is around it."""
    found = [
        f"a memory controller has words of {MEMORY_BITS} bits, not {memory.format.data_bits}: write dram_word_bits = "
        f"{MEMORY_BITS}"
        for memory in device.memories[:1]
        if memory.format.data_bits != MEMORY_BITS
    ]
    if device.port is None:
        found.append("it has no Ethernet port")
    if device.host_ports:
        found.append("its host has ports of its own: emit with --host network")
    return found


def board_project(
    folder: Path, board: Board, clock_mhz: float, device: DeviceDesign, library: ModuleLibrary, *, lint: bool
) -> tuple[Path | None, list[str]]:
    """Write the project of a device's board below the ``folder`` that `write_device` left, and check it if that is
    wanted; returns it, or why there is none.  Raises `ToolError` for what Verilator finds."""
    reasons = [*reasons_against(board), *top_reasons(device)]
    if reasons:
        return None, reasons
    design = design_board(board, clock_mhz, device.top, device.memories, library, images_of(device))
    project = write_board(folder, design, (folder / FILE_LIST).read_text().split())
    if lint:
        lint_board(design)
    return project, []


def images_of(device: DeviceDesign) -> dict[str, str]:
    """Parameters of a top that name images of memories → files, from the project of its board."""
    return {image.parameter: f"../images/{image.file_name}" for image in device.images}


def design_board(
    board: Board,
    clock_mhz: float,
    inner: Module,
    memories: Sequence[DeviceMemory],
    library: ModuleLibrary,
    images: Mapping[str, str] | None = None,
) -> BoardDesign:
    """The board of a device whose top is ``inner``, with a clock of so many MHz; see `reasons_against`.

    ``images``: see `images_of`."""
    mac = mac_of(board)
    assert mac is not None
    built = _Board(mac, inner, library, board.part.name, images or {})
    return BoardDesign(
        top=built.module(memories, clock_mhz),
        inner=inner,
        library=library,
        boxes=tuple(built.boxes.values()),
        part=board.part.name,
        clock_mhz=clock_mhz,
        mac_mhz=board.mac_clock_hz / 10**6,
        channels=len(memories),
    )


@dataclass
class _Board:
    """The outermost module under construction."""

    mac: MacIp
    inner: Module
    library: ModuleLibrary
    part: str
    images: Mapping[str, str]
    boxes: dict[str, BlackBox] = field(default_factory=dict)

    def __post_init__(self) -> None:
        comment = f"{self.inner.name} on a board, with black boxes of its vendor's IP"
        self.assembly = Assembly(f"{self.inner.name}_board", comment)
        # clock and reset are made inside
        self.assembly.ports.clear()
        for name in (SLOW, RESET_PIN):
            self.assembly.port(name, 1, Direction.IN)
        for name in ("clk", "rst", STOPPED, "locked"):
            self.assembly.wire(name)

    def module(self, memories: Sequence[DeviceMemory], clock_mhz: float) -> Module:
        """All of it."""
        self._clocks(clock_mhz)
        device = {"clk": "clk", "rst": "rst"}
        device |= self._mac()
        if memories:
            device["net_reset"] = self.assembly.wire("device_net_reset")
        for number, memory in enumerate(memories):
            device |= self._memory(number, memory)
        for port in self.inner.ports:
            if port.name not in device:
                device[port.name] = self._idle(port, "device")
        self.assembly.raw_instance(self.inner.name, self.inner.ports, "device", device, self.images)
        return self.assembly.module()

    def _idle(self, port: PortDecl, owner: str) -> str:
        """An output that nobody reads; an input that nobody drives is one too many."""
        assert port.direction is Direction.OUT, (owner, port)
        return self.assembly.wire(f"unused_{owner}_{port.name}", port.width)

    def _box(self, box: BlackBox, name: str, connections: Mapping[str, str], pins: Sequence[str] = ()) -> None:
        """An instance of a black box: ``pins`` become ports of the board, outputs that are not said are not read."""
        self.boxes[box.name] = box
        nets = dict(connections)
        for port in box.ports:
            if port.name in pins:
                nets[port.name] = self.assembly.port(f"{name}_{port.name}", port.width, port.direction)
            elif port.name not in nets:
                nets[port.name] = self._idle(port, name)
        self.assembly.raw_instance(box.name, box.ports, name, nets)

    def _clocks(self, clock_mhz: float) -> None:
        """The PLL, and what holds all in reset at power-on."""
        stopped = f"!{RESET_PIN}"
        if self.part.startswith("AGF"):
            self.assembly.wire("configuring")
            self._box(RESET_RELEASE, "release_of_reset", {"ninit_done": "configuring"})
            stopped += " | configuring"
        self.assembly.assigns.append((STOPPED, stopped))
        pll = {"refclk": SLOW, "rst": STOPPED, "outclk_0": "clk", "locked": "locked"}
        self._box(device_pll(clock_mhz), "clock_pll", pll)

    def _unit(self, kind: str, unit: StartUp | MemoryGate, name: str, nets: Mapping[str, str]) -> None:
        module = unit_module(self.library, kind, unit)
        self.assembly.raw_instance(module.name, module.verilog.ports, name, {"clk": "clk", **nets})

    def _mac(self) -> dict[str, str]:
        """The MAC with the PLLs of its transmitters, and the reset of the device; ports of the device → nets."""
        mac, assembly = self.mac, self.assembly
        widths, nets = mac.box.widths, dict(mac.driven)
        device = {}
        for ours, theirs in mac.joined.items():
            port = next(port for port in self.inner.ports if port.name == ours)
            wire = assembly.wire(ours, port.width)
            device[ours] = wire
            if theirs == mac.errors:
                nets[theirs] = assembly.wire("mac_rx_errors", widths[theirs])
                assembly.assigns.append((wire, f"|{nets[theirs]}"))
            else:
                nets[theirs] = wire
        sources = dict.fromkeys(mac.clocks.values())
        for theirs in sources:
            nets[theirs] = assembly.wire(f"mac_{theirs}")
        for ours, theirs in mac.clocks.items():
            device[ours] = assembly.wire(ours)
            assembly.assigns.append((ours, nets[theirs]))
        for name in mac.good:
            nets[name] = assembly.wire(f"mac_{name}")
        good = ["locked", *(nets[name] for name in mac.good)]
        pins = list(mac.pins)
        if mac.transmit_pll is not None:
            # one reference for the MAC and the PLLs of its transmitters
            pins.remove("clk_ref")
            nets["clk_ref"] = assembly.port("ethernet_clk_ref", 1, Direction.IN)
            nets |= self._transmit_plls(mac.transmit_pll, widths["tx_serial_clk"])
        self._box(mac.box, "ethernet", nets, pins)
        self._unit("start_up", StartUp(), "start_up", {"good": assembly.wire("good"), "stop": STOPPED, "held": "rst"})
        assembly.assigns.append(("good", " & ".join(good)))
        return device

    def _transmit_plls(self, pll: BlackBox, lanes: int) -> dict[str, str]:
        """Each drives as many lanes as the others."""
        clocks, locks = [], []
        for number in range(self.mac.transmit_plls):
            clock, lock = (self.assembly.wire(f"transmit{number}_{what}") for what in ("clk", "locked"))
            nets = {"pll_powerdown": STOPPED, "pll_refclk0": "ethernet_clk_ref", self.mac.serial_clock: clock}
            self._box(pll, f"transmit_pll{number}", {**nets, "pll_locked": lock})
            clocks.append(clock)
            locks.append(lock)
        wire = self.assembly.wire("transmit_clks", lanes)
        each = lanes // len(clocks)
        self.assembly.assigns.append((wire, f"{{{', '.join(f'{{{each}{{{clock}}}}}' for clock in reversed(clocks))}}}"))
        locked = self.assembly.wire("transmit_locked")
        self.assembly.assigns.append((locked, " & ".join(locks)))
        return {"tx_serial_clk": wire, "tx_pll_locked": locked}

    def _memory(self, number: int, memory: DeviceMemory) -> dict[str, str]:
        """A channel: crossings, the adapter, the controller; ports of the device → nets."""
        assembly, name = self.assembly, f"memory{number}"
        ip = memory_ip(next(f for f in MEMORY_FAMILIES if self.part.startswith(f)), memory.format.address_bits)
        wires = ("request", "closed", "usr_clk", "usr_reset_n", "calibrated", "rst")
        request, closed, clk, reset_n, calibrated, reset = (assembly.wire(f"{name}_{wire}") for wire in wires)
        again, ready = (assembly.wire(f"{name}_{wire}") for wire in ("again", "ready"))
        assembly.assigns += [(again, "rst | device_net_reset"), (ready, f"{reset_n} & {calibrated}")]
        gate = {"again": again, "ready": ready, "request": request, "closed": closed}
        self._unit("memory_gate", MemoryGate(), f"{name}_gate", gate)
        # the far side is in reset for as long as the near one, and both clocks run meanwhile
        self._unit("start_up", StartUp(), f"{name}_start_up",
                   {"clk": clk, "good": ready, "stop": closed, "held": reset})  # fmt: skip
        device = self._crossings(name, memory, (closed, clk, reset))
        self._controller(name, memory, ip, {
            "emif_usr_clk": clk, "emif_usr_reset_n": reset_n, "local_cal_success": calibrated,
            **{port: text.replace("request", request) for port, text in ip.driven.items()},
        }, (clk, reset))  # fmt: skip
        return device

    def _crossings(self, name: str, memory: DeviceMemory, far: tuple[str, str, str]) -> dict[str, str]:
        """The channels of an AXI4 port to and from the clock of its controller; ports of the device → nets."""
        (closed, clk, reset), assembly, device = far, self.assembly, {}
        form, widths = memory.format, {port.name: port.width for port in self.inner.ports}
        byte_bits = (form.data_bits // 8).bit_length() - 1
        for channel, parts in axi4_payloads(form).items():
            near, there = (
                assembly.stream(f"{name}_{side}_{channel}", form.widths[channel]) for side in ("near", "far")
            )
            ours, low, pieces = channel in FORWARD, 0, []
            for wire in ("valid", "ready"):
                device[f"{memory.port}_{channel}{wire}"] = f"{near}_{wire}"
            for signal, bits in parts:
                port = f"{memory.port}_{signal}"
                wire = device[port] = assembly.wire(f"{name}_{signal}", widths[port])
                if ours:
                    pieces.append(f"{wire}[{bits + byte_bits - 1}:{byte_bits}]" if signal.endswith("addr") else wire)
                else:
                    assembly.assigns.append((wire, f"{near}_payload[{low + bits - 1}:{low}]"))
                low += bits
            if ours:
                assembly.assigns.append((f"{near}_payload", f"{{{', '.join(reversed(pieces))}}}"))
            unit = ClockCrossing(payload_bits=form.widths[channel])
            sides = {"write_clk": "clk", "write_rst": closed, "read_clk": clk, "read_rst": reset}
            if not ours:
                sides = {"write_clk": clk, "write_rst": reset, "read_clk": "clk", "read_rst": closed}
            ends = {"x": near, "y": there} if ours else {"x": there, "y": near}
            module = unit_module(self.library, "clock_crossing", unit)
            assembly.instance(module, f"{name}_crossing_{channel}", ends, sides)
        return device

    def _controller(
        self, name: str, memory: DeviceMemory, ip: MemoryIp, nets: dict[str, str], domain: tuple[str, str]
    ) -> None:
        """A controller behind its adapter, and what calibrates it."""
        assembly, form = self.assembly, memory.format
        unit = AvalonMemory(format=form, burst=min(MOST_BURST, form.max_burst))
        avalon = {}
        for port, bits in {**unit.inputs, **unit.outputs}.items():
            nets[f"{port}_0"] = avalon[port] = assembly.wire(f"{name}_{port}", bits)
        module = unit_module(self.library, "avalon_memory", unit)
        streams = axi_nets(f"{name}_far", "m")
        assembly.instance(module, f"{name}_adapter", streams, {"clk": domain[0], "rst": domain[1], **avalon})
        if ip.calibration is not None:
            bus = {p.name: assembly.wire(f"{name}_{ip.calibrates[p.name]}", p.width) for p in ip.calibration.ports}
            nets |= {ip.calibrates[port]: wire for port, wire in bus.items()}
            self._box(ip.calibration, f"{name}_calibration", bus)
        self._box(ip.box, name, nets, MEMORY_PINS)


# ------------------------------------------------------------------------------------------------ files


def write_board(folder: Path, design: BoardDesign, sources: Sequence[str]) -> Path:
    """Write ``<folder>/board/``: the outermost module, what it is made of, black boxes, constraints, Quartus project;
    ``sources`` of the device, below ``folder``.  Returns the project."""
    own, name = folder / FOLDER, design.top.name
    modules = used_modules(design.top, design.library)
    for module in modules:
        write_text(own / "rtl" / f"{module.name}.v", module.text)
    write_text(own / "rtl" / f"{name}.v", design.top.to_verilog())
    for box in design.boxes:
        write_text(own / "ip" / f"{box.name}.v", box.text)
    files = [f"rtl/{module.name}.v" for module in modules] + [f"rtl/{name}.v"]
    write_text(own / f"{name}.sdc", _constraints(design))
    write_text(own / f"{name}.qsf", _project(design, [f"../{source}" for source in sources] + files))
    write_text(own / f"{name}.qpf", f'PROJECT_REVISION = "{name}"\n')
    return own / f"{name}.qpf"


def _project(design: BoardDesign, sources: Sequence[str]) -> str:
    lines = [f"# {design.part} on a board; Quartus has not compiled it"]
    lines += [f'set_global_assignment -name FAMILY "{quartus_family(design.part)}"']
    lines += [f"set_global_assignment -name TOP_LEVEL_ENTITY {design.top.name}"]
    lines += [f"set_global_assignment -name VERILOG_CONSTANT_LOOP_LIMIT {QUARTUS_LOOP_LIMIT}"]
    lines += [f"set_global_assignment -name VERILOG_FILE {source}" for source in sources]
    lines += ["# black boxes: write the generated IP here, as IP_FILE or QSYS_FILE, in place of each"]
    lines += [f"set_global_assignment -name VERILOG_FILE ip/{box.name}.v" for box in design.boxes]
    lines += [f"set_global_assignment -name SDC_FILE {design.top.name}.sdc"]
    lines += ["# DEVICE, and the pin of every port, are the board's:"]
    lines += [f"# set_location_assignment PIN_… -to {port.name}" for port in design.top.ports]
    return "\n".join(lines) + "\n"


def _constraints(design: BoardDesign) -> str:
    """Of reference clocks, and of what crosses between clocks that IP makes: they are called after its instances."""
    references = [(SLOW, SLOW_MHZ), *((port.name, REFERENCE_MHZ) for port in design.top.ports if _is_reference(port))]
    lines = [f"create_clock -name {name} -period {1000 / mhz:.3f} [get_ports {{{name}}}]" for name, mhz in references]
    if design.part.startswith("10AX"):
        lines.append("derive_pll_clocks")
    lines.append("derive_clock_uncertainty")
    lines.append(f"set_false_path -from [get_ports {{{RESET_PIN}}}]")
    memories = [f"memory{number}" for number in range(design.channels)]
    instances = ["clock_pll", "ethernet", *memories]
    groups = [f"-group [get_clocks {{{name}}}]" for name, _ in references]
    groups += [f"-group [get_clocks {{*{name}|*}}]" for name in instances]
    lines.append(f"set_clock_groups -asynchronous {' '.join(groups)}")
    own_ns, mac_ns, memory_ns = (1000 / mhz for mhz in (design.clock_mhz, design.mac_mhz, MEMORY_MHZ))
    text = "\n".join(lines) + "\n" + "".join(mac_skews(own_ns, mac_ns))
    return text + "".join(_memory_skews(memories, own_ns, memory_ns))


def _is_reference(port: PortDecl) -> bool:
    return port.name.endswith("clk_ref")


def _memory_skews(memories: Sequence[str], own_ns: float, memory_ns: float) -> Iterator[str]:
    for name in memories:
        for channel in CHANNELS:
            crossing, ours = f"*{name}_crossing_{channel}", channel in FORWARD
            periods = (own_ns, memory_ns) if ours else (memory_ns, own_ns)
            for count, ns in zip(("written", "taken"), periods, strict=True):
                yield skew(f"{crossing}|{count}_code", f"{crossing}|synchroniser*_first", ns)


def lint_board(design: BoardDesign) -> None:
    """Verilator's lint of the outermost module over the ports of all that it is made of, widths too; raises
    `ToolError`."""
    heads = [module_head(module.text) for module in used_modules(design.top, design.library)]
    heads.append(Module(design.inner.name, design.inner.ports, parameters=design.inner.parameters).to_verilog())
    strict = [option for option in LINT if option != "-Wno-WIDTH"]
    with tempfile.TemporaryDirectory(prefix="dagtrain-") as name:
        paths = [Path(name) / "parts.v", Path(name) / f"{design.top.name}.v"]
        paths[0].write_text("\n".join([*heads, *(box.text for box in design.boxes)]))
        paths[1].write_text(design.top.to_verilog())
        run_tool([*strict, "--top-module", design.top.name, *paths])
