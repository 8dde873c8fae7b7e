"""The outermost module of a co-simulation, the same whether Verilog or MyHDL plays the host.

It counts the beats of metrics, writes and counts those of new weights, and when all of every batch have come, and have
had time to arrive, writes all training state and says that it has finished.  When nothing of this moves any more it
writes `valid` and `ready` of every stream in the FPGAs to a file and says that it is stuck.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dagtrain.cosim import windows
from dagtrain.cosim.clocks import clock_of
from dagtrain.cosim.network import PORTS_FILE
from dagtrain.cosim.parts import BENCH, CLUSTER, BenchOptions, Dump, Recording, StateLog, WeightLog
from dagtrain.cosim.timeline import Probes, counting_text
from dagtrain.cosim.trace import Traced, trace_text
from dagtrain.cosim.watch import Watch, watch_text
from dagtrain.emission.delivered import DeliveredDevice
from dagtrain.emission.modules import verilog_name
from hdl.convert.netlist import Direction, PortDecl
from hdl.link.ethernet.clocked import OVERFLOW

# where the handshakes of all streams are told when nothing moves: top, net, valid and ready a line
STREAMS_FILE = "streams.txt"
# where watchers write what is wrong, and what they have seen
WATCH_FILE = "watch.txt"
# `progress` counts the beats of metrics
PORTS = (
    PortDecl("clk", 1, Direction.IN),
    PortDecl("rst", 1, Direction.IN),
    PortDecl("finished", 1, Direction.OUT),
    PortDecl("stuck", 1, Direction.OUT),
    PortDecl("progress", 32, Direction.OUT),
    PortDecl("network_error", 1, Direction.OUT),
    PortDecl("memory_error", 1, Direction.OUT),
)


def outermost_text(
    devices: Sequence[DeliveredDevice],
    recorded: Mapping[str, Recording],
    weights: Sequence[WeightLog],
    dumps: Sequence[Dump],
    options: BenchOptions,
    watching: Watch,
    host: Sequence[PortDecl] = (),
    traced: Sequence[Traced] = (),
    probed: Probes | None = None,
    states: Sequence[StateLog] = (),
    shared: bool = False,
    values: bool = True,
    beside: str = "",
) -> str:
    """The Verilog of the module, with all FPGAs below it as the instance `dut`.

    ``host``: ports of the FPGAs that become its own, beside `PORTS`.
    ``shared``: others have the rest of the cluster, and end the run through `windows.PORTS`.
    ``traced``: streams whose beats are written, every one.
    ``states``: chains of state whose words are.
    ``probed``: what is counted beside.
    ``values``: weights are written, and metrics; else only that they pass.
    ``beside``: further items of the module."""
    gated = "_open" if watching.watched else ""
    metrics = {f"metrics_{verilog_name(node)}": one for node, one in recorded.items()}
    updates = {f"weights_{verilog_name(log.edge)}": log for log in weights}
    wanted = {counter: one.beats for counter, one in metrics.items()}
    wanted |= {counter: (log.loaded + options.trained_batches) * log.beats for counter, log in updates.items()}
    chains = {f"state_{verilog_name(one.device)}": one for one in states}
    wanted |= {counter: one.words for counter, one in chains.items()}
    logs = updates | chains if values else {}
    watchers = len(watching.watched)
    own = [clock_of(device) for device in devices if clock_of(device) != "clk"]
    passed = ["clk", "rst", *own, *(port.name for port in host)]
    counted = (counting_text(probed) if probed else "") + beside
    others = windows.PORTS if shared else ()
    # a part of a cluster may have nothing to count
    counters = [*wanted, *(["32'd0"] if shared else ["settled"])]
    return f"""// The outermost module of the co-simulation.
module {BENCH} (
{_declared((*PORTS, *others, *(PortDecl(clk, 1, Direction.IN) for clk in own), *host))}
);
{"" if shared else ALONE}reg done = 0, stopped = 0;
integer streams;
wire lost_word;
{_lines(f"reg [31:0] {counter} = 0;" for counter in wanted)}
{_lines(f"integer file_{counter};" for counter in logs)}
{_lines(f'initial file_{counter} = $fopen("{log.file_name}", "w");' for counter, log in logs.items())}
assign finished = done, stuck = stopped, progress = {" + ".join(metrics) or "0"};
assign settling = {" && ".join(f"{counter} == {beats}" for counter, beats in wanted.items()) or "1'b1"};
assign activity = {" + ".join(counters)};
{"" if shared else _alone_text(options)}{_told(watchers)}
{watch_text(watching, options.hold_cycles, options.seed) if watchers else ""}{CLUSTER} dut (
{_joined(f"    .{name}({name})" for name in passed)},
    .network_error(lost_word), .memory_error(memory_error)
);
{trace_text(traced) if traced else ""}{counted}{_ports_text(devices)}assign network_error = lost_word || |broken;
{_lines(f"always @(posedge {clk}) begin{_counting(metrics, updates, chains, clk, gated, values)}end" for clk in own)}
always @(posedge clk) begin{_counting(metrics, updates, chains, "clk", gated, values)}
    if (halt && !stopped) begin
        streams = $fopen("{STREAMS_FILE}", "w");
{_lines(_reporting(device) for device in devices)}
        $fclose(streams);
        stopped <= 1;
    end
    if (settling && over) begin
{_lines(f"        {dump.statement}" for dump in dumps)}
{_lines(f'        $writememh("{one.file_name}", {one.path});' for one in recorded.values() if one.path and values)}
{_lines(f"        $fclose(file_{counter});" for counter in logs)}
{"        $fflush(told);" if watchers else ""}
{"        $fflush(timeline);" if probed else ""}
        done <= 1;
    end
end
endmodule
"""


# what a bench of a whole cluster counts to end by itself: cycles in which all was there, and in which nothing moved
ALONE = """reg [31:0] settled = 0, moved = 0, idle = 0;
wire settling, over, halt;
wire [31:0] activity;
"""


def _alone_text(options: BenchOptions) -> str:
    return f"""assign over = settled == {options.settle_cycles}, halt = idle == {options.stuck_cycles};
always @(posedge clk) begin
    moved <= activity;
    idle <= activity == moved ? idle + 1 : 0;
    if (settling) settled <= settled + 1;
end
"""


def _ports_text(devices: Sequence[DeliveredDevice]) -> str:
    """What Ethernet ports have counted is written at the very end: a line of top, frames dropped, flags of peers, and
    frames without room."""
    tops = {device.manifest.top: device.manifest.ethernet for device in devices if device.manifest.ethernet}
    if not tops:
        return ""
    overflow = {top: "1'b0" if port.mac_mhz is None else f"dut.{top}_{OVERFLOW}" for top, port in tops.items()}
    lines = _lines(
        f'    $fdisplay(ports, "{top} %h %h %h", dut.{top}_net_dropped, dut.{top}_net_faults, {overflow[top]});'
        for top in tops
    )
    return f"""integer ports;
final begin
    ports = $fopen("{PORTS_FILE}", "w");
{lines}
    $fclose(ports);
end
"""


def _told(watchers: int) -> str:
    """What so many watchers say, and where."""
    if not watchers:
        return "wire broken = 1'b0;"
    return f'wire [{watchers - 1}:0] broken;\ninteger told;\ninitial told = $fopen("{WATCH_FILE}", "w");'


def _declared(ports: Iterable[PortDecl]) -> str:
    return _joined(
        f"    {port.direction.value} wire {f'[{port.width - 1}:0] ' if port.width > 1 else ''}{port.name}"
        for port in ports
    )


def _taken(net: str, gated: str = "") -> str:
    """Whether a beat passes."""
    return f"({net}_valid{gated} && {net}_ready{gated})"


def _counting(
    metrics: Mapping[str, Recording],
    updates: Mapping[str, WeightLog],
    chains: Mapping[str, StateLog],
    clk: str,
    gated: str,
    values: bool,
) -> str:
    """Statements that count what passes at a clock."""
    beats = [
        f"    if ({_taken(one.net)} && !rst) {counter} <= {counter} + 1;"
        for counter, one in metrics.items()
        if one.clk == clk
    ]
    logged = [_logging(counter, log, gated, values) for counter, log in updates.items() if log.clk == clk]
    # at a port of a top, where nothing is cut
    logged += [_logging(counter, log, "", values) for counter, log in chains.items() if log.clk == clk]
    return _lines(["", *beats, *logged, ""])


def _logging(counter: str, log: WeightLog | StateLog, gated: str, values: bool) -> str:
    """Beats are counted and, with their values, written."""
    written = f'        $fdisplay(file_{counter}, "%h", {log.net}_payload);\n' if values else ""
    return f"    if ({_taken(log.net, gated)} && !rst) begin\n        {counter} <= {counter} + 1;\n{written}    end"


def _reporting(device: DeliveredDevice) -> str:
    """The handshake of every stream of a device is written."""
    top = device.manifest.top
    return _lines(
        f'        $fdisplay(streams, "{top} {stream.net} %b %b", '
        f"dut.fpga_{top}.{stream.net}_valid, dut.fpga_{top}.{stream.net}_ready);"
        for stream in device.manifest.streams
    )


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(parts)


def _joined(parts: Iterable[str]) -> str:
    return ",\n".join(parts)
