"""Arithmetic of engines as circuits: lanes, exact sums and their one rounding, products with constants, slow operations
that take a few bits a cycle.

Each equals an integer function bit for bit; no layer, tensor or memory of weights is known here.
"""
