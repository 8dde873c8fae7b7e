"""Weights on their way: two versions on chip, streams of a version, gradients rounded, and the update.

Which version a frame uses is the version rule of `hdl.layers.versions`; what multiplies by them is `window`'s.
"""
