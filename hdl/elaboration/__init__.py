"""What elaborating a MyHDL block takes: changes to MyHDL, syntax trees worked out once, many circuits in processes.

Nothing here knows what a circuit is for or what is read off it.
"""
