"""Where in frame and batch a beat stands, and when a frame may start."""

from __future__ import annotations

from myhdl import Signal, always, always_comb, block, intbv

from hdl.signals import Bit, Bits, ClockReset, Instances

# cycles from a beat of one frame to the same beat of the next at least: state is written before it is read again
SETTLING = 8


@block
def beat_counter(
    domain: ClockReset, fire: Bit, group: Bits, first_pixel: Bit, last_pixel: Bit, *, pixels: int, groups: int
) -> Instances:
    """Where in the frame the next beat stands: its ``group`` within the pixel; whether the pixel is first or last.

    Ports:
        fire: in, 1 bit: the beat is accepted at this edge.
        group: out, a number below ``groups``, from a register.
        first_pixel, last_pixel: out, 1 bit each, from registers.
    """
    last_group = groups - 1
    final = pixels - 1
    before_final = max(pixels - 2, 0)
    single = 1 if pixels == 1 else 0
    pixel = Signal(intbv(0, min=0, max=max(2, pixels)))

    @always(domain.clk.posedge)
    def count() -> None:
        if fire:
            if group != last_group:
                group.next = group + 1
            else:
                group.next = 0
                if pixel == final:
                    pixel.next = 0
                    first_pixel.next = True
                    last_pixel.next = single == 1
                else:
                    pixel.next = pixel + 1
                    first_pixel.next = False
                    last_pixel.next = pixel == before_final
        if domain.rst:
            group.next = 0
            pixel.next = 0
            first_pixel.next = True
            last_pixel.next = single == 1

    return count


@block
def batch_counter(
    domain: ClockReset,
    fire: Bit,
    group: Bits,
    last_pixel: Bit,
    first_frame: Bit,
    last_frame: Bit,
    *,
    groups: int,
    batch: int,
) -> Instances:
    """Whether the next beat is of the first or of the last frame of a batch.

    Ports:
        fire, group, last_pixel: in, as of `beat_counter`.
        first_frame, last_frame: out, 1 bit each, from registers.
    """
    last_group, final = groups - 1, batch - 1
    before_final = max(batch - 2, 0)
    single = 1 if batch == 1 else 0
    frame = Signal(intbv(0, min=0, max=max(2, batch)))

    @always(domain.clk.posedge)
    def count() -> None:
        if fire and last_pixel and group == last_group:
            if frame == final:
                frame.next = 0
                first_frame.next = True
                last_frame.next = single == 1
            else:
                frame.next = frame + 1
                first_frame.next = False
                last_frame.next = frame == before_final
        if domain.rst:
            frame.next = 0
            first_frame.next = True
            last_frame.next = single == 1

    return count


@block
def frame_gate(
    domain: ClockReset,
    claimable: Bit,
    done: Bit,
    start: Bit,
    claim: Bit,
    permit: Bit,
    finish: Bit,
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

    Args:
        credits: frames that may start before the first ``done``, norm_lag + 1.
        spacing: least cycles between the starts of frames, at least `shortest_frame`; the layer's cycles a frame, so
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

    @always_comb
    def decide() -> None:
        claim.next = claimable and free != 0 and resting == 0 and settling == 0 and not running and not permit

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


def shortest_frame(beats: int) -> int:
    """Least cycles between frames of so many beats: a frame shorter than `SETTLING` is followed by a pause."""
    return beats if beats >= SETTLING else beats + SETTLING
