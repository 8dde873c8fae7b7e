"""Layers that make one element of many without weights, and give its error back to them.

Their circuits with a kernel stand in `hdl.engine.window`.
"""
