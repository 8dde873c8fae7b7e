"""No signal of a stream follows its other one within a cycle, in any circuit; and what breaks that is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from myhdl import Signal, always, always_comb, block, intbv

from hdl.analysis.same_cycle import broken_handshakes, followed_ports
from hdl.convert.handshakes import broken_streams
from hdl.convert.netlist import Instance, Module, Wire
from hdl.dram.axi import AxiFormat, AxiMerge
from hdl.dram.deal import Collect, Deal
from hdl.dram.store import DramConstant, DramFifo, DramReplay, LoadedReplay
from hdl.dram.widen import AxiWiden
from hdl.elaboration.patches import forgotten_signals
from hdl.engine.codec.bursts import Bursts
from hdl.engine.codec.coding import CompressedEnd, DecompressedEnd
from hdl.engine.codec.integer_codec import IntegerCodec
from hdl.engine.weights.loaded_constant import LoadedConstant
from hdl.layers.registry import load_layers
from hdl.link.clocks import ClockCrossing
from hdl.link.egress import Egress
from hdl.link.format import LinkFormat
from hdl.link.forward import Forward
from hdl.link.ingress import Ingress
from hdl.link.pool import ReceivePool
from hdl.link.routing import Drain, Merge, Split
from hdl.memory import unsimulated
from hdl.signals import ClockReset
from hdl.stream import Stream
from hdl.streams import Policy, bordering_adapter, fork, join, pipe, queue, width_adapter
from hdl.unit import Unit
from tests.layer_support import all_examples, elaborate

LINK = LinkFormat(word_bits=32, streams=3, devices=2)
AXI = AxiFormat()
ENDS = ("valid", "payload", "ready")
UNITS: list[Unit] = [
    *(Egress(format=LINK, element_bits=16, lanes=n, elements=12, credits=4) for n in (1, 2, 3, 4)),
    *(Egress(format=LINK, element_bits=16, lanes=n, elements=12, credits=4, queued=q) for n in (2, 3) for q in (2, 8)),
    *(Ingress(format=LINK, element_bits=16, lanes=n, elements=12, depth=d) for n in (1, 2, 3, 4) for d in (2, 8)),
    Merge(format=LINK),
    Split(format=LINK),
    Forward(format=LINK, table=(0, 1), merged=((0, 1, 2), (0, 2), (0, 1))),
    ReceivePool(format=LINK, regions=(3, 4, 5), stages=(2, 16, 2)),
    *(Merge(format=LINK, sides=sides, longest=longest) for sides in (2, 3) for longest in (1, 3)),
    *(Ingress(format=LINK, element_bits=16, lanes=n, elements=12, depth=8, pooled=True) for n in (1, 4)),
    Drain(format=LINK),
    ClockCrossing(payload_bits=LINK.payload_bits),
    AxiMerge(format=AXI),
    AxiWiden(narrow=AXI.narrowed(128), wide=AXI, burst=4),
    Deal(payload_bits=6, parts=3, turn=2),
    Collect(payload_bits=6, parts=2),
    DramFifo(format=AXI, element_bits=16, x_lanes=4, y_lanes=2, elements=128, capacity=2),
    DramReplay(format=AXI, element_bits=16, x_lanes=4, y_lanes=2, elements=128, batch=3, staleness=1),
    LoadedReplay(format=AXI, element_bits=16, x_lanes=4, y_lanes=2, elements=128, batch=3, staleness=1),
    DramConstant(format=AXI, element_bits=16, x_lanes=2, y_lanes=2, elements=128),
    *(CompressedEnd(bursts=Bursts(codec=IntegerCodec(5), elements=18, lanes=4), lanes=n) for n in (1, 2, 6, 9)),
    *(DecompressedEnd(bursts=Bursts(codec=IntegerCodec(5), elements=18, lanes=4), lanes=n) for n in (1, 2, 6, 9)),
    LoadedConstant(format=AXI, element_bits=16, x_lanes=4, y_lanes=2, elements=128),
]


def bit() -> Any:
    return Signal(bool(0))


def one_to_one(make: Callable[..., Any], x_bits: int = 6, y_bits: int = 6, **options: Any) -> Any:
    return make(ClockReset(), Stream(x_bits), Stream(y_bits), **options)


# ------------------------------------------------------------------------------------------ all circuits


@pytest.mark.parametrize("kind", sorted(load_layers()))
def test_no_stream_of_a_layer_follows_its_own_handshake(kind: str) -> None:
    for name, layer in all_examples([load_layers()[kind]]).items():
        with forgotten_signals(), unsimulated():
            assert broken_handshakes(elaborate(layer)[0], name) == []


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: type(unit).__name__)
def test_no_stream_of_a_unit_follows_its_own_handshake(unit: Unit) -> None:
    streams = {name: Stream(width) for name, width in unit.streams.items()}
    assert broken_handshakes(unit.build(ClockReset(), streams), type(unit).__name__) == []


def test_no_stream_of_a_primitive_follows_its_own_handshake() -> None:
    blocks = [
        *(one_to_one(queue, depth=depth) for depth in (0, 1, 2, 4, 5, 40)),
        *(one_to_one(pipe, policy=policy) for policy in Policy),
        *(one_to_one(width_adapter, a, b, element_bits=1) for a in range(1, 7) for b in range(1, 7)),
        *(one_to_one(bordering_adapter, a, b, element_bits=1) for a in range(1, 5) for b in range(1, 5)),
        *(fork(ClockReset(), Stream(6), [Stream(6) for _ in range(n)]) for n in range(1, 5)),
        *(join(ClockReset(), [Stream(6) for _ in range(n)], Stream(6 * n)) for n in range(1, 5)),
    ]
    assert [finding for block in blocks for finding in broken_handshakes(block, "primitive")] == []


# -------------------------------------------------------------------------------------- what an output follows


def test_a_stage_cuts_what_its_policy_says() -> None:
    x_ready = {policy: followed_ports(one_to_one(pipe, policy=policy), "pipe")["x_ready"] for policy in Policy}
    assert {policy for policy, ports in x_ready.items() if "y_ready" in ports} == {Policy.NONE, Policy.M2S}
    y_valid = {policy: followed_ports(one_to_one(pipe, policy=policy), "pipe")["y_valid"] for policy in Policy}
    assert {policy for policy, ports in y_valid.items() if "x_valid" in ports} == {Policy.NONE, Policy.S2M}


def test_a_ready_of_a_join_follows_the_other_valids() -> None:
    followed = followed_ports(join(ClockReset(), [Stream(2) for _ in range(3)], Stream(6)), "join")
    assert followed["xs1_ready"] == {"xs0_valid", "xs2_valid", "y_ready"}
    assert followed["y_valid"] == {"xs0_valid", "xs1_valid", "xs2_valid"}


@block
def diamond(domain: ClockReset, x: Stream, y: Stream, depth: int) -> Any:
    """A fork joined again behind queues."""
    heads, tails = [Stream(x.width) for _ in range(2)], [Stream(x.width) for _ in range(2)]
    top = fork(domain, x, heads)
    queues = [queue(domain, heads[i], tails[i], depth=depth) for i in range(2)]
    bottom = join(domain, tails, y)
    return top, queues, bottom


def test_a_fork_joined_without_registers_makes_ready_follow_valid() -> None:
    found = broken_handshakes(one_to_one(diamond, 6, 12, depth=0), "diamond")
    assert found == ["diamond: ready of stream x follows its own valid in the same cycle"]
    assert broken_handshakes(one_to_one(diamond, 6, 12, depth=2), "diamond") == []


def wired(depth: int) -> Module:
    """As `diamond`, of modules."""
    names = ("x", "head0", "head1", "tail0", "tail1", "y")
    wires = [Wire(f"{name}_{end}", 1 if end != "payload" else 6) for name in names for end in ENDS]

    def instance(module: str, name: str, **streams: str) -> Instance:
        nets = {f"{port}_{end}": f"{net}_{end}" for port, net in streams.items() for end in ENDS}
        return Instance(module, name, {"clk": "clk", "rst": "rst", **nets})

    between = [instance(f"queue{depth}", f"q{i}", x=f"head{i}", y=f"tail{i}") for i in range(2)]
    top = instance("fork", "f", x="x", ys0="head0", ys1="head1"), instance("join", "j", xs0="tail0", xs1="tail1", y="y")
    return Module("diamond", (), tuple(wires), (*top, *between))


def test_a_fork_joined_without_registers_is_found_among_modules() -> None:
    parts = {
        "fork": fork(ClockReset(), Stream(6), [Stream(6) for _ in range(2)]),
        "join": join(ClockReset(), [Stream(6) for _ in range(2)], Stream(12)),
        **{f"queue{depth}": one_to_one(queue, depth=depth) for depth in (0, 2)},
    }
    followed = {name: followed_ports(part, name) for name, part in parts.items()}
    assert broken_streams(wired(0), followed) == ["diamond: ready of stream x follows its own valid in the same cycle"]
    assert broken_streams(wired(2), followed) == []


@block
def through_a_list(clk: Any, x: Stream, y: Stream, clocked: bool) -> Any:
    """``x_ready`` is read from two words that hold whether ``x_valid`` was, or is, high."""
    words = [Signal(bool(0)) for _ in range(2)]
    at = Signal(intbv(0)[1:])
    seen = Signal(bool(0))

    @always_comb
    def out() -> None:
        y.valid.next = False
        y.payload.next = 0
        seen.next = words[at]
        x.ready.next = seen and y.ready

    @always_comb
    def place() -> None:
        at.next = x.payload[0]

    if clocked:

        @always(clk.posedge)
        def write() -> None:
            words[0].next = x.valid
            words[1].next = False

        return out, place, write

    @always_comb
    def drive() -> None:
        words[0].next = x.valid
        words[1].next = False

    return out, place, drive


@pytest.mark.parametrize("clocked", [True, False])
def test_a_list_of_signals_is_followed_unless_it_is_written_at_the_clock_edge(clocked: bool) -> None:
    followed = followed_ports(through_a_list(bit(), Stream(6), Stream(6), clocked), "list")["x_ready"]
    assert followed == {"x_payload", "y_ready"} | (set() if clocked else {"x_valid"})


# ------------------------------------------------------------------------------------------- broken circuits


@block
def broken(domain: ClockReset, x: Stream, y: Stream, fault: str) -> Any:
    """A stage of one beat, with a fault."""
    valid, ready = Signal(bool(0)), Signal(bool(0))
    kept = Signal(intbv(0)[x.width :])
    in_ready, in_valid, in_payload = (fault == signal for signal in ("ready", "valid", "payload"))

    @always_comb
    def accept() -> None:
        ready.next = y.ready or not valid
        if in_ready:
            ready.next = x.valid and (y.ready or not valid)

    @always_comb
    def out() -> None:
        x.ready.next = ready
        y.valid.next = valid
        y.payload.next = kept
        if in_valid:
            y.valid.next = valid and y.ready
        if in_payload and y.ready:
            y.payload.next = 0

    @always(domain.clk.posedge)
    def step() -> None:
        if ready:
            valid.next = x.valid
            kept.next = x.payload
        if domain.rst:
            valid.next = False

    return accept, out, step


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("", []),
        ("ready", ["broken: ready of stream x follows its own valid in the same cycle"]),
        ("valid", ["broken: valid of stream y follows its own ready in the same cycle"]),
        ("payload", ["broken: payload of stream y follows its own ready in the same cycle"]),
    ],
)
def test_each_broken_clause_is_named(fault: str, found: list[str]) -> None:
    assert broken_handshakes(one_to_one(broken, fault=fault), "broken") == found
