"""Numbers read off a folded graph: when each frame flows, how deep each FIFO must be, how long a batch takes.

Nothing here changes a graph or knows a device: what links and memories add comes in as cycles an edge.
"""
