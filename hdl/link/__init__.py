"""The network port of a device: element streams to words of a link and back, with numbers and credits.

A *word* is one flat payload (`LinkFormat`): data, last, sequence number, stream number, a mark for credits, the device
it goes to.  At the port of the device it is an AXI4-Stream transfer: data = TDATA, last = TLAST, device = TDEST,
stream = TID, credit and sequence = TUSER.  Words of different streams may interleave; those of one stream stay in
order, which the receiver checks by sequence number.

One credit is the right to send one word.  A sender starts with as many as the receiver's FIFO holds, spends one a
word, and gets them back in credit words, which need none themselves.  So no receiver overflows, a network port never
waits for a layer, and no stream blocks another.

A device is wired of units of one to eight streams, so that all are converted once and instantiated often::

    x ──▶ egress ──▶ merges ──▶┐                     ┌──▶ split ──ys──▶ ingress ──▶ y
            ▲                  merge ──▶ port ──▶ …  │     rest           │ returned
            │ credits     credit word    (switch)    └──▶ split … ──▶ drain └──▶ merges (of the receiving device)
          split                ▲
                             merges

Stream number and device are input ports of the units, tied to constants by the netlist.

Where cables join devices and no switch does, each passes on words for others, by a table, between its cables and the
units above (`hdl.link.forward`).

Where a device has another clock than the network, all of its words cross between the two clocks on their way to the
port and from it (`hdl.link.clocks`); the units above know nothing of that.  Frames of Ethernet cross between a device
and the clocks of its MAC (`hdl.link.ethernet.clocked`).
"""
