"""Data or model parallelism for each layer of a network at each level of an array of accelerators, as Song et al.
published it (HyPar, HPCA 2019), and exactly.  Plain data: no graphs, no circuits, no cluster files.
"""
