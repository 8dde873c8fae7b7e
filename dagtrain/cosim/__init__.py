"""Co-simulation of delivered files: a bench around all tops, in Verilog or MyHDL, and the comparison with the emulator,
bit for bit.  It reads what emission delivered, never how it was made.
"""
