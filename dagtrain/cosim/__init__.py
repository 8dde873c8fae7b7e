"""Co-simulation of the emitted Verilog against the emulator: devices and whole clusters, bit for bit."""
