"""Arithmetic on lanes: products, rounding, saturation, tables, serial division and roots.  Each keeps its numbers
between registers as docs/timing.md asks.  No memories of tensors, no order of elements.
"""
