"""Layers with a kernel of weights: dense and depthwise convolution; forward, error and gradient engines.

`engine` and `roles` say once what they share, `dense` and `depthwise` are the layers; a matrix product (`gemm`) is a
convolution whose kernel covers the map.  Windows without weights are pools; `hdl.layers.windowed` is what both share.
"""
