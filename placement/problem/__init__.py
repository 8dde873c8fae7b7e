"""The problem and its answers as plain data: instances, clusters, plans, options, deadlines, and the validator that
recomputes every constraint from a plan alone.  Nothing here searches.
"""
