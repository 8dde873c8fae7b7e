"""Softmax with cross-entropy as a circuit, and the integer functions that it computes.

The layer's ports, golden model and backward rule stand in `hdl.layers.loss`.
"""
