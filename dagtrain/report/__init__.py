"""One self-contained HTML page about a run: graph, plan, bottleneck, resources, curves.

Figures are taken from what the steps left and put into words and pictures; none is computed anew.
"""
