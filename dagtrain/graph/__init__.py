"""The graph that everything is made from: nodes and edges and what is legal (`ir`), written in Python (`builder`), in
files (`storage`), as a table (`summary`), run in NumPy (`executor`).

No kind of layer is known here, nor a pass, a device or a circuit: a node is asked, and a graph is never changed.
"""
