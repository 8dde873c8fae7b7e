"""Layers that multiply by weights under a kernel: convolution, depthwise convolution and matrix product, each with its
error and gradient engine.

Their circuits stand in `hdl.engine.window`.
"""
