"""Graphs of layers: nodes, edges and what is legal at each stage, how they are built, executed, stored and summed up.
Nothing here knows time, devices or circuits.
"""
