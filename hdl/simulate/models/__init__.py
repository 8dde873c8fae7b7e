"""What stands around a device in simulation: hosts, networks, memories.

They convert to Verilog as circuits do, but are built into no device.
"""
