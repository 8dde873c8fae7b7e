"""Streams through a memory outside: FIFOs, rings and replays on an AXI4 port, and how ports share it.

Which data lie there is decided elsewhere; models of the memory itself belong to `hdl.simulate`.
"""
