"""One self-contained HTML page about a run: graph, plan, bottleneck, resources, curves.  Figures come from the results
of steps; none is worked out here.
"""
