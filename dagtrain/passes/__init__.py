"""Graph to graph: differentiation, calibration, forks, relays, splitting, folding, memories outside.  A pass asks the
layer and keeps no list of them; it never looks at devices' resources.
"""
