"""Co-simulation of the emitted Verilog against the emulator: devices and whole clusters, bit for bit.

Here stand benches, the simulators that run them, watchers of streams, and the comparison.  The design is read back from
the delivered files, so that nothing of how it was made can hide a fault; plans, prices and steps may not come in.
"""
