"""Hardware, and all that is known of it without a network: formats, streams, circuits, layers, Verilog, costs.

The root holds the vocabulary that every room uses (formats, tensors, streams, memories, random bits, errors).  Rooms,
from the lowest floor: parts; elaboration; streams, analysis; link, dram, convert; simulate, engine; layers; costs.  No
room imports one above it (import-linter holds it), and none knows graphs, placements or files of users.
"""

from hdl.elaboration.patches import install

install()
