"""The poster's equations as decision problems for CP-SAT: the model that settles small instances, and the method as
written in the poster.

Which T is asked about, and how long, is said by whoever asks; no other way to find a placement may come in here.
"""
