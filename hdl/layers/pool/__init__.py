"""Layers that make one element of several of a channel, without weights."""
