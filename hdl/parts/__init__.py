"""FPGA parts: what a device holds, and how many blocks a multiplier or a memory takes.

Totals of a part are facts of its data sheet; clock, DRAM and links belong to the board and stand in the
cluster file. Nothing here estimates: widths and shapes come from the elaborated circuit, and these rules
turn them into blocks.

`part` has what every part is, `intel` and `xilinx` the parts of each maker with their packing and sources, `catalogue`
all of them by name.  Nothing here knows circuits.
"""
