"""A test bench, wholly in Verilog, of all FPGAs of a plan: host, network with latency and stalls, dump of state.

The bench feeds frames and labels, keeps the metrics, waits until every update has sent the weights of the last
batch, and then writes all training state to files.  The same text runs in Icarus and in Verilator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from myhdl import Signal, intbv

from dagtrain.emission.assembly import Assembly
from dagtrain.emission.device import DeviceDesign, HostPort, produced_net
from dagtrain.emission.links import NetworkModel, axi_stream_signals, link_word
from dagtrain.emission.memory import AXI_PREFIX, DeviceMemory, MemoryModel, RingState, axi4_payloads
from dagtrain.emission.modules import ModuleLibrary, StreamModule, verilog_name
from dagtrain.ir import Graph, is_delayed
from hdl.axi import FORWARD, Axi
from hdl.bench import stream_player, stream_recorder
from hdl.dram_model import dram_model
from hdl.link import LinkFormat
from hdl.link_model import link_switch
from hdl.netlist import Direction
from hdl.stream import Stream

# bits of a recorder's count of beats
COUNT_BITS = 32


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What surrounds the FPGAs in a co-simulation."""

    # frames that pass; a multiple of the batch
    frames: int
    network: NetworkModel
    memory: MemoryModel = field(default_factory=MemoryModel)
    # of 256 cycles, those in which a host stream stalls
    host_stall_256: int = 64
    seed: int = 1
    # cycles between the last weights' arrival and the dump of the state
    settle_cycles: int = 4096


@dataclass(frozen=True)
class Recording:
    """A stream kept by the bench."""

    file_name: str
    beats: int
    # Verilog path of the array below the bench
    path: str


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
    # how a region's words become beats
    ring: RingState | None = None

    @property
    def statement(self) -> str:
        """The Verilog statement that writes it."""
        return f'$writememh("{self.file_name}", {self.path}, {self.first}, {self.last});'

    def contents(self, words: Sequence[int]) -> list[int]:
        """What `Layer.images` calls the same, of the file's words."""
        return self.ring.beats(words) if self.ring else list(words)


@dataclass(frozen=True)
class Bench:
    """The texts of the bench's own modules, and what it reads and writes (file names in its working folder)."""

    texts: Mapping[str, str]
    # host node -> file of beats to play
    played: Mapping[str, str]
    # host node -> what is recorded of it
    recorded: Mapping[str, Recording]
    dumps: tuple[Dump, ...]
    # library modules that the bench instantiates
    modules: tuple[str, ...]


def design_bench(
    graph: Graph, devices: Sequence[DeviceDesign], library: ModuleLibrary, options: BenchOptions, form: LinkFormat
) -> Bench:
    """The bench of a whole cluster."""
    assembly = Assembly("cluster", f"All FPGAs of {graph.name} with their host and network")
    assembly.port("recorded", COUNT_BITS, Direction.OUT)
    played: dict[str, str] = {}
    recorded: dict[str, Recording] = {}
    dumps = add_cluster(assembly, devices, library, options, form)
    for device in devices:
        for host in device.host_ports:
            beats = host.port.beats * options.frames
            file_name = f"{verilog_name(host.node)}.beats.mem"
            if host.direction is Direction.IN:
                _add_player(assembly, library, host, beats, file_name, options, len(played))
                played[host.node] = file_name
            else:
                path = _add_recorder(assembly, library, host, beats, options)
                recorded[host.node] = Recording(file_name, beats, path)
    texts = {
        "cluster": assembly.module().to_verilog(),
        "bench": _bench_text(graph, devices, recorded, dumps, options),
    }
    modules = tuple(sorted({instance.module for instance in assembly.instances}))
    return Bench(texts, played, recorded, tuple(dumps), modules)


def add_cluster(
    assembly: Assembly,
    devices: Sequence[DeviceDesign],
    library: ModuleLibrary,
    options: BenchOptions,
    form: LinkFormat,
) -> list[Dump]:
    """All FPGAs with their memories and the network; returns the state that can be dumped below an instance `dut`."""
    assembly.port("network_error", 1, Direction.OUT)
    assembly.port("memory_error", 1, Direction.OUT)
    dumps: list[Dump] = []
    for device in devices:
        _add_device(assembly, device)
        dumps += _memory_dumps(device)
        if device.memory:
            path = _add_memory(assembly, library, device, device.memory, options.memory)
            dumps += _ring_dumps(device, device.memory, path)
    if len(devices) > 1:
        _add_network(assembly, library, devices, options.network, form)
    flags = [f"{device.top.name}_net_error" for device in devices if device.has_network]
    assembly.assigns.append(("network_error", " | ".join(flags) or "1'b0"))
    memory_flags = [f"{device.top.name}_dram_error" for device in devices if device.memory]
    assembly.assigns.append(("memory_error", " | ".join(memory_flags) or "1'b0"))
    return dumps


def _memory_dumps(device: DeviceDesign) -> list[Dump]:
    """State memories of a device's layers."""
    name, top = verilog_name(device.name), f"dut.fpga_{verilog_name(device.name)}"
    return [
        Dump(device.name, i.node, i.image, f"{name}.{i.file_name}", f"{top}.{i.path}", 0, len(i.words) - 1)
        for i in device.images
        if i.is_state
    ]


def _ring_dumps(device: DeviceDesign, memory: DeviceMemory, path: str) -> list[Dump]:
    """State in a device's DRAM, whose array is ``path``."""
    found = []
    for region in memory.regions:
        state = region.state
        if state:
            file_name = f"{verilog_name(device.name)}.{verilog_name(region.name)}.mem"
            last = region.base + region.words - 1
            found.append(Dump(device.name, state.node, state.ring.name, file_name, path, region.base, last, state))
    return found


def _add_device(assembly: Assembly, device: DeviceDesign) -> None:
    top = device.top
    connections = {"clk": "clk", "rst": "rst"}
    for port in top.ports[2:]:
        connections[port.name] = assembly.wire(f"{top.name}_{port.name}", port.width)
    parameters = {image.parameter: image.file_name for image in device.images}
    assembly.raw_instance(top.name, top.ports, f"fpga_{top.name}", connections, parameters)


def memory_image(device: DeviceDesign) -> str:
    """Name of the file that a device's memory starts with."""
    return f"{verilog_name(device.name)}.dram.mem"


def _add_memory(
    assembly: Assembly, library: ModuleLibrary, device: DeviceDesign, memory: DeviceMemory, model: MemoryModel
) -> str:
    """The memory behind a device's AXI4 port; returns the path of its array below the bench."""
    form, top = memory.format, device.top.name
    options = asdict(model)
    latency = options.pop("latency_cycles")

    def build(clk: object, rst: object, streams: Mapping[str, Stream]) -> object:
        port = Axi.of(streams, "m")
        return dram_model(clk, rst, port, form=form, depth=memory.words, latency=latency, **options)

    module = library.block("dram_model", f"{form} {memory.words} {model}", form.ports("m"), build)
    byte_bits = (form.data_bits // 8).bit_length() - 1
    nets = {}
    for channel, parts in axi4_payloads(form).items():
        net = assembly.stream(f"{top}_memory_{channel}", form.widths[channel])
        nets[f"m_{channel}"] = net
        theirs = f"{top}_{AXI_PREFIX}_{channel}"
        low, pieces = 0, []
        for signal, bits in parts:
            wire = f"{top}_{AXI_PREFIX}_{signal}"
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
    assembly.instance(module, f"memory_{top}", nets, parameters={image.parameter: memory_image(device)})
    return f"dut.memory_{top}.{image.memory}"


def host_net(assembly: Assembly, host: HostPort) -> str:
    """The prefix of a host port's wires in the bench."""
    return next(wire.name.removesuffix("_valid") for wire in assembly.wires if wire.name.endswith(f"_{host.net}_valid"))


def _add_player(
    assembly: Assembly,
    library: ModuleLibrary,
    host: HostPort,
    beats: int,
    file_name: str,
    options: BenchOptions,
    index: int,
) -> None:
    seed = (options.seed * 7919 + index * 104729) & 0xFFFF
    module = library.block(
        "stream_player",
        f"{beats} {options.host_stall_256} {seed}",
        {"y": host.port.payload_bits},
        lambda clk, rst, streams: stream_player(
            clk, rst, streams["y"], depth=beats, probability_256=options.host_stall_256, seed=seed
        ),
    )
    parameters = {module.verilog.images["beats"].parameter: file_name}
    assembly.instance(
        module, f"player_{verilog_name(host.node)}", {"y": host_net(assembly, host)}, parameters=parameters
    )


def _add_recorder(assembly: Assembly, library: ModuleLibrary, host: HostPort, beats: int, options: BenchOptions) -> str:
    """Returns the path of the array that keeps the beats."""
    seed = (options.seed * 15485863 + 77) & 0xFFFF
    module = _recorder_module(library, host.port.payload_bits, beats, options.host_stall_256, seed)
    name = f"recorder_{verilog_name(host.node)}"
    image = module.verilog.images["beats"]
    streams = {"x": host_net(assembly, host)}
    assembly.instance(module, name, streams, {"count": "recorded"}, {image.parameter: ""})
    return f"dut.{name}.{image.memory}"


def _add_network(
    assembly: Assembly,
    library: ModuleLibrary,
    devices: Sequence[DeviceDesign],
    network: NetworkModel,
    form: LinkFormat,
) -> None:
    """A switch between the network ports of all devices."""
    numbers = range(len(devices))
    widths = {f"{way}{number}": form.payload_bits for way in "xy" for number in numbers}
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

    module = library.block("link_switch", f"{form} {options}", widths, build)
    nets = {}
    for number, device in enumerate(devices):
        nets[f"x{number}"], nets[f"y{number}"] = _cable(assembly, device.top.name, form)
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

    return library.block("stream_recorder", f"{beats} {stall_256} {seed}", {"x": payload_bits}, build)


def _bench_text(
    graph: Graph,
    devices: Sequence[DeviceDesign],
    recorded: Mapping[str, Recording],
    dumps: Sequence[Dump],
    options: BenchOptions,
) -> str:
    """The outermost module: counts the weight beats of every update and dumps state when all is done."""
    batches = options.frames // graph.recipe.batch
    counters, conditions, dump_lines = [], [], []
    where = {node: device for device in devices for node in device.nodes}
    for edge, producer, source, consumer, sink in graph.edges:
        if not is_delayed(consumer.layer, sink):
            continue
        net = f"dut.fpga_{where[producer.name].top.name}.{produced_net(edge)}"
        counter = f"seen_{verilog_name(edge)}"
        counters.append((counter, net))
        conditions.append(f"{counter} == {batches * source.beats}")
    for dump in dumps:
        dump_lines.append(f"            {dump.statement}")
    total = sum(recording.beats for recording in recorded.values())
    for recording in recorded.values():
        dump_lines.append(f'            $writememh("{recording.file_name}", {recording.path});')
    done = " && ".join([f"recorded == {total}", *conditions])
    declarations = "\n".join(f"reg [31:0] {counter} = 0;" for counter, _net in counters)
    counting = "\n".join(
        f"    if ({net}_valid && {net}_ready) {counter} <= {counter} + 1;" for counter, net in counters
    )
    activity = " + ".join(["recorded", *(counter for counter, _net in counters)])
    dumping = "\n".join(dump_lines)
    return f"""// The outermost module of the co-simulation of {graph.name}.
module bench (
    input wire clk,
    input wire rst,
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
cluster dut (.clk(clk), .rst(rst), .recorded(recorded), .network_error(lost_word), .memory_error(memory_error));
assign network_error = lost_word || refused;
assign progress = recorded;
assign activity = {activity} + settled;
always @(posedge clk) begin
    if (memory_error && !rst) begin
        $display("memory error %0d", recorded);
        refused <= 1;
    end
{counting}
    if ({done}) begin
        settled <= settled + 1;
        if (settled == {options.settle_cycles}) begin
{dumping}
            finished <= 1;
        end
    end
end
endmodule
"""
