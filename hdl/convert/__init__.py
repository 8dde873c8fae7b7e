"""From elaborated blocks to Verilog: the gate that refuses what MyHDL would convert wrongly, modules, netlists, images.

The same block gives the same text.  What a circuit computes, and tools that simulate or synthesise the text, stand
elsewhere.
"""
