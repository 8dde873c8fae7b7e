"""The top module of one FPGA: its layers, the FIFOs in front of them, network, memory and host ports."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dagtrain.emission.assembly import Assembly
from dagtrain.emission.cables import DeviceCables
from dagtrain.emission.ethernet import ANEW, DevicePort, EthernetNetwork, HostStream
from dagtrain.emission.links import Crossing, NetworkPort, link_words
from dagtrain.emission.memory import DeviceMemory, MemoryPort, fifo_regions
from dagtrain.emission.modules import ModuleLibrary, StreamModule, verilog_name
from dagtrain.emission.state import StateLink, links_of, rounds
from dagtrain.emission.stored import DramUse
from dagtrain.graph.ir import Graph, Node, PlacedGraph, is_delayed
from dagtrain.graph.stores import first_images
from dagtrain.schedule.buffers import REGISTER_BEATS, wide_beats
from hdl.convert.netlist import Direction, Identifier, Module
from hdl.engine.weights.access import chain_entry
from hdl.engine.weights.records import CHAIN_BITS, WORD_BITS
from hdl.layers.base import Layer
from hdl.layers.capabilities import recipe_of
from hdl.layers.storage import DUMP, LOAD, Ring
from hdl.layers.wiring.fork import Fork
from hdl.link.format import LinkFormat
from hdl.streams import bordering_adapter, queue
from hdl.tensor import Kind, Port

# streams of a device by which state is loaded and dumped, and what messages call what is behind them
STATE_LOAD, STATE_DUMP = "state_load", "state_dump"
STATE_ROLE = "state port"
# what messages call a width adapter begins with it
ADAPTER_ROLE = "adapter of "


@dataclass(frozen=True)
class ImageFile:
    """A memory image of one node: the file's name, its contents, and where the memory stands in the hierarchy."""

    node: str
    image: str
    words: tuple[int, ...]
    # bits a word
    width: int
    # Verilog path of the array below the device top
    path: str
    is_state: bool

    @property
    def file_name(self) -> str:
        """Name of the `$readmemh` file."""
        return f"{verilog_name(self.node)}.{self.image}.mem"

    @property
    def parameter(self) -> str:
        """The parameter of the device top that names the file."""
        return f"INIT_{verilog_name(self.node)}_{self.image}"


@dataclass(frozen=True)
class HostPort:
    """A stream of the device top that belongs to the host."""

    # the host node of the graph
    node: str
    # prefix of the port's three signals
    net: str
    port: Port
    # seen from the device
    direction: Direction


@dataclass(frozen=True)
class WeightStream:
    """New weights, once a batch, from an update to an engine on any device."""

    edge: str
    # prefix of the nets at the producer's end
    net: str
    beats: int


@dataclass(frozen=True)
class DeviceDesign:
    """Everything about one FPGA's Verilog but the shared modules' texts."""

    name: str
    top: Module
    nodes: tuple[str, ...]
    images: tuple[ImageFile, ...]
    host_ports: tuple[HostPort, ...]
    # streams that leave and enter over the network
    egress: tuple[Crossing, ...]
    ingress: tuple[Crossing, ...]
    # words on the network, and the device's number there
    form: LinkFormat
    number: int
    # that its updates send
    weights: tuple[WeightStream, ...]
    # streams inside the top: net, who writes it, who reads it, payload bits
    streams: tuple[tuple[str, str, str, int], ...]
    # parts that give what they get -> beats that they hold
    copies: Mapping[str, int]
    # words that FIFOs of receivers are asked for, by edge
    link_words: Mapping[str, int]
    # what lies in DRAM, by channel
    memories: tuple[DeviceMemory, ...] = ()
    # nodes whose state is loaded and dumped, in the chain's order
    links: tuple[StateLink, ...] = ()
    # frames a batch, and times that state is loaded
    batch: int = 1
    rounds: int = 1
    # the Ethernet port; None: words go over the network as they are
    port: DevicePort | None = None
    # None: all devices hang on one switch, or this one is alone
    cables: DeviceCables | None = None

    @property
    def has_network(self) -> bool:
        """Whether the top has a network port that takes words."""
        return bool(self.egress or self.ingress or self.cables) and self.port is None


def design_device(
    name: str,
    graph: PlacedGraph,
    fifo_beats: Mapping[str, int],
    crossings: Sequence[Crossing],
    receiver_beats: Mapping[str, int],
    library: ModuleLibrary,
    form: LinkFormat,
    number: int,
    dram: DramUse | None = None,
    own_clock: bool = False,
    ethernet: DevicePort | None = None,
    cables: DeviceCables | None = None,
) -> DeviceDesign:
    """The design of device ``name``, the ``number``th of the network.

    ``fifo_beats`` are depths by edge, ``receiver_beats`` those of the FIFOs behind receivers, by crossing edge.
    ``own_clock``: its clock is another than the network's.  ``ethernet``: its port, where the network is Ethernet.
    ``cables``: what joins it to others, where there is no switch."""
    use = dram or DramUse()
    nodes = [node for node in graph.nodes if graph.placed[node.name] == name]
    assembly = Assembly(verilog_name(name), f"FPGA {name} of {graph.name}")
    if ethernet is not None:
        assembly.reset = assembly.wire(ANEW)
    ingress = tuple(crossing for crossing in crossings if crossing.target_device == name)
    egress = tuple(crossing for crossing in crossings if crossing.source_device == name)
    images: list[ImageFile] = []
    host_ports: list[HostPort] = []
    host = _HostStreams(ethernet)
    memory = MemoryPort(assembly, library, use, use.channels.get(name, 1))
    _declare_nets(assembly, nodes)
    for node in graph.circuits:
        if graph.placed[node.name] != name:
            continue
        if node.layer.sources and (node.layer.sinks or node.layer.is_store):
            images += _add_layer(assembly, graph, node, library)
        elif not host.take(node):
            host_ports += _add_host_port(assembly, node)
    stored = stored_edges(graph, use)
    for node in nodes:
        units = memory.working(graph.busy(node.name))
        for port in _streamed_sinks(node):
            edge = node.inputs[port.name]
            producer, source = graph.producers[edge]
            arrives = graph.placed[producer.name] != name
            if edge in stored:
                net = assembly.stream(arrived_net(edge), port.payload_bits) if arrives else produced_net(edge)
                lanes = port.lanes if arrives else source.lanes
                _add_stored_channel(assembly, graph, node, port, net, lanes, fifo_beats[edge], units)
            elif not arrives:
                _add_channel(assembly, graph, edge, port, fifo_beats[edge], library)
        _add_outside(assembly, graph, node, units)
    links = _add_chain(assembly, [node for node in graph.circuits if graph.placed[node.name] == name], library, host)
    if ethernet is not None or egress or ingress or cables:
        network = host.network(assembly, library, form, own_clock, cables)
        _add_network_port(network, egress, ingress, receiver_beats, stored)
    stores = memory.finish()
    names = tuple(node.name for node in nodes)
    return DeviceDesign(
        name=name,
        top=assembly.module(),
        nodes=names,
        images=tuple(images),
        host_ports=tuple(host_ports),
        egress=egress,
        ingress=ingress,
        form=form,
        number=number,
        weights=_weight_streams(graph, name),
        streams=tuple(assembly.ends()),
        copies=dict(assembly.copies),
        link_words={c.edge: link_words(c, receiver_beats[c.edge], form.word_bits) for c in (*egress, *ingress)},
        memories=stores,
        links=links_of(links, graph),
        batch=graph.recipe.batch,
        rounds=rounds(graph.recipe.staleness),
        port=ethernet,
        cables=cables,
    )


def _weight_streams(graph: PlacedGraph, device: str) -> tuple[WeightStream, ...]:
    """New weights that leave nodes of a device."""
    return tuple(
        WeightStream(edge, produced_net(edge), source.beats)
        for edge, producer, source, consumer, sink in graph.streams
        if graph.placed[producer.name] == device
        and is_delayed(consumer.layer, sink)
        and sink.tensor.kind is Kind.WEIGHT
    )


class _HostStreams:
    """The streams of the host that a device's Ethernet port has, and the nets that they are on."""

    def __init__(self, port: DevicePort | None) -> None:
        self._port = port
        self._streams = port.streams if port else ()
        self.nets: list[tuple[HostStream, str]] = []

    def take(self, node: Node) -> bool:
        """Whether it has that of a host node, which then has a net."""
        found = [stream for stream in self._streams if stream.node == node.name]
        for stream in found:
            edges = node.outputs if stream.arrives else node.inputs
            (edge,) = edges.values()
            self.nets.append((stream, produced_net(edge) if stream.arrives else consumed_net(edge)))
        return bool(found)

    def take_state(self, carries: str, net: str) -> bool:
        """Whether it has the one that loads or dumps state, which then is on this net."""
        found = [stream for stream in self._streams if stream.carries == carries]
        self.nets += [(stream, net) for stream in found]
        return bool(found)

    def network(
        self,
        assembly: Assembly,
        library: ModuleLibrary,
        form: LinkFormat,
        own_clock: bool,
        cables: DeviceCables | None,
    ) -> NetworkPort:
        """The port under construction, with the ends of all that has a net."""
        if self._port is None:
            return NetworkPort(assembly, library, form, own_clock, cables)
        network = EthernetNetwork(assembly, library, form, port=self._port)
        for stream, net in self.nets:
            network.add_host(stream, net)
        return network


def produced_net(edge: str) -> str:
    """The net at the producer's end of an edge."""
    return f"p_{verilog_name(edge)}"


def _source_net(node: Node, port: Port) -> str:
    """The net at a source of a node; of a stash without an edge, one that nobody reads."""
    edge = node.outputs.get(port.name)
    return produced_net(edge) if edge else f"n_{verilog_name(node.name)}_{port.name}"


def consumed_net(edge: str) -> str:
    """The net at the consumer's end of an edge."""
    return f"c_{verilog_name(edge)}"


def adapted_net(edge: str) -> str:
    """The net behind the width adapter of an edge."""
    return f"a_{verilog_name(edge)}"


def stored_net(region: str) -> str:
    """The net in front of a region's DRAM unit."""
    return f"t_{verilog_name(region)}"


def fetched_net(region: str) -> str:
    """The net behind a region's DRAM unit."""
    return f"f_{verilog_name(region)}"


def arrived_net(edge: str) -> str:
    """The net behind the receiver of an edge that then goes to DRAM."""
    return f"i_{verilog_name(edge)}"


def outside_net(node: str, port: Port) -> str:
    """The net at a port of a layer that leads outside."""
    return f"s_{verilog_name(node)}_{port.name}"


def _streamed_sinks(node: Node) -> tuple[Port, ...]:
    """Sinks to which a stream leads."""
    return tuple(port for port in node.layer.sinks if port.name not in node.layer.borrowed)


def stored_edges(graph: Graph, use: DramUse) -> frozenset[str]:
    """Edges whose data go through DRAM."""
    outside = {node.inputs[port] for node in graph.nodes for port in (*node.layer.replayed, *node.layer.parked)}
    return use.edges | outside


def stored_streams(node: Node, fifos: Mapping[str, int]) -> list[str]:
    """The regions of a node in DRAM, whose FIFOs in front of some sinks lie there, as they are priced.

    ``fifos``: sink -> memory channels that its stream is dealt out over."""
    sinks = [port.name for port in node.layer.sinks]
    outside = {*fifos, *node.layer.replayed, *node.layer.parked}
    edges = [
        region for sink in sinks if sink in outside for region in fifo_regions(node.inputs[sink], fifos.get(sink, 1))
    ]
    rings = [ring_region(node.name, ring) for ring in node.layer.rings]
    return [*edges, *rings, *(fetched_region(node.name, port) for port in node.layer.fetched)]


def fetched_region(node: str, port: Port) -> str:
    """The region of what a layer fetches through a port."""
    return f"{node}.{port.name}"


def ring_region(node: str, ring: Ring) -> str:
    """The region of what a layer keeps outside."""
    return f"{node}.{ring.name}"


def chain_net(node: str, port: Port) -> str:
    """The net at one end of a link of the chain by which state is loaded and dumped."""
    return f"{port.name}_{verilog_name(node)}"


def instance_name(node: str) -> str:
    """The instance of a node's layer."""
    return f"u_{verilog_name(node)}"


def _outside(layer: Layer) -> list[Port]:
    """Ports of a layer that lead to DRAM, beside those of the graph."""
    return [*(port for ring in layer.rings for port in (ring.back, ring.out)), *layer.fetched]


def _declare_nets(assembly: Assembly, nodes: Sequence[Node]) -> None:
    for node in nodes:
        for port in node.layer.sources:
            net = assembly.stream(_source_net(node, port), port.payload_bits)
            if port.name not in node.outputs:
                assembly.drain(net)
        for port in _streamed_sinks(node):
            assembly.stream(consumed_net(node.inputs[port.name]), port.payload_bits)
        for port in _outside(node.layer):
            assembly.stream(outside_net(node.name, port), port.payload_bits)


def _add_layer(assembly: Assembly, graph: Graph, node: Node, library: ModuleLibrary) -> list[ImageFile]:
    """The instance of one of `Graph.circuits`."""
    layer = node.layer
    module = library.layer(layer)
    streams: dict[str, str] = {}
    for part in (graph.by_name[node.name], graph.borrowers.get(node.name)):
        if part is not None:
            streams |= {port.name: _source_net(part, port) for port in part.layer.sources}
            streams |= {port.name: consumed_net(part.inputs[port.name]) for port in _streamed_sinks(part)}
    streams |= {port.name: outside_net(node.name, port) for port in _outside(layer)}
    if layer.accessed:
        streams |= _link_nets(assembly, node)
    contents = first_images(graph, graph.by_name[node.name])
    files = []
    for memory in layer.memories():
        image = module.verilog.images[memory.name]
        path = f"{instance_name(node.name)}.{image.memory}"
        words = tuple(contents[memory.name])
        files.append(ImageFile(node.name, memory.name, words, memory.width, path, memory.is_state))
        assembly.parameters[files[-1].parameter] = ""
    chosen = {module.verilog.images[file.image].parameter: Identifier(file.parameter) for file in files}
    assembly.instance(module, instance_name(node.name), streams, parameters=chosen, role=node.name)
    if isinstance(layer, Fork):
        assembly.copies[node.name] = 0
    return files


def _link_nets(assembly: Assembly, node: Node) -> dict[str, str]:
    """The nets at both ends of the link of the chain that a node has, by port."""
    return {port.name: assembly.stream(chain_net(node.name, port), port.payload_bits) for port in (LOAD, DUMP)}


def _add_host_port(assembly: Assembly, node: Node) -> list[HostPort]:
    ports = []
    for port in node.layer.sources:
        net = assembly.stream_port(f"host_{verilog_name(node.name)}", port.payload_bits, Direction.IN)
        assembly.writers[net] = f"host ({node.name})"
        assembly.connect(source=net, target=produced_net(node.outputs[port.name]))
        ports.append(HostPort(node.name, net, port, Direction.IN))
    for port in node.layer.sinks:
        net = assembly.stream_port(f"host_{verilog_name(node.name)}", port.payload_bits, Direction.OUT)
        assembly.readers[net] = f"host ({node.name})"
        assembly.connect(source=consumed_net(node.inputs[port.name]), target=net)
        ports.append(HostPort(node.name, net, port, Direction.OUT))
    return ports


def _add_network_port(
    port: NetworkPort,
    egress: Sequence[Crossing],
    ingress: Sequence[Crossing],
    beats: Mapping[str, int],
    stored: frozenset[str],
) -> None:
    """Both ends of all crossing streams of this device; the receiver's FIFO is the one in front of the consumer."""
    for crossing in egress:
        words = link_words(crossing, beats[crossing.edge], port.form.word_bits)
        port.add_egress(crossing, produced_net(crossing.edge), words)
    for crossing in ingress:
        words = link_words(crossing, beats[crossing.edge], port.form.word_bits)
        net = arrived_net(crossing.edge) if crossing.edge in stored else consumed_net(crossing.edge)
        port.add_ingress(crossing, net, words)
    port.finish()


def _add_channel(
    assembly: Assembly, graph: Graph, edge: str, sink: Port, depth_beats: int, library: ModuleLibrary
) -> None:
    """What lies on an edge within a device: a width adapter where lanes differ, then the FIFO, of so many beats of the
    sink; or the FIFO first, of beats of the producer (`dagtrain.schedule.buffers.wide_beats`)."""
    source = graph.producers[edge][1]
    net, end = produced_net(edge), consumed_net(edge)
    wide = wide_beats(graph, edge, source, sink, depth_beats)
    if wide is not None:
        waiting = assembly.stream(adapted_net(edge), source.payload_bits)
        _add_fifo(assembly, library, edge, (net, waiting), source, wide)
        _add_adapter(assembly, library, edge, (waiting, end), source, sink)
        return
    if source.lanes != sink.lanes:
        adapted = assembly.stream(adapted_net(edge), sink.payload_bits)
        _add_adapter(assembly, library, edge, (net, adapted), source, sink)
        net = adapted
    _add_fifo(assembly, library, edge, (net, end), sink, depth_beats)


def _add_adapter(
    assembly: Assembly, library: ModuleLibrary, edge: str, nets: tuple[str, str], source: Port, sink: Port
) -> None:
    adapter = adapter_module(library, source.lanes, sink.lanes, source.tensor.fixed.width)
    role = f"{ADAPTER_ROLE}{edge}"
    assembly.instance(adapter, f"adapt_{verilog_name(edge)}", {"x": nets[0], "y": nets[1]}, role=role)


def _add_fifo(
    assembly: Assembly, library: ModuleLibrary, edge: str, nets: tuple[str, str], port: Port, depth: int
) -> None:
    _add_queue(assembly, library, f"fifo_{verilog_name(edge)}", nets, port.payload_bits, depth, f"FIFO of {edge}")


def _add_stored_channel(
    assembly: Assembly,
    graph: Graph,
    node: Node,
    sink: Port,
    net: str,
    lanes: int,
    depth_beats: int,
    memory: MemoryPort,
) -> None:
    """An edge whose data go through DRAM, from ``net`` of that many lanes on."""
    edge = node.inputs[sink.name]
    bits = lanes * sink.tensor.fixed.width
    nets = _between_queues(assembly, memory, edge, (net, bits), (consumed_net(edge), sink.payload_bits))
    recipe = recipe_of(node.layer, graph.recipe)
    if sink.name in node.layer.replayed:
        version0 = first_images(graph, node)[sink.name]
        memory.add_weights(node.name, edge, lanes, sink, recipe, version0, nets)
    elif sink.name in node.layer.parked:
        memory.add_parked(edge, lanes, sink, node.layer.parked[sink.name], recipe.batch, nets)
    else:
        memory.add_fifo(edge, lanes, sink, depth_beats, nets)


def _add_outside(assembly: Assembly, graph: Graph, node: Node, memory: MemoryPort) -> None:
    """What a layer keeps outside, and what it fetches from there, which nobody writes."""
    for ring in node.layer.rings:
        out = outside_net(node.name, ring.out), ring.out.payload_bits
        back = outside_net(node.name, ring.back), ring.back.payload_bits
        nets = _between_queues(assembly, memory, ring_region(node.name, ring), out, back)
        preloaded = first_images(graph, node)[ring.name] if ring.preload and not ring.loaded else ()
        memory.add_ring(node.name, ring, preloaded, nets)
    for port in node.layer.fetched:
        region = fetched_region(node.name, port)
        net = _behind_queue(assembly, memory, region, (outside_net(node.name, port), port.payload_bits))
        if node.layer.fetches_loaded:
            words = len(node.layer.state_words(node.layer.start(graph.initial(node))))
            memory.add_loaded(node.name, region, port, words, {"y": net, **_link_nets(assembly, node)})
        else:
            memory.add_constant(node.name, region, port, first_images(graph, node)[port.name], net)


def _add_chain(assembly: Assembly, circuits: Sequence[Node], library: ModuleLibrary, host: _HostStreams) -> list[Node]:
    """The chain by which state is loaded and dumped, from one port of the device to another or streams of the host,
    through all nodes that it returns; none where no node is a link of it."""
    links = [node for node in circuits if node.layer.is_link]
    if not links:
        return links
    over_network = host.take_state("load", STATE_LOAD) and host.take_state("dump", STATE_DUMP)
    for net, way in ((STATE_LOAD, Direction.IN), (STATE_DUMP, Direction.OUT)):
        if over_network:
            assembly.stream(net, WORD_BITS)
        else:
            assembly.stream_port(net, WORD_BITS, way)
    entry, leave = STATE_LOAD, STATE_DUMP
    marked = chain_net(links[0].name, LOAD)
    module = library.block(
        "chain_entry",
        "",
        {"x": WORD_BITS, "y": CHAIN_BITS},
        lambda domain, streams: chain_entry(domain, streams["x"], streams["y"]),
    )
    assembly.instance(module, "state_entry", {"x": entry, "y": marked}, role=STATE_ROLE)
    for before, after in itertools.pairwise(links):
        assembly.connect(source=chain_net(before.name, DUMP), target=chain_net(after.name, LOAD))
    last = chain_net(links[-1].name, DUMP)
    assembly.readers[last] = STATE_ROLE
    assembly.assigns += [
        (f"{leave}_valid", f"{last}_valid"),
        (f"{leave}_payload", f"{last}_payload[{WORD_BITS - 1}:0]"),
        (f"{last}_ready", f"{leave}_ready"),
    ]
    return links


def _between_queues(
    assembly: Assembly, memory: MemoryPort, what: str, source: tuple[str, int], target: tuple[str, int]
) -> tuple[str, str]:
    """Small queues behind a net and in front of another (name, payload bits); returns the nets between them."""
    to_store = assembly.stream(stored_net(what), source[1])
    nets, name = (source[0], to_store), f"store_{verilog_name(what)}"
    _add_queue(assembly, memory.library, name, nets, source[1], REGISTER_BEATS, f"queue to DRAM of {what}")
    return to_store, _behind_queue(assembly, memory, what, target)


def _behind_queue(assembly: Assembly, memory: MemoryPort, what: str, target: tuple[str, int]) -> str:
    """A small queue in front of a net (name, payload bits); returns the net in front of that."""
    from_store = assembly.stream(fetched_net(what), target[1])
    nets, name = (from_store, target[0]), f"fetch_{verilog_name(what)}"
    _add_queue(assembly, memory.library, name, nets, target[1], REGISTER_BEATS, f"queue from DRAM of {what}")
    return from_store


def _add_queue(
    assembly: Assembly,
    library: ModuleLibrary,
    name: str,
    nets: tuple[str, str],
    payload_bits: int,
    depth: int,
    role: str,
) -> None:
    """A FIFO of ``depth`` beats between two nets."""
    source, target = nets
    assembly.instance(queue_module(library, payload_bits, depth), name, {"x": source, "y": target}, role=role)
    assembly.copies[role] = depth


def queue_module(library: ModuleLibrary, payload_bits: int, depth: int) -> StreamModule:
    """A FIFO of ``depth`` beats."""
    return library.block(
        "queue",
        f"{depth}",
        {"x": payload_bits, "y": payload_bits},
        lambda domain, streams: queue(domain, streams["x"], streams["y"], depth=depth),
    )


def adapter_module(library: ModuleLibrary, lanes_in: int, lanes_out: int, element_bits: int) -> StreamModule:
    """A converter from ``lanes_in`` to ``lanes_out`` elements a beat."""
    return library.block(
        "width_adapter",
        f"{element_bits}",
        {"x": lanes_in * element_bits, "y": lanes_out * element_bits},
        lambda domain, streams: bordering_adapter(domain, streams["x"], streams["y"], element_bits=element_bits),
    )
