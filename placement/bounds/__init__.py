"""Cycles a frame below which no placement exists: one relaxation a file, refuted exactly, in integers.

A placement is looked for only to see that a relaxation can't be refuted; no bound rests on one that was found or not.
"""
