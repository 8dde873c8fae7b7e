"""Graph -> graph: one pass a file, a pure function whose docstring lists its cases.

A pass asks layers what they can do and never what they are.  Numbers that are read off a graph stand in
`dagtrain.schedule`; searches, files and devices' capacities are of no concern here.
"""
