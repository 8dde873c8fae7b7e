"""The last rows of a map in a ring, read at random while new rows arrive; shared by every layer with a kernel."""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import Signal, always, always_comb, block, intbv

from hdl.memory import address_width, simple_dual_port
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream

# cycles from `read` to the words
READ_LATENCY = 2


@block
def row_store(
    domain: ClockReset,
    x: Stream,
    row_written: Bit,
    freed: Bits,
    read: Bit,
    addresses: Sequence[Bits],
    words: Sequence[Bits],
    *,
    rows: int,
    row_words: int,
) -> Instances:
    """A ring of ``rows`` rows of ``row_words`` words; frames follow one another without a gap.

    Word ``i`` of the endless input lies at address ``i % (rows * row_words)`` until its row is freed.  The store takes
    a word a cycle and stalls ``x`` before a row for which there is no room.  Costs one memory of ``rows * row_words``
    words a read port (each port reads a copy), and counters.

    Ports:
        x: in, stream of words of any width in raster order (a width adapter in front makes them of the layer's beats);
            ready from registers.
        row_written: out, 1 bit, from a register: high for one cycle once a whole row can be read.
        freed: in, unsigned, of any width: the number of oldest rows that are no longer needed; it may change together
            with the last read of such a row.  0 in most cycles.
        read: in, 1 bit: read enable of all ports.
        addresses: in, `address_width` ``(rows * row_words)`` bits a port, with ``read``.
        words: out, a vector a port, as wide as ``x``, `READ_LATENCY` cycles after ``read``.
    """
    depth = rows * row_words
    width = x.width
    last_word, last_column = depth - 1, row_words - 1
    at = Signal(intbv(0)[address_width(depth) :])
    column = Signal(intbv(0)[address_width(row_words) :])
    # rows that may still be begun; rows that nothing reads are freed before they come
    room = Signal(intbv(rows, min=0, max=rows + (1 << len(freed)) + 1))
    ready, fire, opens = Signal(bool(0)), Signal(bool(0)), Signal(bool(0))
    copies = [
        simple_dual_port(
            domain.clk,
            fire,
            at,
            x.payload,
            read,
            addresses[port],
            words[port],
            depth=depth,
            width=width,
            output_register=True,
        )
        for port in range(len(words))
    ]

    @always_comb
    def accept() -> None:
        ready.next = column != 0 or room != 0

    @always_comb
    def handshake() -> None:
        fire.next = x.valid and ready
        opens.next = x.valid and ready and column == 0
        x.ready.next = ready

    @always(domain.clk.posedge)
    def write() -> None:
        row_written.next = False
        if fire:
            if at == last_word:
                at.next = 0
            else:
                at.next = at + 1
            if column == last_column:
                column.next = 0
                row_written.next = True
            else:
                column.next = column + 1
        if domain.rst:
            at.next = 0
            column.next = 0
            row_written.next = False

    @always(domain.clk.posedge)
    def count() -> None:
        if opens:
            room.next = room + freed - 1
        else:
            room.next = room + freed
        if domain.rst:
            room.next = rows

    return copies, accept, handshake, write, count
