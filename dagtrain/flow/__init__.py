"""The steps from an ONNX file to co-simulated Verilog, each alone and resumable."""
