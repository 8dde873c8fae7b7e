"""The epoch of a device, and how the host has it begin anew.

A reset that the host asks for takes three steps, of which nothing that was on its way survives:

1. What frames must say to be heard is the new epoch from the next cycle on.  ``reset`` is high, for `RESET_CYCLES`,
   and until frames that were being sent have left whole, since a MAC takes no half ones.  They are of the old epoch.
2. ``reset`` falls, and frames say the new epoch.  For `SETTLE_CYCLES` the port keeps silent, so that whatever hears of
   ``reset`` late, as at other clocks, has begun anew before a word passes.
3. The port greets its peers.
"""

from __future__ import annotations

from myhdl import Signal, always, block, intbv

from hdl.signals import Bit, Bits, ClockReset, Instances

RESET_CYCLES = 32
SETTLE_CYCLES = 32


@block
def begin_anew(
    domain: ClockReset,
    resets: Bit,
    told: Bits,
    first: Bits,
    idle: Bit,
    epoch: Bits,
    stamp: Bits,
    reset: Bit,
    holds: Bit,
) -> Instances:
    """Keeps the epoch.  Cost: two epochs and a counter.

    Ports:
        resets: in, 1 bit, for one cycle: begin anew, in epoch ``told``.
        told: in, 16 bits, with ``resets``.
        first: in, 16 bits, constant: the epoch after ``domain``'s reset.
        idle: in, 1 bit, from a register: no frame is being sent.
        epoch: out, 16 bits, from registers: of frames that are heard.
        stamp: out, 16 bits, from registers: of frames that are sent.
        reset: out, 1 bit, from a register: all that words come from and go to begins anew.
        holds: out, 1 bit, from a register: and so does the port.
    """
    first_wait, second_wait = RESET_CYCLES - 1, SETTLE_CYCLES - 1
    left = Signal(intbv(0, min=0, max=max(RESET_CYCLES, SETTLE_CYCLES)))

    @always(domain.clk.posedge)
    def step() -> None:
        if resets:
            epoch.next = told
            reset.next = True
            holds.next = True
            left.next = first_wait
        elif left != 0:
            left.next = left - 1
        elif reset:
            if idle:
                stamp.next = epoch
                reset.next = False
                left.next = second_wait
        else:
            holds.next = False
        if domain.rst:
            epoch.next = first
            stamp.next = first
            reset.next = False
            holds.next = False
            left.next = 0

    return step
