"""Pieces that multiply-accumulate engines share: row store, window walk, weight buffer, adder trees, rounding."""
