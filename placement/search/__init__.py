"""The search for the least T: where it stands, the loops that improve it, and questions of what would change it.

Models, moves and bounds stand in the rooms below; here is only decided which of them is asked next, and for how long.
"""
