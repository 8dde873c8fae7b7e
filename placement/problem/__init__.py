"""What is asked and what is answered: instances, cluster files, plans and their judge, options, the deadline.

All of it is plain data with checks, and knows no solver: the validator recomputes a plan from the instance alone.
"""
