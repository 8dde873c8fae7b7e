"""Frames between devices and the host over Ethernet: Ethernet II, IPv4, UDP, a header of ours, words, CRC-32C.

`frame` is the one definition of what a frame looks like: circuits take their constants from it, the codec in Python and
the Wireshark dissector too.  `keyed` is the check with the cluster's key, `tag` its circuit.  `protocol` is go-back-N
between two peers in Python: what circuits are held against.
"""
