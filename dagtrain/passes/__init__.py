"""Graph to graph: differentiation, calibration, forks, relays, splitting, folding, memories outside, placing.  Every
pass goes through `dagtrain.passes.apply`, which verifies what it gets and what it makes.  A pass asks the layer and
keeps no list of them; it never looks at devices' resources.
"""
