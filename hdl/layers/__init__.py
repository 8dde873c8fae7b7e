"""The layers: one class for each thing that a node of a training graph can be, and what all of them promise.

A layer says its shapes, cycles, golden model, reference, backward rule and circuit (docs/adding-a-layer.md).  It knows
no other node, no device and no file; what several layers' circuits share stands in `hdl.engine`.
"""
