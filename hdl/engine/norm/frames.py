"""Where in frame and batch a beat stands, and when a frame may start."""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.norm.bundles import BatchBeat, Beat
from hdl.engine.norm.shapes import SETTLING, NormShape
from hdl.engine.weights.access import Batches, batches_left
from hdl.engine.weights.buffer import weight_buffer
from hdl.engine.weights.records import COUNTER_BITS
from hdl.engine.weights.update import tensor_ends
from hdl.memory import address_width
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream


@block
def beat_counter(domain: ClockReset, beat: Beat, *, pixels: int, groups: int) -> Instances:
    """Where in the frame the next beat stands: its group within the pixel; whether the pixel is first or last.

    Ports:
        beat: in and out; takes ``fire``, drives ``group``, ``first_pixel`` and ``last_pixel``.
    """
    last_group = groups - 1
    final = pixels - 1
    before_final = max(pixels - 2, 0)
    single = 1 if pixels == 1 else 0
    pixel = Signal(intbv(0, min=0, max=max(2, pixels)))

    @always(domain.clk.posedge)
    def count() -> None:
        if beat.fire:
            if beat.group != last_group:
                beat.group.next = beat.group + 1
            else:
                beat.group.next = 0
                if pixel == final:
                    pixel.next = 0
                    beat.first_pixel.next = True
                    beat.last_pixel.next = single == 1
                else:
                    pixel.next = pixel + 1
                    beat.first_pixel.next = False
                    beat.last_pixel.next = pixel == before_final
        if domain.rst:
            beat.group.next = 0
            pixel.next = 0
            beat.first_pixel.next = True
            beat.last_pixel.next = single == 1

    return count


@block
def batch_counter(domain: ClockReset, beat: BatchBeat, *, groups: int, batch: int) -> Instances:
    """Whether the next beat is of the first or of the last frame of a batch.

    Ports:
        beat: in and out; drives ``first_frame`` and ``last_frame``, takes the others but ``first_pixel``.
    """
    last_group, final = groups - 1, batch - 1
    before_final = max(batch - 2, 0)
    single = 1 if batch == 1 else 0
    frame = Signal(intbv(0, min=0, max=max(2, batch)))

    @always(domain.clk.posedge)
    def count() -> None:
        if beat.fire and beat.last_pixel and beat.group == last_group:
            if frame == final:
                frame.next = 0
                beat.first_frame.next = True
                beat.last_frame.next = single == 1
            else:
                frame.next = frame + 1
                beat.first_frame.next = False
                beat.last_frame.next = frame == before_final
        if domain.rst:
            frame.next = 0
            beat.first_frame.next = True
            beat.last_frame.next = single == 1

    return count


@block
def frame_weights(
    domain: ClockReset,
    versions: Stream | None,
    beat: Beat,
    done: Bit,
    may: Bit,
    word: Bits,
    *,
    shape: NormShape,
    contents: Sequence[int] | None,
    batches: Batches | None = None,
) -> Instances:
    """What the beats of each frame are multiplied by, and whether the next frame may start.

    Ports:
        versions: in, stream of words as wide as ``word``, ``shape.groups`` a version, ready from registers; or None:
            all frames have those of the image.
        beat: in, all of it.
        done: in, 1 bit: what the data path needs of the next frame (in order) is in the table at this edge.
        may: out, 1 bit, from registers: the next beat is not of a frame that has to wait.
        word: out, of any width, `READ_LATENCY` cycles after a beat is accepted: that of its group.
        batches: in and out, of which frames may start; drives ``rests``.  None: of all.
    """
    groups, last_group = shape.groups, shape.groups - 1
    claim, claimable, permit, start, finish, frame_last = (Signal(bool(0)) for _ in range(6))
    place = Signal(intbv(0)[address_width(groups) :])
    kept = weight_buffer(
        domain,
        versions,
        claim,
        claimable,
        beat.fire,
        place,
        frame_last,
        word,
        words=groups,
        recipe=shape.recipe,
        contents=contents,
    )
    opened, idle = (None, None) if batches is None else (Signal(bool(0)), Signal(bool(0)))
    gate = frame_gate(
        domain,
        claimable,
        done,
        start,
        claim,
        permit,
        finish,
        opened,
        idle,
        credits=shape.banks,
        spacing=shape.cycles,
        beats=shape.beats,
    )
    limits = [] if batches is None else frames_left(domain, batches, claim, opened, idle, batch=shape.recipe.batch)

    @always_comb
    def decide() -> None:
        may.next = permit or not beat.first_pixel or beat.group != 0
        start.next = beat.fire and beat.first_pixel and beat.group == 0
        finish.next = beat.fire and beat.last_pixel and beat.group == last_group
        frame_last.next = beat.last_pixel and beat.group == last_group
        place.next = beat.group

    return (kept, gate, decide) if batches is None else (kept, gate, limits, decide)


@block
def frames_left(domain: ClockReset, batches: Batches, claim: Bit, opened: Bit, idle: Bit, *, batch: int) -> Instances:
    """Frames start of as many batches as are said; between them all rests.

    Ports:
        batches: in and out; drives ``rests``, from registers.
        claim: in, 1 bit, only while ``opened``: a frame is taken up at this edge.
        opened: out, 1 bit, from a register: one may be.
        idle: in, 1 bit, from registers: what all frames leave has been written.
    """
    left = Signal(intbv(0)[COUNTER_BITS:])
    trained = Signal(bool(0))
    ends = tensor_ends(domain, claim, trained, beats=batch)
    count = batches_left(domain, batches, trained, left)

    @always_comb
    def decide() -> None:
        opened.next = left != 0
        batches.rests.next = left == 0 and idle and not batches.more

    return ends, count, decide


@block
def frame_gate(
    domain: ClockReset,
    claimable: Bit,
    done: Bit,
    start: Bit,
    claim: Bit,
    permit: Bit,
    finish: Bit,
    opened: Bit | None = None,
    idle: Bit | None = None,
    *,
    credits: int,
    spacing: int,
    beats: int,
) -> Instances:
    """Lets a frame start when its weights are there and the statistics it uses are computed.

    Ports:
        claimable: in, 1 bit, of `hdl.engine.weights.buffer`.
        done: in, 1 bit: the statistics after the next frame (in order) are in the table at this edge.
        start: in, 1 bit, only while ``permit``: the first beat of a frame is accepted at this edge.
        claim: out, 1 bit, for `hdl.engine.weights.buffer`, in the same cycle as ``claimable``.
        permit: out, 1 bit, from a register: the next frame may start.
        finish: in, 1 bit: the last beat of a frame is accepted at this edge.
        opened: in, 1 bit, from a register: the next frame may be taken up; None: it always may.
        idle: out, 1 bit, from a register: the statistics after all frames are in the table; or None.

    Args:
        credits: frames that may start before the first ``done``, norm_lag + 1.
        spacing: least cycles between the starts of frames, at least what a frame needs; the layer's cycles a frame, so
            that frames don't come in bursts of ``credits``.
        beats: beats of a frame.
    """
    rest = spacing - 2
    short = beats < SETTLING
    settle = SETTLING - 1 if short else 0
    # of a short frame: it has started and not finished
    running = Signal(bool(0))
    settling = Signal(intbv(0, min=0, max=settle + 2))
    free = Signal(intbv(credits, min=0, max=credits + 1))
    resting = Signal(intbv(0, min=0, max=rest + 1))

    if opened is None or idle is None:

        @always_comb
        def decide() -> None:
            claim.next = claimable and free != 0 and resting == 0 and settling == 0 and not running and not permit

    else:

        @always_comb
        def decide() -> None:
            claim.next = (
                claimable and opened and free != 0 and resting == 0 and settling == 0 and not running and not permit
            )
            idle.next = free == credits

    @always(domain.clk.posedge)
    def count() -> None:
        if claim and not done:
            free.next = free - 1
        elif done and not claim:
            free.next = free + 1
        if start:
            resting.next = rest
        elif resting != 0:
            resting.next = resting - 1
        running.next = short and not finish and (start or running)
        if finish:
            settling.next = settle
        elif settling != 0:
            settling.next = settling - 1
        if claim:
            permit.next = True
        elif start:
            permit.next = False
        if domain.rst:
            free.next = credits
            resting.next = 0
            settling.next = 0
            running.next = False
            permit.next = False

    return decide, count
