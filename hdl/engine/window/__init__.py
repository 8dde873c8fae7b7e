"""Engines whose kernel slides over a map: the walk that orders their work, the rows they keep, and their circuits.

The walk's geometry serves the cycle counts and the circuits alike.  Layers' parameters, golden models and foldings
stand in `hdl.layers`.
"""
