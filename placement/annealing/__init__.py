"""Placements at one T by simulated annealing: an instance as arrays, the kernel, and rounding to configurations.

The T is given: which one is tried next is the search's decision.  What a room above is told was checked exactly, and
that nothing was found proves nothing.
"""
