"""Layers that take a map element by element, a beat at a time, and keep at most a mask for the way back.

What reads a neighbour of an element belongs to another room.
"""
