"""Layers with a kernel of weights: dense and depthwise convolution, and the matrix product as one of 1x1; forward,
error and gradient engines.
"""
