"""Online normalisation as circuits, forward and backward, and the integer arithmetic that both rest on.

The layers' ports, golden models and backward rules stand in `hdl.layers.norm`.
"""
