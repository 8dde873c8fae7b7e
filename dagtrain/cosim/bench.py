"""A test bench, wholly in Verilog, of all FPGAs of a plan: host, network with latency and stalls, dump of state.

The bench feeds frames and labels, keeps the metrics, waits until every update has sent the weights of the last
batch, and then writes all training state to files.  The same text runs in Icarus and in Verilator.

Of the design it knows what the delivered manifests say, and instantiates the delivered tops.  Its own modules are
generated, under names that begin with ``dagtrain_bench``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from dagtrain.cosim.clocks import clock_of, mac_clocks, mac_prefix
from dagtrain.cosim.network import Mac, MacPort
from dagtrain.cosim.outermost import outermost_text
from dagtrain.cosim.parts import BENCH, CLUSTER, Bench, BenchOptions, Dump, Recording, StateLog, WeightLog
from dagtrain.cosim.timeline import Probes
from dagtrain.cosim.trace import Traced
from dagtrain.cosim.watch import WATCHERS, Watch, cut, outputs_of, watch
from dagtrain.cosim.windows import LanePort, Share
from dagtrain.emission.assembly import Assembly
from dagtrain.emission.cables import cable_rate
from dagtrain.emission.delivered import DeliveredDevice
from dagtrain.emission.ethernet import host_label
from dagtrain.emission.links import NETWORK_ROLE, NetworkModel, axi_stream_signals, link_word, sender_role
from dagtrain.emission.manifest import (
    COMMAND,
    CableRecord,
    DeliveryError,
    HostRecord,
    HostStreamRecord,
    MemoryRecord,
    StateRecord,
)
from dagtrain.emission.memory import AXI_PREFIX, axi4_payloads
from dagtrain.emission.modules import ModuleLibrary, StreamModule, verilog_name
from hdl.convert.netlist import Direction, PortDecl
from hdl.dram.axi import FORWARD, Axi
from hdl.engine.weights.records import WORD_BITS
from hdl.link.ethernet.adapter import MAC_PREFIX
from hdl.link.format import LinkFormat
from hdl.signals import ClockReset
from hdl.simulate.models.dram import dram_model
from hdl.simulate.models.host import stream_player, stream_recorder
from hdl.simulate.models.link import lanes_between, link_switch, link_wire
from hdl.stream import Stream

# words that the switch holds between any two devices: more than is under way between them
SWITCH_WORDS = 4096
# of a START, of the RUN behind all of a load, and of the DUMP behind that
START_WORDS, RUN_WORDS, DUMP_WORDS = 2, 2, 1
# in which the rate of a cable is told in words
MOST_CYCLES = 1 << 12
# ports of a device of another clock than the network's, by what they are connected to
NETWORK_CLOCK = {"net_clk": "clk", "net_rst": "rst"}


def design_bench(
    devices: Sequence[DeliveredDevice],
    library: ModuleLibrary,
    options: BenchOptions,
    folder: Path,
    traced: Sequence[Traced] = (),
    probed: Probes | None = None,
    share: Share | None = None,
    values: bool = True,
    beside: str = "",
) -> Bench:
    """The bench of a whole cluster, which will run in ``folder``; it writes the beats of streams that are ``traced``,
    and counts what is ``probed``.

    ``share``: the bench has these of the devices, and other programs the rest.
    ``values`` False: it writes none, neither metrics nor weights nor state.
    ``beside``: further items of its outermost module.
    Raises `DeliveryError` where the manifests don't fit together."""
    assembly = Assembly(CLUSTER, "All FPGAs with their host and network")
    played: dict[str, str] = {}
    recorded: dict[str, Recording] = {}
    here = list(devices) if share is None else [devices[place] for place in share.here]
    lanes = lane_ports(devices, share)
    dumps = add_cluster(assembly, devices, library, options, folder, share)
    if not values:
        dumps = []
    players = [host.node for device in devices for host in device.manifest.host_ports if host.direction is Direction.IN]
    for device in here:
        clk = clock_of(device)
        for host in device.manifest.host_ports:
            if host.direction is Direction.IN:
                number = players.index(host.node)
                played[host.node] = _add_player(assembly, library, host, options, number, clk)
            else:
                path = _add_recorder(assembly, library, host, options, clk)
                recorded[host.node] = recording(assembly, device, host, options, path)
        recorded |= {stream.node: heard(device, stream, options) for stream in results_of(device)}
    loads = {
        device.manifest.device: _add_loader(assembly, library, device, device.manifest.state, options)
        for device in here
        if device.manifest.state and _loaded_by_port(device)
    }
    ours = {device.manifest.device for device in here}
    macs = tuple(mac for name, mac in mac_ports(devices).items() if name in ours)
    pins = [port for mac in macs for port in mac.ports] + [port for lane in lanes or () for port in lane.ports]
    weights = weight_logs(here)
    watching = watch(here, options.reads) if options.hold_cycles else Watch()
    # it is dumped behind the last batch
    states = state_logs(here) if options.results is None else ()
    text = outermost_text(
        here, recorded, weights, dumps, options, watching, pins, traced, probed, states,
        shared=share is not None, values=values, beside=beside,
    )  # fmt: skip
    texts = {CLUSTER: assembly.module().to_verilog(), BENCH: text}
    modules = bench_modules(assembly, here)
    bench = Bench(
        texts,
        played,
        recorded,
        tuple(dumps),
        modules,
        weights,
        traced=tuple(traced),
        loads=loads,
        states=states,
        macs=macs,
        lanes=lanes,
    )
    return watched_bench(bench, here, watching)


def lane_ports(devices: Sequence[DeliveredDevice], share: Share | None) -> tuple[LanePort, ...] | None:
    """All lanes of words between devices that a bench has and those that it has not."""
    if share is None:
        return None
    records = [device.manifest.network for device in devices]
    bits = max((record.format.payload_bits for record in records if record), default=0)
    if not bits:
        return ()
    between = lanes_between(share.here, len(devices))
    leaving = [LanePort(source=own, target=other, leaves=True, bits=bits) for own, other in between]
    return (*leaving, *(LanePort(source=other, target=own, leaves=False, bits=bits) for own, other in between))


def watched_bench(bench: Bench, devices: Sequence[DeliveredDevice], watching: Watch) -> Bench:
    """The bench with watchers, of which its outermost module has instances, and gates in the streams of all tops."""
    if not watching.watched:
        return bench
    return replace(
        bench,
        texts={**bench.texts, WATCHERS.stem: WATCHERS.read_text()},
        watched=tuple(watching.watched),
        tops={device.manifest.top: _top_with_gates(device) for device in devices},
        loaded=watching.files,
    )


def recording(
    assembly: Assembly, device: DeliveredDevice, host: HostRecord, options: BenchOptions, path: str = ""
) -> Recording:
    """What is kept of a host's stream of metrics; ``path`` is that of the array that keeps it in Verilog."""
    beats, net = host.beats_per_frame * options.recorded_frames, f"dut.{host_net(assembly, host)}"
    return Recording(_beats_file(host), beats, net, device.manifest.device, path, clock_of(device))


def results_of(device: DeliveredDevice) -> list[HostStreamRecord]:
    """Streams of metrics that it sends to the host in frames."""
    port = device.manifest.ethernet
    return [stream for stream in port.host_streams if stream.carries == "result"] if port else []


def loaded_by_frames(device: DeliveredDevice) -> bool:
    """Whether its state comes from the host in frames."""
    port = device.manifest.ethernet
    return port is not None and any(stream.carries == "load" for stream in port.host_streams)


def _loaded_by_port(device: DeliveredDevice) -> bool:
    """Whether a bench itself loads its state."""
    return device.manifest.state is not None and not loaded_by_frames(device)


def state_logs(devices: Sequence[DeliveredDevice]) -> tuple[StateLog, ...]:
    """What leaves the chains of devices that a bench loads: all that is handed on, and the state behind the last batch,
    as many words of it as were loaded in a round."""
    found = []
    for device in devices:
        state = device.manifest.state
        if state is not None and _loaded_by_port(device):
            top, states = device.manifest.top, state.load_words // state.rounds - START_WORDS
            words = state.rounds * START_WORDS + RUN_WORDS + states + DUMP_WORDS
            net = f"dut.{top}_{state.dump}"
            file_name = f"{top}.{state.dump}.words.txt"
            found.append(StateLog(file_name, device.manifest.device, state, words, net, clock_of(device)))
    return tuple(found)


def heard(device: DeliveredDevice, stream: HostStreamRecord, options: BenchOptions) -> Recording:
    """What the host on the network keeps of metrics; they are counted where they leave for the port."""
    role = sender_role(host_label(stream.carries))
    # beside its credits
    (left,) = (one for one in device.manifest.streams if one.reader == role and one.writer != NETWORK_ROLE)
    beats = stream.elements * stream.element_bits // left.payload_bits * options.recorded_frames
    net = f"dut.fpga_{device.manifest.top}.{left.net}"
    return Recording(_beats_file(stream), beats, net, device.manifest.device, "", clock_of(device))


def _beats_file(host: HostRecord | HostStreamRecord) -> str:
    return f"{verilog_name(host.node)}.beats.mem"


def weight_logs(devices: Sequence[DeliveredDevice]) -> tuple[WeightLog, ...]:
    """All streams of new weights."""
    return tuple(
        WeightLog(
            f"{verilog_name(record.edge)}.weights.txt",
            device.manifest.device,
            record.edge,
            record.beats_per_batch,
            f"dut.fpga_{device.manifest.top}.{record.net}",
            clock_of(device),
            device.manifest.state.rounds if device.manifest.state else 0,
        )
        for device in devices
        for record in device.manifest.weights
    )


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
    share: Share | None = None,
) -> list[Dump]:
    """All FPGAs with their memories and the network; returns the state that can be dumped below an instance `dut`.

    Images are read where they were delivered, by paths from ``folder``, in which the simulation runs.
    ``share``: see `design_bench`."""
    assembly.port("network_error", 1, Direction.OUT)
    assembly.port("memory_error", 1, Direction.OUT)
    dumps: list[Dump] = []
    macs = mac_ports(devices)
    here = list(devices) if share is None else [devices[place] for place in share.here]
    for device in here:
        if clock_of(device) != "clk":
            assembly.port(clock_of(device), 1, Direction.IN)
        _add_device(assembly, device, folder, macs.get(device.manifest.device))
        dumps += _memory_dumps(device)
        for memory in device.manifest.memory or ():
            path = _add_memory(assembly, library, device, memory, options, folder)
            dumps += _ring_dumps(device, memory, path)
    if len(devices) > 1 and not macs:
        _add_network(assembly, library, devices, options, share)
    flags = [f"{d.manifest.top}_net_error" for d in here if d.manifest.network or d.manifest.ethernet]
    flags += [f"|{device.manifest.top}_net_faults" for device in here if device.manifest.ethernet]
    assembly.assigns.append(("network_error", " | ".join(flags) or "1'b0"))
    memory_flags = [f"{device.manifest.top}_dram_error" for device in here if device.manifest.memory]
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
            first, last = region.base, region.base + held.used(memory.format) - 1
            name = device.manifest.device
            found.append(Dump(name, held.node, held.image, file_name, path, first, last, held, memory.format))
    return found


def mac_ports(devices: Sequence[DeliveredDevice]) -> dict[str, MacPort]:
    """Device -> its MAC, in the order of the switch's ports; none where words go over the network as they are."""
    records = [(device.manifest.device, device.manifest.ethernet) for device in devices]
    framed, clocks = [(name, record) for name, record in records if record is not None], mac_clocks(devices)
    return {
        name: MacPort(
            number=number,
            prefix=mac_prefix(number),
            kind=Mac(record.mac_port),
            word_bits=record.mac_word_bits or record.word_bits,
            takes_at=clocks[name][0],
            gives_at=clocks[name][1],
        )
        for number, (name, record) in enumerate(framed)
    }


def _add_device(assembly: Assembly, device: DeliveredDevice, folder: Path, mac: MacPort | None) -> None:
    """An FPGA; the ports of its MAC become ports of the module around it."""
    manifest = device.manifest
    ports = tuple(PortDecl(port.name, port.width, port.direction) for port in manifest.ports)
    connections = {"clk": clock_of(device), "rst": "rst", **NETWORK_CLOCK}
    connections = {port.name: connections[port.name] for port in ports if port.name in connections}
    if mac is not None:
        for pin in mac.ports:
            name = MAC_PREFIX + pin.name.removeprefix(f"{mac.prefix}_")
            connections[name] = assembly.port(pin.name, pin.width, pin.direction)
        del connections[f"{MAC_PREFIX}reset"]
        reset = assembly.wire(_reset_of(device))
        connections |= {name: reset for name in ("rst", "net_rst") if name in connections}
        assembly.assigns.append((reset, f"rst | {mac.reset}"))
    for port in ports:
        if port.name in connections:
            continue
        connections[port.name] = assembly.wire(f"{manifest.top}_{port.name}", port.width)
    parameters = {image.parameter: _path_from(folder, device.folder / image.file) for image in manifest.images}
    assembly.raw_instance(manifest.top, ports, f"fpga_{manifest.top}", connections, parameters)


def _reset_of(device: DeliveredDevice) -> str:
    """The net that resets an FPGA."""
    return f"{device.manifest.top}_rst" if device.manifest.ethernet else "rst"


def _memory_reset(assembly: Assembly, device: DeliveredDevice) -> str:
    """The net that resets what is behind an FPGA's memory ports: with it, and when the host has it begin anew."""
    own = _reset_of(device)
    if not device.manifest.ethernet:
        return own
    net = f"{device.manifest.top}_memory_rst"
    if net not in {wire.name for wire in assembly.wires}:
        assembly.assigns.append((assembly.wire(net), f"{own} | {device.manifest.top}_net_reset"))
    return net


def _path_from(folder: Path, file: Path) -> str:
    """The path of a file as Verilog in a simulation in ``folder`` writes it.  Raises `DeliveryError` for odd ones."""
    path = os.path.relpath(file.resolve(), folder.resolve())
    if not path.isprintable() or '"' in path or "\\" in path:
        raise DeliveryError(f"{path!r} cannot be written in Verilog", "choose another --out or name of the device")
    return path


def _add_memory(
    assembly: Assembly,
    library: ModuleLibrary,
    device: DeliveredDevice,
    memory: MemoryRecord,
    bench: BenchOptions,
    folder: Path,
) -> str:
    """The memory behind an AXI4 port of a device; returns the path of its array below the bench."""
    form, top = memory.format, device.manifest.top
    model = bench.memory.behind(device.manifest.device, form.data_bits, device.manifest.clock_mhz * 10**6)
    name = f"memory{memory.port.removeprefix(AXI_PREFIX)}"
    options = {name: getattr(model, name) for name in ("words", "cycles", "stall_256", "seed", "stuck")}

    def build(domain: ClockReset, streams: Mapping[str, Stream]) -> object:
        port = Axi.of(streams, "m")
        return dram_model(domain, port, form=form, depth=memory.words, latency=model.latency_cycles, **options)

    module = library.block(f"{BENCH}_memory", f"{form} {memory.words} {model}", form.ports("m"), build)
    byte_bits = (form.data_bits // 8).bit_length() - 1
    nets = {}
    for channel, parts in axi4_payloads(form).items():
        net = assembly.stream(f"{top}_{name}_{channel}", form.widths[channel])
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
    clock = {"clk": clock_of(device), "rst": _memory_reset(assembly, device)}
    assembly.instance(module, f"{name}_{top}", nets, clock, parameters={image.parameter: contents})
    return f"dut.{name}_{top}.{image.memory}"


def host_net(assembly: Assembly, host: HostRecord) -> str:
    """The prefix of a host port's wires in the bench."""
    return next(wire.name.removesuffix("_valid") for wire in assembly.wires if wire.name.endswith(f"_{host.net}_valid"))


def _add_player(
    assembly: Assembly, library: ModuleLibrary, host: HostRecord, options: BenchOptions, index: int, clk: str
) -> str:
    """Returns the file of beats that it offers at the clock ``clk``."""
    beats, file_name = host.beats_per_frame * options.frames, _beats_file(host)
    seed = (options.seed * 7919 + index * 104729) & 0xFFFF
    module = _player(library, beats, host.payload_bits, options, seed)
    parameters = {module.verilog.images["beats"].parameter: file_name}
    name = f"player_{verilog_name(host.node)}"
    assembly.instance(module, name, {"y": host_net(assembly, host)}, {"clk": clk}, parameters=parameters)
    return file_name


def _player(library: ModuleLibrary, beats: int, bits: int, options: BenchOptions, seed: int) -> StreamModule:
    """What offers so many beats of so many bits."""
    return library.block(
        f"{BENCH}_player",
        f"{beats} {options.host_stall_256} {seed}",
        {"y": bits},
        lambda domain, streams: stream_player(
            domain, streams["y"], depth=beats, probability_256=options.host_stall_256, seed=seed
        ),
    )


def _add_loader(
    assembly: Assembly, library: ModuleLibrary, device: DeliveredDevice, state: StateRecord, options: BenchOptions
) -> str:
    """Loads a device's state, has it dumped behind the last batch, and takes what comes out at the end of its chain;
    returns the file of words."""
    top, clk = device.manifest.top, clock_of(device)
    words = state.load_words + RUN_WORDS + DUMP_WORDS
    module = _player(library, words, WORD_BITS, options, options.seed & 0xFFFF)
    file_name = f"{top}.{state.load}.mem"
    parameters = {module.verilog.images["beats"].parameter: file_name}
    assembly.instance(module, f"loader_{top}", {"y": f"{top}_{state.load}"}, {"clk": clk}, parameters=parameters)
    assembly.drain(f"{top}_{state.dump}")
    return file_name


def _add_recorder(assembly: Assembly, library: ModuleLibrary, host: HostRecord, options: BenchOptions, clk: str) -> str:
    """Returns the path of the array that keeps the beats, taken at the clock ``clk``."""
    beats = host.beats_per_frame * options.recorded_frames
    seed = (options.seed * 15485863 + 77) & 0xFFFF
    module = library.block(
        f"{BENCH}_recorder",
        f"{beats} {options.host_stall_256} {seed}",
        {"x": host.payload_bits},
        lambda domain, streams: stream_recorder(
            domain, streams["x"], depth=beats, probability_256=options.host_stall_256, seed=seed
        ),
    )
    name = f"recorder_{verilog_name(host.node)}"
    image = module.verilog.images["beats"]
    streams = {"x": host_net(assembly, host)}
    assembly.instance(module, name, streams, {"clk": clk}, parameters={image.parameter: ""})
    return f"dut.{name}.{image.memory}"


def _add_network(
    assembly: Assembly,
    library: ModuleLibrary,
    devices: Sequence[DeliveredDevice],
    bench: BenchOptions,
    share: Share | None,
) -> None:
    """A switch between the network ports of all devices, or the part of it that belongs to some."""
    records = [device.manifest.network for device in devices]
    forms = {record.format for record in records if record}
    if len(forms) != 1 or [record and record.device for record in records] != list(range(len(devices))):
        names = ", ".join(device.manifest.device for device in devices)
        raise DeliveryError(f"the manifests of {names} don't describe one network", f"run `{COMMAND}` again")
    (form,) = forms
    here = range(len(devices)) if share is None else share.here
    lanes = lane_ports(devices, share) or ()
    ends = [*(f"x{number}" for number in here), *(f"y{number}" for number in here), *(lane.net for lane in lanes)]
    if has_cables(devices):
        if share is not None:
            raise ValueError("words go over cables, which one bench has alone")
        _add_cables(assembly, library, devices, bench.network, form)
        return
    network = bench.network
    options = {
        "latency": network.latency_cycles,
        "rates": [(rate.numerator, rate.denominator) for rate in (link_carries(device, network) for device in devices)],
        "stall_256": network.stall_256,
        "seed": network.seed,
        "room": SWITCH_WORDS,
        **({} if share is None else {"here": tuple(here)}),
    }

    def build(domain: ClockReset, streams: Mapping[str, Stream]) -> object:
        xs, ys = [streams[f"x{number}"] for number in here], [streams[f"y{number}"] for number in here]
        sent = [streams[lane.net] for lane in lanes if lane.leaves]
        came = [streams[lane.net] for lane in lanes if not lane.leaves]
        return link_switch(domain, xs, ys, sent, came, form=form, **options)

    module = library.block(f"{BENCH}_switch", f"{form} {options}", dict.fromkeys(ends, form.payload_bits), build)
    nets = {}
    for number in here:
        nets[f"x{number}"], nets[f"y{number}"] = _port_streams(assembly, devices[number].manifest.top, form)
    for lane in lanes:
        nets[lane.net] = assembly.stream(f"{lane.net}_end", form.payload_bits)
        _end_lane(assembly, lane, nets[lane.net])
    assembly.instance(module, "network", nets)


def _end_lane(assembly: Assembly, lane: LanePort, net: str) -> None:
    """A lane's stream becomes ports of the module of all FPGAs; what leaves finds room there."""
    for port in lane.ports:
        assembly.port(port.name, port.width, port.direction)
        inside = f"{net}{port.name.removeprefix(lane.net)}"
        assembly.assigns.append((port.name, inside) if port.direction is Direction.OUT else (inside, port.name))
    if lane.leaves:
        assembly.drain(net)


def has_cables(devices: Sequence[DeliveredDevice]) -> bool:
    """Whether cables join the devices, and no switch."""
    records = [device.manifest.network for device in devices]
    return any(record is not None and record.cables is not None for record in records)


def _add_cables(
    assembly: Assembly,
    library: ModuleLibrary,
    devices: Sequence[DeliveredDevice],
    network: NetworkModel,
    form: LinkFormat,
) -> None:
    """The cables between the ports of devices, each direction with stalls of its own; `DeliveryError` where two
    manifests don't tell of the same ones."""
    ends = {
        (device.manifest.device, cable.port): (device, cable)
        for device in devices
        for cable in (device.manifest.network and device.manifest.network.cables) or ()
    }
    wrong = [
        f"{name}:{port}"
        for (name, port), (_, cable) in ends.items()
        if (cable.device, cable.device_port) not in ends
        or (other := ends[cable.device, cable.device_port][1]).device != name
        or other.device_port != port
    ]
    if wrong:
        told = f"no manifest tells of the other ends of cables at {', '.join(wrong)}"
        raise DeliveryError(told, f"run `{COMMAND}` again")
    streams = {
        end: _port_streams(assembly, device.manifest.top, form, f"_{cable.port}")
        for end, (device, cable) in ends.items()
    }
    for number, ((name, port), (device, cable)) in enumerate(ends.items()):
        rate = min(Fraction(network.words, network.cycles), words_carried(device, cable))
        options = {
            "latency": network.latency_cycles, "words": rate.numerator, "cycles": rate.denominator,
            "stall_256": network.stall_256, "seed": network.seed + number,
        }  # fmt: skip

        def build(domain: ClockReset, ways: Mapping[str, Stream], options: Mapping[str, int] = options) -> object:
            return link_wire(domain, ways["x"], ways["y"], **options)

        told = f"{form} {options}"
        module = library.block(f"{BENCH}_cable", told, dict.fromkeys("xy", form.payload_bits), build)
        nets = {"x": streams[name, port][0], "y": streams[cable.device, cable.device_port][1]}
        assembly.instance(module, f"cable_{device.manifest.top}_{port}", nets)


def link_carries(device: DeliveredDevice, network: NetworkModel) -> Fraction:
    """Words a cycle that a device sends to a switch, and gets from there, at most."""
    most, bits_per_s = Fraction(network.words, network.cycles), network.bits_per_s.get(device.manifest.device)
    return most if bits_per_s is None else min(most, _words_of(device, bits_per_s))


def words_carried(device: DeliveredDevice, cable: CableRecord) -> Fraction:
    """Words a cycle that a cable of a device carries each way."""
    return _words_of(device, cable.bits_per_s)


def _words_of(device: DeliveredDevice, bits_per_s: int) -> Fraction:
    manifest = device.manifest
    assert manifest.network is not None
    hz = round((manifest.network_mhz or manifest.clock_mhz) * 10**6)
    return cable_rate(bits_per_s, manifest.network.format.word_bits, hz).limit_denominator(MOST_CYCLES)


def _port_streams(assembly: Assembly, top: str, form: LinkFormat, port: str = "") -> tuple[str, str]:
    """The word streams (from, to) of a device's AXI4-Stream ports; ``port``: of a cable."""
    sent, received = f"{top}_net_tx{port}", f"{top}_net_rx{port}"
    leaving = assembly.stream(f"{top}_leaving{port}", form.payload_bits)
    arriving = assembly.stream(f"{top}_arriving{port}", form.payload_bits)
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
