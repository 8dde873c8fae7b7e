"""A test bench, wholly in Verilog, of all FPGAs of a plan: host, network with latency and stalls, dump of state.

The bench feeds frames and labels, keeps the metrics, waits until every update has sent the weights of the last
batch, and then writes all training state to files.  The same text runs in Icarus and in Verilator.

Of the design it knows what the delivered manifests say, and instantiates the delivered tops.  Its own modules are
generated, under names that begin with ``dagtrain_bench``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from myhdl import Signal, intbv

from dagtrain.cosim.watch import WATCHERS, Watch, Watched, cut, outputs_of, watch, watch_text
from dagtrain.emission.assembly import Assembly
from dagtrain.emission.delivered import DeliveredDevice
from dagtrain.emission.links import NetworkModel, axi_stream_signals, link_word
from dagtrain.emission.manifest import COMMAND, ContentsRecord, DeliveryError, HostRecord, MemoryRecord
from dagtrain.emission.memory import MemoryModel, axi4_payloads
from dagtrain.emission.modules import ModuleLibrary, StreamModule, verilog_name
from hdl.axi import FORWARD, Axi, AxiFormat
from hdl.bench import stream_player, stream_recorder
from hdl.dram_model import dram_model
from hdl.link import LinkFormat
from hdl.link_model import link_switch
from hdl.netlist import Direction, PortDecl
from hdl.stream import Stream

# bits of a recorder's count of beats
COUNT_BITS = 32
# the outermost module, with which all names of modules of the bench begin, and the module of all FPGAs
BENCH = "dagtrain_bench"
CLUSTER = f"{BENCH}_cluster"


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What surrounds the FPGAs in a co-simulation."""

    # frames that pass, and frames a batch, which divide them
    frames: int
    batch: int
    network: NetworkModel
    memory: MemoryModel = field(default_factory=MemoryModel)
    # of 256 cycles, those in which a host stream stalls
    host_stall_256: int = 64
    seed: int = 1
    # cycles between the last weights' arrival and the dump of the state
    settle_cycles: int = 4096
    # beside the stalls above: every stream inside the FPGAs is watched, and held up for stretches of so many cycles, a
    # quarter of them at random; 0: neither
    hold_cycles: int = 0


@dataclass(frozen=True)
class Recording:
    """A stream kept by the bench."""

    file_name: str
    beats: int
    # Verilog path of the array below the bench
    path: str
    # that sends it
    device: str


@dataclass(frozen=True)
class WeightLog:
    """The file to which the bench writes every beat of new weights."""

    file_name: str
    # that sends them
    device: str
    edge: str
    # a batch
    beats: int
    # Verilog prefix of the stream's nets below the bench
    net: str


@dataclass(frozen=True)
class Dump:
    """Training state written at the end: a memory of a layer, or a region of a device's DRAM."""

    device: str
    # of the graph
    node: str
    # name in `Layer.images`
    image: str
    file_name: str
    # Verilog path of the array below the bench, and the words of it
    path: str
    first: int
    last: int
    # how a region's words become beats, and the words of that memory
    layout: ContentsRecord | None = None
    form: AxiFormat | None = None

    @property
    def statement(self) -> str:
        """The Verilog statement that writes it."""
        return f'$writememh("{self.file_name}", {self.path}, {self.first}, {self.last});'

    def contents(self, words: Sequence[int]) -> list[int]:
        """What `Layer.images` calls the same, of the file's words."""
        return self.layout.beats(words, self.form) if self.layout and self.form else list(words)


@dataclass(frozen=True)
class Bench:
    """The texts of the bench's own modules, and what it reads and writes (file names in its working folder)."""

    texts: Mapping[str, str]
    # host node -> file of beats to play
    played: Mapping[str, str]
    # host node -> what is recorded of it
    recorded: Mapping[str, Recording]
    dumps: tuple[Dump, ...]
    # library modules of the bench
    modules: tuple[str, ...]
    weights: tuple[WeightLog, ...] = ()
    # by the numbers under which the bench tells of them
    watched: tuple[Watched, ...] = ()
    # tops with gates in their streams, instead of the delivered ones
    tops: Mapping[str, str] = field(default_factory=dict)


def design_bench(
    devices: Sequence[DeliveredDevice], library: ModuleLibrary, options: BenchOptions, folder: Path
) -> Bench:
    """The bench of a whole cluster, which will run in ``folder``.

    Raises `DeliveryError` where the manifests don't fit together."""
    assembly = Assembly(CLUSTER, "All FPGAs with their host and network")
    assembly.port("recorded", COUNT_BITS, Direction.OUT)
    played: dict[str, str] = {}
    recorded: dict[str, Recording] = {}
    dumps = add_cluster(assembly, devices, library, options, folder)
    for device in devices:
        for host in device.manifest.host_ports:
            beats = host.beats_per_frame * options.frames
            file_name = f"{verilog_name(host.node)}.beats.mem"
            if host.direction is Direction.IN:
                _add_player(assembly, library, host, beats, file_name, options, len(played))
                played[host.node] = file_name
            else:
                path = _add_recorder(assembly, library, host, beats, options)
                recorded[host.node] = Recording(file_name, beats, path, device.manifest.device)
    weights = tuple(
        WeightLog(
            f"{verilog_name(record.edge)}.weights.txt",
            device.manifest.device,
            record.edge,
            record.beats_per_batch,
            f"dut.fpga_{device.manifest.top}.{record.net}",
        )
        for device in devices
        for record in device.manifest.weights
    )
    watching = watch(devices) if options.hold_cycles else Watch()
    text = _bench_text(devices, recorded, weights, dumps, options, watching)
    texts = {CLUSTER: assembly.module().to_verilog(), BENCH: text}
    tops: dict[str, str] = {}
    if watching.watched:
        texts[WATCHERS.stem] = WATCHERS.read_text()
        tops = {device.manifest.top: _top_with_gates(device) for device in devices}
    modules = bench_modules(assembly, devices)
    return Bench(texts, played, recorded, tuple(dumps), modules, weights, tuple(watching.watched), tops)


def _top_with_gates(device: DeliveredDevice) -> str:
    """The delivered top, its streams cut."""
    texts = {path.stem: path.read_text() for path in device.sources}
    outputs = {name: outputs_of(text) for name, text in texts.items()}
    return cut(texts[device.manifest.top], [stream.net for stream in device.manifest.streams], outputs)


def bench_modules(assembly: Assembly, devices: Sequence[DeliveredDevice]) -> tuple[str, ...]:
    """Library modules that a bench instantiates beside the FPGAs."""
    tops = {device.manifest.top for device in devices}
    return tuple(sorted({instance.module for instance in assembly.instances} - tops))


def add_cluster(
    assembly: Assembly,
    devices: Sequence[DeliveredDevice],
    library: ModuleLibrary,
    options: BenchOptions,
    folder: Path,
) -> list[Dump]:
    """All FPGAs with their memories and the network; returns the state that can be dumped below an instance `dut`.

    Images are read where they were delivered, by paths from ``folder``, in which the simulation runs."""
    assembly.port("network_error", 1, Direction.OUT)
    assembly.port("memory_error", 1, Direction.OUT)
    dumps: list[Dump] = []
    for device in devices:
        _add_device(assembly, device, folder)
        dumps += _memory_dumps(device)
        memory = device.manifest.memory
        if memory:
            path = _add_memory(assembly, library, device, memory, options, folder)
            dumps += _ring_dumps(device, memory, path)
    if len(devices) > 1:
        _add_network(assembly, library, devices, options)
    flags = [f"{device.manifest.top}_net_error" for device in devices if device.manifest.network]
    assembly.assigns.append(("network_error", " | ".join(flags) or "1'b0"))
    memory_flags = [f"{device.manifest.top}_dram_error" for device in devices if device.manifest.memory]
    assembly.assigns.append(("memory_error", " | ".join(memory_flags) or "1'b0"))
    return dumps


def _memory_dumps(device: DeliveredDevice) -> list[Dump]:
    """State memories of a device's layers."""
    name, top = device.manifest.device, device.manifest.top
    return [
        Dump(name, i.node, i.image, f"{top}.{Path(i.file).name}", f"dut.fpga_{top}.{i.path}", 0, i.depth - 1)
        for i in device.manifest.images
        if i.is_state
    ]


def _ring_dumps(device: DeliveredDevice, memory: MemoryRecord, path: str) -> list[Dump]:
    """State in a device's DRAM, whose array is ``path``."""
    found = []
    for region in memory.regions:
        held = region.contents
        if held and held.is_state:
            file_name = f"{device.manifest.top}.{verilog_name(region.name)}.mem"
            first, last = region.base, region.base + region.words - 1
            name = device.manifest.device
            found.append(Dump(name, held.node, held.image, file_name, path, first, last, held, memory.format))
    return found


def _add_device(assembly: Assembly, device: DeliveredDevice, folder: Path) -> None:
    manifest = device.manifest
    ports = tuple(PortDecl(port.name, port.width, port.direction) for port in manifest.ports)
    connections = {"clk": "clk", "rst": "rst"}
    for port in ports[2:]:
        connections[port.name] = assembly.wire(f"{manifest.top}_{port.name}", port.width)
    parameters = {image.parameter: _path_from(folder, device.folder / image.file) for image in manifest.images}
    assembly.raw_instance(manifest.top, ports, f"fpga_{manifest.top}", connections, parameters)


def _path_from(folder: Path, file: Path) -> str:
    """The path of a file as Verilog in a simulation in ``folder`` writes it.  Raises `DeliveryError` for odd ones."""
    path = os.path.relpath(file.resolve(), folder.resolve())
    if not path.isprintable() or '"' in path or "\\" in path:
        raise DeliveryError(f"{path!r} cannot be written in Verilog; choose another --out or name of the device")
    return path


def _add_memory(
    assembly: Assembly,
    library: ModuleLibrary,
    device: DeliveredDevice,
    memory: MemoryRecord,
    bench: BenchOptions,
    folder: Path,
) -> str:
    """The memory behind a device's AXI4 port; returns the path of its array below the bench."""
    form, top, model = memory.format, device.manifest.top, bench.memory
    options = asdict(model)
    latency = options.pop("latency_cycles")

    def build(clk: object, rst: object, streams: Mapping[str, Stream]) -> object:
        port = Axi.of(streams, "m")
        return dram_model(clk, rst, port, form=form, depth=memory.words, latency=latency, **options)

    module = library.block(f"{BENCH}_memory", f"{form} {memory.words} {model}", form.ports("m"), build)
    byte_bits = (form.data_bits // 8).bit_length() - 1
    nets = {}
    for channel, parts in axi4_payloads(form).items():
        net = assembly.stream(f"{top}_memory_{channel}", form.widths[channel])
        nets[f"m_{channel}"] = net
        theirs = f"{top}_{memory.port}_{channel}"
        low, pieces = 0, []
        for signal, bits in parts:
            wire = f"{top}_{memory.port}_{signal}"
            if channel not in FORWARD:
                assembly.assigns.append((wire, f"{net}_payload[{low + bits - 1}:{low}]"))
            elif signal.endswith("addr"):
                pieces.append(f"{wire}[{bits + byte_bits - 1}:{byte_bits}]")
            else:
                pieces.append(wire)
            low += bits
        if channel in FORWARD:
            assembly.assigns += [(f"{net}_valid", f"{theirs}valid"), (f"{theirs}ready", f"{net}_ready")]
            assembly.assigns.append((f"{net}_payload", f"{{{', '.join(reversed(pieces))}}}"))
        else:
            assembly.assigns += [(f"{theirs}valid", f"{net}_valid"), (f"{net}_ready", f"{theirs}ready")]
    image = module.verilog.images["dram"]
    contents = _path_from(folder, device.folder / memory.image)
    assembly.instance(module, f"memory_{top}", nets, parameters={image.parameter: contents})
    return f"dut.memory_{top}.{image.memory}"


def host_net(assembly: Assembly, host: HostRecord) -> str:
    """The prefix of a host port's wires in the bench."""
    return next(wire.name.removesuffix("_valid") for wire in assembly.wires if wire.name.endswith(f"_{host.net}_valid"))


def _add_player(
    assembly: Assembly,
    library: ModuleLibrary,
    host: HostRecord,
    beats: int,
    file_name: str,
    options: BenchOptions,
    index: int,
) -> None:
    seed = (options.seed * 7919 + index * 104729) & 0xFFFF
    module = library.block(
        f"{BENCH}_player",
        f"{beats} {options.host_stall_256} {seed}",
        {"y": host.payload_bits},
        lambda clk, rst, streams: stream_player(
            clk, rst, streams["y"], depth=beats, probability_256=options.host_stall_256, seed=seed
        ),
    )
    parameters = {module.verilog.images["beats"].parameter: file_name}
    assembly.instance(
        module, f"player_{verilog_name(host.node)}", {"y": host_net(assembly, host)}, parameters=parameters
    )


def _add_recorder(
    assembly: Assembly, library: ModuleLibrary, host: HostRecord, beats: int, options: BenchOptions
) -> str:
    """Returns the path of the array that keeps the beats."""
    seed = (options.seed * 15485863 + 77) & 0xFFFF
    module = _recorder_module(library, host.payload_bits, beats, options.host_stall_256, seed)
    name = f"recorder_{verilog_name(host.node)}"
    image = module.verilog.images["beats"]
    streams = {"x": host_net(assembly, host)}
    assembly.instance(module, name, streams, {"count": "recorded"}, {image.parameter: ""})
    return f"dut.{name}.{image.memory}"


def _add_network(
    assembly: Assembly,
    library: ModuleLibrary,
    devices: Sequence[DeliveredDevice],
    bench: BenchOptions,
) -> None:
    """A switch between the network ports of all devices."""
    numbers = range(len(devices))
    records = [device.manifest.network for device in devices]
    forms = {record.format for record in records if record}
    if len(forms) != 1 or [record and record.device for record in records] != list(numbers):
        names = ", ".join(device.manifest.device for device in devices)
        raise DeliveryError(f"the manifests of {names} don't describe one network; run `{COMMAND}` again")
    (form,) = forms
    widths = {f"{way}{number}": form.payload_bits for way in "xy" for number in numbers}
    network = bench.network
    options = {
        "latency": network.latency_cycles,
        "words": network.words,
        "cycles": network.cycles,
        "stall_256": network.stall_256,
        "seed": network.seed,
    }

    def build(clk: object, rst: object, streams: Mapping[str, Stream]) -> object:
        xs, ys = [streams[f"x{number}"] for number in numbers], [streams[f"y{number}"] for number in numbers]
        return link_switch(clk, rst, xs, ys, form=form, **options)

    module = library.block(f"{BENCH}_switch", f"{form} {options}", widths, build)
    nets = {}
    for number, device in enumerate(devices):
        nets[f"x{number}"], nets[f"y{number}"] = _cable(assembly, device.manifest.top, form)
    assembly.instance(module, "network", nets)


def _cable(assembly: Assembly, top: str, form: LinkFormat) -> tuple[str, str]:
    """The word streams (from, to) of a device's AXI4-Stream ports."""
    sent, received = f"{top}_net_tx", f"{top}_net_rx"
    leaving = assembly.stream(f"{top}_leaving", form.payload_bits)
    arriving = assembly.stream(f"{top}_arriving", form.payload_bits)
    assembly.assigns += [
        (f"{leaving}_valid", f"{sent}_tvalid"),
        (f"{leaving}_payload", link_word(form, sent)),
        (f"{sent}_tready", f"{leaving}_ready"),
        (f"{received}_tvalid", f"{arriving}_valid"),
        (f"{arriving}_ready", f"{received}_tready"),
    ]
    signals = axi_stream_signals(form, f"{arriving}_payload")
    assembly.assigns += [(f"{received}_{signal}", expression) for signal, expression in signals.items()]
    return leaving, arriving


def _recorder_module(library: ModuleLibrary, payload_bits: int, beats: int, stall_256: int, seed: int) -> StreamModule:
    """A recorder of ``beats`` beats with its count as a port."""

    def build(clk: object, rst: object, streams: Mapping[str, Stream]) -> object:
        count = Signal(intbv(0)[COUNT_BITS:])
        return stream_recorder(clk, rst, streams["x"], count, depth=beats, probability_256=stall_256, seed=seed)

    return library.block(f"{BENCH}_recorder", f"{beats} {stall_256} {seed}", {"x": payload_bits}, build)


def _bench_text(
    devices: Sequence[DeliveredDevice],
    recorded: Mapping[str, Recording],
    weights: Sequence[WeightLog],
    dumps: Sequence[Dump],
    options: BenchOptions,
    watching: Watch,
) -> str:
    """The outermost module: writes and counts the weight beats of every update, and dumps state when all is done."""
    batches = options.frames // options.batch
    counters, conditions, dump_lines = [], [], []
    for log in weights:
        counter = f"seen_{verilog_name(log.edge)}"
        counters.append((counter, log.net))
        conditions.append(f"{counter} == {batches * log.beats}")
    for dump in dumps:
        dump_lines.append(f"            {dump.statement}")
    total = sum(recording.beats for recording in recorded.values())
    for recording in recorded.values():
        dump_lines.append(f'            $writememh("{recording.file_name}", {recording.path});')
    done = " && ".join([f"recorded == {total}", *conditions])
    declarations = "\n".join(f"reg [31:0] {counter} = 0;\ninteger file_{counter};" for counter, _net in counters)
    opening = "\n".join(
        f'initial file_{counter} = $fopen("{log.file_name}", "w");'
        for (counter, _net), log in zip(counters, weights, strict=True)
    )
    gated = "_open" if watching.watched else ""
    counting = "\n".join(
        f"    if ({net}_valid{gated} && {net}_ready{gated} && !rst) begin\n        {counter} <= {counter} + 1;\n"
        f'        $fdisplay(file_{counter}, "%h", {net}_payload);\n    end'
        for counter, net in counters
    )
    dump_lines += [f"            $fclose(file_{counter});" for counter, _net in counters]
    activity = " + ".join(["recorded", *(counter for counter, _net in counters)])
    dumping = "\n".join(dump_lines)
    watchers = len(watching.watched)
    guards = watch_text(watching, options.hold_cycles, options.seed) if watchers else ""
    broken = f"wire [{watchers - 1}:0] broken;" if watchers else "wire broken = 1'b0;"
    streams = [(device.manifest.top, stream.net) for device in devices for stream in device.manifest.streams]
    reporting = "\n".join(
        f'        $display("net {top} {net} %b %b", dut.fpga_{top}.{net}_valid, dut.fpga_{top}.{net}_ready);'
        for top, net in streams
    )
    return f"""// The outermost module of the co-simulation.
module {BENCH} (
    input wire clk,
    input wire rst,
    // to have valid and ready of every stream printed
    input wire report,
    output reg finished,
    output wire [31:0] progress,
    output wire [31:0] activity,
    output wire network_error
);
wire [31:0] recorded;
wire lost_word, memory_error;
reg refused = 0;
reg [31:0] settled = 0;
initial finished = 0;
{declarations}
{opening}
wire settling = {done};
wire over = settled == {options.settle_cycles};
{broken}
{guards}{CLUSTER} dut (
    .clk(clk), .rst(rst), .recorded(recorded), .network_error(lost_word), .memory_error(memory_error)
);
assign network_error = lost_word || refused || |broken;
assign progress = recorded;
assign activity = {activity} + settled;
always @(posedge clk) begin
    if (memory_error && !rst) begin
        $display("memory error %0d", recorded);
        refused <= 1;
    end
{counting}
    if (report) begin
{reporting}
    end
    if (settling) begin
        settled <= settled + 1;
        if (over) begin
{dumping}
            finished <= 1;
        end
    end
end
endmodule
"""
