"""Layers that normalise by statistics of their own input."""
