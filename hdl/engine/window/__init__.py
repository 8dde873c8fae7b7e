"""Engines that slide a window over a map: the walk through it, rows kept, products and sums; dense, channelwise,
pooling, and their gradients.  Which walk a layer takes is the layer's.
"""
