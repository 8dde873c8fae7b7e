"""Graph to numbers of time: when each node works, how deep its FIFOs are, how long a batch takes.  What a layer needs
to say for that is its `Timing` facet.
"""
