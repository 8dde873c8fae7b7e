"""Memories of other layers: what lies in block memory of a node of its own, on any device.

A layer that keeps its large memory elsewhere (`hdl.layers.storage.Home`) has the same ports whether that is DRAM or a
store: `WeightStore` gives each frame the version of the weights that it sees, `RingStore` gives back what a layer sent
out.  What may be written and read when is said once for both, in `hdl.dram.rules`."""
