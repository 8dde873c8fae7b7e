"""Items on devices: the problem as plain data, bounds, searches, and why there is no plan.  Layers, graphs and circuits
are unknown here.  Rooms, from the lowest floor: problem; exact; annealing; bounds; diagnosis; search.  Apart: hypar.
"""
