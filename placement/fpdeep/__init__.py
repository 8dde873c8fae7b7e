"""The mapping of a chain of convolutions to a chain of equal boards, as Wang, Geng et al. published it (FPDeep, IEEE TC
2020; FPL 2018).  Plain data: no graphs, no circuits, no cluster files.
"""
