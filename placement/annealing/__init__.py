"""Placements by annealing at one T: the state as arrays, its kernel, and the rounding to exact configurations."""
