"""Normalisation for one sample at a time, forward and backward.

Its circuits stand in `hdl.engine.norm`; what needs a whole batch before its first result can't be a layer.
"""
