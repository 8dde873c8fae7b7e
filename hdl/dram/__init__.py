"""Streams through DRAM: an AXI4 port and the units that keep a stream's tensors behind it.  A memory for simulations is
in `hdl.simulate.models`; which stream goes to DRAM is decided in planning.
"""
