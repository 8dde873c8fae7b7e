"""What a board is tested with before anything is trained on it: words that both ends of a link know, a march through
DRAM, and counters that the host reads.  The golden models of all of it stand beside the circuits.
"""
