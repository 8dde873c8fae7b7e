"""Models of the network between devices, for simulation: they convert to Verilog, but are built into no device."""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import Signal, always, always_comb, block, intbv

from hdl.link.format import LinkFormat
from hdl.signals import ClockReset, Instances
from hdl.simulate.models.host import stalls
from hdl.stream import Stream
from hdl.streams.fifo import memory_queue
from hdl.streams.merge import merge
from hdl.streams.pipes import same_width, wire

# cycles through the wire's own queue: no wire is faster
LEAST_LATENCY = 3
# words that it holds beside those under way
SPARE_WORDS = 4
# bits of the model's clock; a word may wait for half its range
_TIME_BITS = 32


@block
def link_gate(
    domain: ClockReset,
    x: Stream,
    y: Stream,
    *,
    words: int = 1,
    cycles: int = 1,
    stall_256: int = 0,
    seed: int = 1,
) -> Instances:
    """Lets at most ``words`` in every ``cycles`` cycles pass, and none in a random ``stall_256`` of 256 cycles.

    Ports:
        x: in, stream of any width; its ready is combinational in that behind.
        y: out, stream as wide as ``x``, in the same cycle.
    """
    same_width("link_gate", x, y)
    if not 1 <= words <= cycles or not 0 <= stall_256 < 256:
        raise ValueError(
            f"link_gate: needs 1 <= words <= cycles and stall_256 in 0..255, not {words} words in {cycles} cycles, "
            f"stall_256 {stall_256}"
        )
    go, open_now, fire = (Signal(bool(0)) for _ in range(3))
    gate = stalls(domain, go, probability_256=stall_256, seed=seed)
    # words that may be sent, in units of 1 / cycles; at most one word is saved up
    budget = Signal(intbv(0, min=0, max=cycles + words + 1))

    @always_comb
    def decide() -> None:
        open_now.next = go and budget >= cycles

    @always_comb
    def handshake() -> None:
        y.valid.next = x.valid and open_now
        y.payload.next = x.payload
        x.ready.next = y.ready and open_now
        fire.next = x.valid and y.ready and open_now

    @always(domain.clk.posedge)
    def step() -> None:
        if fire:
            budget.next = budget + words - cycles
        elif budget < cycles:
            budget.next = budget + words
        if domain.rst:
            budget.next = cycles

    return gate, decide, handshake, step


@block
def link_delay(
    domain: ClockReset,
    x: Stream,
    y: Stream,
    *,
    latency: int = LEAST_LATENCY,
    room: int = 0,
    public: str | None = None,
) -> Instances:
    """Delivers every word ``latency`` cycles after it entered, or later if ``y`` isn't ready; beside the words that are
    under way it holds ``room``.

    Ports:
        x: in, stream of any width; its ready from registers.
        y: out, stream as wide as ``x``, at least ``latency`` cycles later.
    """
    width = same_width("link_delay", x, y)
    if latency < LEAST_LATENCY:
        raise ValueError(f"link_delay: needs latency >= {LEAST_LATENCY}, not {latency}")
    entering, head = Stream(width + _TIME_BITS), Stream(width + _TIME_BITS)
    inside = memory_queue(domain, entering, head, depth=latency + SPARE_WORDS + room, public=public)
    due = Signal(bool(0))
    now, age = (Signal(intbv(0)[_TIME_BITS:]) for _ in range(2))
    total, mask, half = width + _TIME_BITS, (1 << _TIME_BITS) - 1, _TIME_BITS - 1

    @always_comb
    def enter() -> None:
        entering.valid.next = x.valid
        entering.payload.next[width:] = x.payload
        entering.payload.next[total:width] = now
        x.ready.next = entering.ready

    @always_comb
    def wait() -> None:
        age.next = (now - head.payload[total:width]) & mask

    @always_comb
    def arrive() -> None:
        due.next = age >= latency and not age[half]

    @always_comb
    def out() -> None:
        y.valid.next = head.valid and due
        y.payload.next = head.payload[width:]
        head.ready.next = y.ready and due

    @always(domain.clk.posedge)
    def step() -> None:
        now.next = (now + 1) & mask
        if domain.rst:
            now.next = 0

    return inside, enter, wait, arrive, out, step


@block
def link_wire(
    domain: ClockReset,
    x: Stream,
    y: Stream,
    *,
    latency: int = LEAST_LATENCY,
    words: int = 1,
    cycles: int = 1,
    stall_256: int = 0,
    seed: int = 1,
    public: str | None = None,
) -> Instances:
    """`link_gate`, then `link_delay`.

    Ports:
        x: in, stream of any width; its ready from registers.
        y: out, stream as wide as ``x``, at least ``latency`` cycles later.
    """
    passed = Stream(same_width("link_wire", x, y))
    gate = link_gate(domain, x, passed, words=words, cycles=cycles, stall_256=stall_256, seed=seed)
    return gate, link_delay(domain, passed, y, latency=latency, public=public)


@block
def split_by_device(
    domain: ClockReset,
    x: Stream,
    mine: Stream,
    rest: Stream,
    *,
    form: LinkFormat,
    device: int,
) -> Instances:
    """Words for ``device`` go to ``mine``, others to ``rest``.  Latency 0.

    Ports:
        x: in, stream of `LinkFormat.payload_bits` bits; its ready is combinational in its payload and the ready behind.
        mine, rest: out, streams as wide as ``x``, in the same cycle.
    """
    low, bits = form.fields["device"]
    high = low + bits
    hit = Signal(bool(0))

    @always_comb
    def match() -> None:
        hit.next = x.payload[high:low] == device

    @always_comb
    def route() -> None:
        mine.valid.next = x.valid and hit
        rest.valid.next = x.valid and not hit
        mine.payload.next = x.payload
        rest.payload.next = x.payload
        if hit:
            x.ready.next = mine.ready
        else:
            x.ready.next = rest.ready

    return match, route


@block
def link_switch(
    domain: ClockReset,
    xs: Sequence[Stream],
    ys: Sequence[Stream],
    sent: Sequence[Stream] = (),
    came: Sequence[Stream] = (),
    *,
    form: LinkFormat,
    here: Sequence[int] | None = None,
    latency: int = LEAST_LATENCY,
    rates: Sequence[tuple[int, int]] | None = None,
    stall_256: int = 0,
    seed: int = 1,
    room: int = 64,
) -> Instances:
    """A switch: ``xs[i]`` comes from device i, ``ys[i]`` goes to it.

    Device i may send, and separately receive, so many words in so many cycles as ``rates[i]`` says, one a cycle if
    nothing does; a word takes ``latency`` + 3 cycles and one more for each device after the first, plus waiting.
    Stalls are random, by ``seed``.
    Words between two devices stay in order, and one that waits for its device keeps none for another waiting, as in
    any switch with a queue for each output ("virtual output queues"); each holds ``room`` words.

    It may be the part of a switch that some devices have, those ``here`` (None: all): what is under way between these
    and the others is elsewhere, and has to come ``latency`` cycles after it was sent.

    Its memories have images, ``between_<i>_<j>`` and ``to_<j>``, of which no file is ever loaded: without values to
    begin with a simulator writes no code for each of their words.

    Ports:
        xs: in, a stream of `LinkFormat.payload_bits` bits a device that is here; ready from registers, or of ``sent``.
        ys: out, as many streams as wide.
        sent: out, streams as wide, a lane of `lanes_between`, in the cycle of ``xs``.
        came: in, streams as wide, a lane back of each of those.
    """
    count = form.devices
    carried = [(1, 1)] * count if rates is None else rates
    own = range(count) if here is None else here
    away = lanes_between(own, count)
    if not len(own) == len(xs) == len(ys) or not len(away) == len(sent) == len(came):
        raise ValueError(
            f"link_switch: {len(xs)} inputs and {len(ys)} outputs, {len(sent)} lanes to others and {len(came)} back "
            f"for {len(own)} of {count} devices"
        )
    bits = form.payload_bits
    parts = []
    leaving = dict(zip(away, sent, strict=True))
    # (from, to): behind all that takes time
    lanes = {(target, source): lane for (source, target), lane in zip(away, came, strict=True)}
    for source, x in zip(own, xs, strict=True):
        rest = Stream(bits)
        parts.append(
            link_gate(
                domain, x, rest,
                words=carried[source][0], cycles=carried[source][1], stall_256=stall_256, seed=seed + 2 * source,
            )
        )  # fmt: skip
        for device in range(count):
            mine, others = leaving.get((source, device)) or Stream(bits), Stream(bits)
            # the last one takes what no device before it did
            if device < count - 1:
                parts.append(split_by_device(domain, rest, mine, others, form=form, device=device))
            elif (source, device) in leaving:
                parts.append(wire(domain, rest, mine))
            else:
                mine = rest
            if (source, device) not in leaving:
                lane = lanes[source, device] = Stream(bits)
                public = f"between_{source}_{device}"
                parts.append(link_delay(domain, mine, lane, latency=latency, room=room, public=public))
            rest = others
    for device, y in zip(own, ys, strict=True):
        joined = lanes[0, device]
        for source in range(1, count):
            both = Stream(bits)
            parts.append(merge(domain, [joined, lanes[source, device]], both))
            joined = both
        parts.append(
            link_wire(
                domain, joined, y,
                words=carried[device][0], cycles=carried[device][1], stall_256=stall_256, seed=seed + 2 * device + 1,
                public=f"to_{device}",
            )
        )  # fmt: skip
    return parts


def lanes_between(here: Sequence[int], count: int) -> list[tuple[int, int]]:
    """(from, to): from devices that are here to each of all others."""
    return [(source, device) for source in here for device in range(count) if device not in here]
