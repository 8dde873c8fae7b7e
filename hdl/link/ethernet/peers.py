"""What a port knows of each device that it speaks with: what was sent and acknowledged, what is expected, what to say.

`peer_state` is `hdl.link.ethernet.protocol.Peer` as a circuit: a frame that was heard, one that is sent and a payload
that was made move it as they move that.  Numbers behind the oldest frame that is not acknowledged are kept as how far
they are behind it, in few bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from myhdl import Signal, always, always_comb, block, intbv, modbv

from hdl.link.ethernet.frame import HEADER, FrameType
from hdl.memory import address_width
from hdl.signals import Bit, Bits, ClockReset, Instances

SEQUENCE_BITS = HEADER["dtl.sequence"].bits
KIND_BITS = HEADER["dtl.type"].bits


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What both ends of a pair agree on."""

    # frames on their way to a peer, at most; a power of two
    window: int = 16
    # cycles without progress after which all from the oldest are sent again, and HELLO: 4 round trips
    timer_cycles: int = 8000
    # cycles after which a frame is acknowledged by a frame of its own
    ack_cycles: int = 400
    # times that the timer may run out without progress in between before the peer is lost
    retries: int = 64

    def __post_init__(self) -> None:
        if self.window < 2 or self.window & (self.window - 1):
            raise ValueError(f"a window is a power of two of frames, at least 2, not {self.window}")
        if min(self.timer_cycles, self.ack_cycles, self.retries) < 1:
            raise ValueError(f"{self}: timers and retries are 1 or more")

    @property
    def slot_bits(self) -> int:
        """Bits of a place in the window."""
        return address_width(self.window)


class Heard:
    """A frame that is heard, for one cycle: ``valid``, its ``kind`` and ``acknowledge``; of DATA whether it is
    ``taken``, was ``stale`` or came behind a ``gap``.  ``stranger``: one of another plan came instead."""

    def __init__(self) -> None:
        self.valid: Bit = Signal(bool(0))
        self.kind: Bits = Signal(intbv(0)[KIND_BITS:])
        self.acknowledge: Bits = Signal(intbv(0)[SEQUENCE_BITS:])
        self.taken: Bit = Signal(bool(0))
        self.stale: Bit = Signal(bool(0))
        self.gap: Bit = Signal(bool(0))
        self.stranger: Bit = Signal(bool(0))


class Saying:
    """What a peer is to be told: while ``wants``, a frame of ``kind`` with ``sequence`` and ``acknowledge``, whose
    payload, of DATA, is in place ``slot`` of the window."""

    def __init__(self, timing: Timing) -> None:
        self.wants: Bit = Signal(bool(0))
        self.kind: Bits = Signal(intbv(0)[KIND_BITS:])
        self.sequence: Bits = Signal(intbv(0)[SEQUENCE_BITS:])
        self.acknowledge: Bits = Signal(intbv(0)[SEQUENCE_BITS:])
        self.slot: Bits = Signal(intbv(0)[timing.slot_bits :])


class Faults:
    """What is wrong with a peer, until reset: it is ``lost``, it is a ``stranger``, it acknowledged the ``unsent``."""

    def __init__(self) -> None:
        self.lost: Bit = Signal(bool(0))
        self.stranger: Bit = Signal(bool(0))
        self.unsent: Bit = Signal(bool(0))


@block
def peer_state(
    domain: ClockReset,
    made: Bit,
    heard: Heard,
    said: Bit,
    saying: Saying,
    freed: Bits,
    faults: Faults,
    *,
    timing: Timing,
) -> Instances:
    """One peer.  Cost: two numbers of 32 bits with an adder each, counters.  What is heard counts 4 cycles later.

    Ports:
        made: in, 1 bit: one more payload is complete.
        heard: in; frames of this peer.
        said: in, 1 bit: what ``saying`` says is on its way.
        saying: out, combinational in registers.
        freed: out, ``timing.slot_bits + 1`` bits: so many more frames are acknowledged, for one cycle.
        faults: out, from registers.
    """
    sending = send_state(domain, made, heard, said, saying, freed, faults, data := Signal(bool(0)), timing=timing)
    receiving = receive_state(domain, heard, said, saying, data, timing=timing)

    @always(domain.clk.posedge)
    def refuse() -> None:
        if heard.stranger:
            faults.stranger.next = True
        if domain.rst:
            faults.stranger.next = False

    return sending, receiving, refuse


@block
def send_state(
    domain: ClockReset,
    made: Bit,
    heard: Heard,
    said: Bit,
    saying: Saying,
    freed: Bits,
    faults: Faults,
    data: Bit,
    *,
    timing: Timing,
) -> Instances:
    """The sending half: `hdl.link.ethernet.protocol.Sender`, its timer, and the sequence numbers that are told.

    What is heard is judged in four cycles; of frames that come closer the last one counts.  An acknowledgement says
    what all before it said, so none is missed; where a NAK is, the timer does its work, as for one that is lost.

    Ports:
        made: in, 1 bit: one more payload is complete.
        heard: in; frames of this peer.
        said: in, 1 bit: what ``saying`` says is on its way.
        saying: in and out; ``sequence`` and ``slot`` are out.
        freed: out, ``timing.slot_bits + 1`` bits, for one cycle.
        faults: out; ``lost`` and ``unsent``, from registers.
        data: out, 1 bit, from a register: a frame of DATA waits to be sent.
    """
    slot_bits, data_kind = timing.slot_bits, int(FrameType.DATA)
    # sequence numbers of the oldest frame, of what is transmitted next, and of what is made next
    oldest, cursor_number, next_number = (Signal(modbv(0)[SEQUENCE_BITS:]) for _ in range(3))
    # how far behind the oldest: what is transmitted next, what never was, what was not made yet
    cursor, sent, made_up_to = (Signal(modbv(0)[slot_bits + 1 :]) for _ in range(3))
    cursor_now, sent_now, count = (Signal(modbv(0)[slot_bits + 1 :]) for _ in range(3))
    judged, moves, refused = (Signal(bool(0)) for _ in range(3))
    # of a frame of DATA that was said in the cycle before: it never was before; another one is next by now
    transmits, first_time, jumped, one_more = (Signal(bool(0)) for _ in range(4))
    went_back, back, expired, changes, jumps, ahead, passed, one_sent = (Signal(bool(0)) for _ in range(8))
    judgement = acknowledged(domain, heard, oldest, sent, judged, moves, refused, count, faults.unsent, timing=timing)
    timer = resend_timer(
        domain, judged, moves, transmits, one_sent, cursor, sent, count, expired, faults.lost, timing=timing
    )

    @always(domain.clk.posedge)
    def events() -> None:
        transmits.next = said and saying.kind == data_kind
        first_time.next = cursor == sent
        jumped.next = jumps
        one_more.next = made
        if domain.rst:
            transmits.next = False
            one_more.next = False

    @always_comb
    def compare() -> None:
        one_sent.next = transmits and first_time
        ahead.next = cursor > count or (transmits and not jumped and cursor == count)
        passed.next = cursor < count

    @always_comb
    def now() -> None:
        cursor_now.next = cursor
        if transmits and not jumped:
            cursor_now.next = cursor + 1
        sent_now.next = sent
        if one_sent:
            sent_now.next = sent + 1

    @always_comb
    def turn() -> None:
        # a refusal of what is the oldest from now on, and no echo
        back.next = judged and refused and ahead and (moves or not went_back)

    @always_comb
    def change() -> None:
        jumps.next = back or expired or passed
        changes.next = judged or expired or transmits or one_more or said

    @always_comb
    def out() -> None:
        freed.next = count

    @always_comb
    def tell() -> None:
        saying.sequence.next = next_number
        if saying.kind == data_kind:
            saying.sequence.next = cursor_number
        saying.slot.next = cursor_number[slot_bits:]

    @always(domain.clk.posedge)
    def number() -> None:
        cursor_number.next = oldest + cursor
        next_number.next = oldest + made_up_to
        # nothing that this follows from is changing
        data.next = cursor != made_up_to and not faults.lost and not changes
        if domain.rst:
            data.next = False

    @always(domain.clk.posedge)
    def move() -> None:
        oldest.next = oldest + count
        made_up_to.next = made_up_to + one_more - count
        sent.next = sent_now - count
        cursor.next = cursor_now - count
        if back or expired or passed:
            cursor.next = 0
        if expired or moves:
            went_back.next = False
        if back:
            went_back.next = True
        if domain.rst:
            oldest.next = 0
            made_up_to.next = 0
            sent.next = 0
            cursor.next = 0
            went_back.next = False

    return judgement, timer, events, compare, now, turn, change, out, tell, number, move


@block
def acknowledged(
    domain: ClockReset,
    heard: Heard,
    oldest: Bits,
    sent: Bits,
    judged: Bit,
    moves: Bit,
    refused: Bit,
    count: Bits,
    unsent: Bit,
    *,
    timing: Timing,
) -> Instances:
    """How many frames are acknowledged by what was heard, in four cycles.

    Ports:
        heard: in, of this peer; what comes while a frame is judged takes the place of what waits.
        oldest: in, 32 bits, from registers: the first frame that is not acknowledged.
        sent: in, ``timing.slot_bits + 1`` bits, from registers: frames from there on that were sent.
        judged: out, 1 bit, for one cycle, from a register: the number is of a frame that was sent, or the oldest.
        moves: out, 1 bit, with ``judged``, from a register: it is a later one.
        refused: out, 1 bit, with ``judged``, from a register: it was a NAK.
        count: out, as wide as ``sent``, from registers: by how many, 0 but with ``moves``.
        unsent: out, 1 bit, from a register until reset: frames were acknowledged that were never sent.
    """
    slot_bits, nak_kind, half = timing.slot_bits, int(FrameType.NAK), 1 << (SEQUENCE_BITS - 1)
    behind, told_number = (Signal(modbv(0)[SEQUENCE_BITS:]) for _ in range(2))
    # a frame waits, is compared with the oldest, with what was sent
    waiting, refuses, compared = (Signal(bool(0)) for _ in range(3))

    @always(domain.clk.posedge)
    def hear() -> None:
        compared.next = waiting and not compared and not judged
        if heard.valid:
            waiting.next = True
            told_number.next = heard.acknowledge
            refuses.next = heard.kind == nak_kind
        elif waiting and not compared and not judged:
            waiting.next = False
        behind.next = told_number - oldest
        if not compared:
            refused.next = refuses
        if domain.rst:
            waiting.next = False
            compared.next = False

    @always(domain.clk.posedge)
    def judge() -> None:
        judged.next = compared and behind <= sent
        moves.next = compared and behind <= sent and behind != 0
        count.next = 0
        if compared and behind <= sent:
            count.next = behind[slot_bits + 1 :]
        if compared and behind > sent and behind < half:
            unsent.next = True
        if domain.rst:
            judged.next = False
            moves.next = False
            count.next = 0
            unsent.next = False

    return hear, judge


@block
def resend_timer(
    domain: ClockReset,
    judged: Bit,
    moves: Bit,
    transmits: Bit,
    first_time: Bit,
    cursor: Bits,
    sent: Bits,
    count: Bits,
    expired: Bit,
    lost: Bit,
    *,
    timing: Timing,
) -> Instances:
    """When all from the oldest frame on is sent again, and when the peer is given up.

    Ports:
        judged, moves: in, 1 bit, as `acknowledged` gives them.
        transmits: in, 1 bit: the frame at ``cursor`` was sent.
        cursor: in, ``timing.slot_bits + 1`` bits: how far behind the oldest.
        first_time: in, 1 bit, with ``transmits``: it is one more that was sent.
        sent: in, as wide: frames that were sent before.
        count: in, as wide: those of them that are acknowledged.
        expired: out, 1 bit, for one cycle: the timer has run out.
        lost: out, 1 bit, from a register until reset: it did so too often.
    """
    timer, retries = timing.timer_cycles, timing.retries
    resend = Signal(intbv(0, min=0, max=timer + 1))
    tries = Signal(intbv(0, min=0, max=retries + 1))
    running = Signal(bool(0))

    @always_comb
    def judge() -> None:
        expired.next = running and resend == 0 and not judged and not transmits

    @always(domain.clk.posedge)
    def wait() -> None:
        if moves:
            running.next = first_time or sent != count
            resend.next = timer
            tries.next = 0
        elif expired:
            resend.next = timer
            if tries == retries:
                running.next = False
                lost.next = True
            else:
                tries.next = tries + 1
        elif transmits and cursor == 0:
            running.next = True
            resend.next = timer
        elif resend != 0:
            resend.next = resend - 1
        if domain.rst:
            running.next = False
            tries.next = 0
            lost.next = False

    return judge, wait


@block
def receive_state(
    domain: ClockReset, heard: Heard, said: Bit, saying: Saying, data: Bit, *, timing: Timing
) -> Instances:
    """The receiving half: `hdl.link.ethernet.protocol.Receiver`, greetings, and what to say.

    Ports:
        heard: in; frames of this peer.
        said: in, 1 bit: what ``saying`` says is on its way.
        saying: out, but for ``sequence`` and ``slot``; combinational in registers.
        data: in, 1 bit: a frame of DATA waits to be sent.
    """
    timer, ack_cycles, window = timing.timer_cycles, timing.ack_cycles, timing.window
    data_kind, ack_kind, nak_kind, hello_kind, ready_kind = (
        int(kind) for kind in (FrameType.DATA, FrameType.ACK, FrameType.NAK, FrameType.HELLO, FrameType.READY)
    )
    expected = Signal(modbv(0)[SEQUENCE_BITS:])
    owed = Signal(intbv(0, min=0, max=window + 1))
    late = Signal(intbv(0, min=0, max=ack_cycles + 1))
    hello = Signal(intbv(0, min=0, max=timer + 1))
    complained, nak, due, greeted, ready, alone, calls = (Signal(bool(0)) for _ in range(7))

    @always(domain.clk.posedge)
    def judge() -> None:
        alone.next = not said and (due or owed >= (window >> 1) or (owed != 0 and late == 0))
        calls.next = not said and hello == 0
        if domain.rst:
            alone.next = False
            calls.next = False

    @always_comb
    def say() -> None:
        saying.wants.next = True
        saying.kind.next = ack_kind
        if ready:
            saying.kind.next = ready_kind
        elif not greeted:
            saying.kind.next = hello_kind
            saying.wants.next = calls
        elif nak:
            saying.kind.next = nak_kind
        elif data:
            saying.kind.next = data_kind
        else:
            saying.wants.next = alone

    @always_comb
    def out() -> None:
        saying.acknowledge.next = expected

    @always(domain.clk.posedge)
    def receive() -> None:
        if said and saying.kind == nak_kind:
            nak.next = False
        if heard.taken:
            expected.next = expected + 1
            complained.next = False
            nak.next = False
        elif heard.gap:
            complained.next = True
            if not complained:
                nak.next = True
        if domain.rst:
            expected.next = 0
            complained.next = False
            nak.next = False

    @always(domain.clk.posedge)
    def owe() -> None:
        # the first that is owed starts the timer
        if said or owed == 0:
            late.next = ack_cycles
        elif late != 0:
            late.next = late - 1
        if said:
            due.next = False
            owed.next = 0
            if heard.taken:
                owed.next = 1
        elif heard.taken and owed != window:
            owed.next = owed + 1
        if heard.stale:
            due.next = True
        if domain.rst:
            due.next = False
            owed.next = 0

    @always(domain.clk.posedge)
    def greet() -> None:
        if said and saying.kind == hello_kind:
            hello.next = timer
        elif hello != 0:
            hello.next = hello - 1
        if said and saying.kind == ready_kind:
            ready.next = False
        if heard.valid:
            greeted.next = True
            if heard.kind == hello_kind:
                ready.next = True
        if domain.rst:
            hello.next = 0
            greeted.next = False
            ready.next = False

    return judge, say, out, receive, owe, greet
