"""One self-contained HTML page about a run: graph, plan, bottleneck, resources, curves."""
