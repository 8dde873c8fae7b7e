"""Layers that take each element by itself: activations, dropout, biases, sums."""
