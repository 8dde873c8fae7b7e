"""The control of a whole cluster: what is left of delivered Verilog, and of the bench around it, without arithmetic.

A word of the network has data or credits in the same bits, and a flag says which; who takes words for credits looks
at it first.  So what a sender gets of data is cut off: it is in no word that anybody reads as anything else.  Nothing
else is taken for granted: all that the bench counts stays, with all that it depends on, and where that reaches the
payload of a stream that a layer reads, the cluster is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dagtrain.cosim.parts import BENCH, CLUSTER, Bench
from dagtrain.emission.delivered import DeliveredDevice
from dagtrain.emission.device import chain_net
from dagtrain.emission.ethernet import host_label
from dagtrain.emission.links import compressor_role, sender_role
from dagtrain.emission.manifest import StreamRecord
from hdl.analysis.dataflow import EVERY_BIT
from hdl.convert.control import ControlSlicer, Solution
from hdl.convert.netlist import Direction
from hdl.convert.reader import ReadModule
from hdl.errors import DagtrainError
from hdl.layers.storage import DUMP, LOAD

# what the outermost module names inside the cluster, and which bits
_BELOW = re.compile(r"\bdut\.([\w.]+)(?:\[(\d+):(\d+)\])?")
# a port of the outermost module that it hands on
_PASSED = re.compile(r"^    \.(\w+)\(\1\),\n", re.MULTILINE)
DEPENDENT = "control depends on data, so the cluster cannot be simulated without"
_SENDER = sender_role("")
# what is sent to the host of a chain's end
_DUMPS = sender_role(host_label("dump"))
# in circuits with a link of a chain, what it sends of its own state (`hdl.engine.weights.access.state_link`)
_LOADED, _GIVEN = f"{LOAD.name}_payload", re.compile("given_payload$")


class DataDependentError(DagtrainError):
    """Control that reads data, so that it cannot be simulated without."""


@dataclass(frozen=True)
class Control:
    """The slice of a bench with its FPGAs."""

    # module -> Verilog
    texts: Mapping[str, str]
    slicer: ControlSlicer
    # of all FPGAs
    solution: Solution

    def device(self, device: DeliveredDevice) -> Solution:
        """Of an FPGA."""
        return self.solution.parts[f"fpga_{device.manifest.top}"]


def control_of(devices: Sequence[DeliveredDevice], bench: Bench, texts: Mapping[str, str]) -> Control:
    """What a bench without values needs of itself and of FPGAs; ``texts`` are their modules, by name.

    Raises `DataDependentError` where control reads what a layer sends, naming the way, or a stream is coded."""
    problems = [problem for device in devices for problem in _coded(device)]
    if problems:
        cure = "`--level fast` takes the words that the plan counts on, `dagtrain cosim` has the data"
        raise DataDependentError.listing(DEPENDENT, problems, cure, lines=True)
    slicer = ControlSlicer(texts)
    slicer = ControlSlicer(texts, {device.manifest.top: _sent(device, slicer) for device in devices}, given_state)
    outermost = bench.texts[BENCH]
    asked: dict[str, int] = {}
    for path, high, low in _BELOW.findall(outermost):
        bits = (1 << int(high) + 1) - (1 << int(low)) if high else EVERY_BIT
        asked[path] = asked.get(path, 0) | bits
    cluster = slicer.read(CLUSTER)
    asked |= {port: EVERY_BIT for port in cluster.ports if cluster.nets[port].direction is Direction.OUT}
    solution = slicer.solve(CLUSTER, asked)
    problems = [problem for device in devices for problem in _problems(device, slicer, solution)]
    if problems:
        raise DataDependentError.listing(DEPENDENT, problems, lines=True)
    unheeded = {port for port in cluster.ports if not solution.live[port] and port not in asked}
    outermost = _PASSED.sub(lambda found: "" if found[1] in unheeded else found[0], outermost)
    return Control({BENCH: outermost, **slicer.texts(solution)}, slicer, solution)


def _coded(device: DeliveredDevice) -> list[str]:
    """Streams that leave a device as many words as their values want."""
    manifest, role = device.manifest, compressor_role("")
    coded = [stream.reader.removeprefix(role) for stream in manifest.streams if stream.reader.startswith(role)]
    return [f"{manifest.device}: in how many words {edge} is coded" for edge in dict.fromkeys(coded)]


def given_state(module: ReadModule) -> list[str]:
    """Nets of words of state that a link of a chain sends: between headers, which it makes itself."""
    return [net for net in module.nets if _LOADED in module.ports and _GIVEN.search(net)]


def _sent(device: DeliveredDevice, slicer: ControlSlicer) -> set[tuple[str, str]]:
    """(instance, port) of a top at which senders get data."""
    top = slicer.read(device.manifest.top)
    nets = {
        f"{stream.net}_payload"
        for stream in device.manifest.streams
        if stream.reader.startswith(_SENDER) and stream.reader != _DUMPS
    }
    return {
        (part.name, port)
        for part in top.parts
        for port, (_, value) in part.connections.items()
        if value is not None
        and value.net is not None
        and value.net.name in nets
        # a credit that comes in is no data
        and slicer.read(part.module).nets[port].direction is Direction.IN
        and port == "x_payload"
    }


def _problems(device: DeliveredDevice, slicer: ControlSlicer, cluster: Solution) -> list[str]:
    """Handshakes that read the payload of a stream, each with its way; if none does by itself, the streams."""
    manifest, solution = device.manifest, cluster.parts[f"fpga_{device.manifest.top}"]
    nodes, links = set(manifest.nodes), manifest.state.links if manifest.state else ()
    records = {chain_net(link.node, port) for link in links for port in (LOAD, DUMP)}
    live = [
        stream
        for stream in manifest.streams
        if stream.reader in nodes and stream.net not in records and solution.live.get(f"{stream.net}_payload", 0)
    ]
    ways = [way for stream in live for way in _ways(stream, slicer, solution)]
    streams = [f"the payload of {stream.net}, which {stream.writer} sends to {stream.reader}" for stream in live]
    return [f"{manifest.device}: {problem}" for problem in ways or streams]


def _ways(stream: StreamRecord, slicer: ControlSlicer, solution: Solution) -> list[str]:
    """From handshakes of the circuit that reads a stream to its payload."""
    found = []
    for part in slicer.read(solution.module).parts:
        below = solution.parts.get(part.name)
        for port, (_, value) in part.connections.items():
            if below and value is not None and value.net is not None and value.net.name == f"{stream.net}_payload":
                asked = {net: bits for net, bits in below.asked.items() if not net.endswith("_payload")}
                way = slicer.why(slicer.solve(part.module, asked), port)
                found += [f"{stream.reader} ({part.module}): {' <- '.join(way)}"] if way else []
    return found
