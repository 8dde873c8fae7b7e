"""dagtrain: from an ONNX model to streaming FPGA hardware that trains it, layer-parallel, on a cluster."""

__version__ = "0.1.0"
