"""Nodes that compute nothing of the network itself: copies, joins of maps, the host's ports, and the update of weights.

Whatever makes new values of an activation or an error belongs to another room.
"""
