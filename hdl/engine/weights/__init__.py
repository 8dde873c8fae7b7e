"""Weights on their way: double buffers, streams of them, the update, and the rounding of gradients.  The order in which
weights stream is `hdl.tensor.Tile`'s.
"""
