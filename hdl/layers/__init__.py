"""Every node of a training graph, one file a layer: parameters, shapes, cycles, meaning, backward rule, circuit,
examples.

The root has what a layer is (`base`, and its facets `shape`, `meaning`, `timing`, `storage`) and what layers share; a
layer stands in the room of its kind, and the registry finds it there.  A layer knows no other device, pass or file, and
other layers only for its backward nodes.
"""
