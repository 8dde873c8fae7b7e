"""dagtrain: from an ONNX model to streaming FPGA hardware that trains it, layer-parallel, on a cluster.

In the root stands what every room uses, whole files, progress, rates, threads, and the command line, which uses all
rooms; whatever knows a graph, a plan, a circuit or a step has a room of its own (docs/architecture.md draws them).
"""

__version__ = "0.1.0"
