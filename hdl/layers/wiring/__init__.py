"""Layers without arithmetic of a network: host ports, forks, concatenation, and the update of weights."""
