"""Placement of items on devices: the least cycles a frame, a proven bound for it, and what binds.

Items, configurations, links and devices are plain data.  Layers, graphs and circuits may not come in here: whoever
prices them hands over numbers.  Rooms build on each other in this order: `problem`, `exact`, `annealing`, `bounds`,
`diagnosis`, `search`.
"""
