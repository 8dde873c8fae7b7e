"""Proven bounds on T: each drops constraints and refutes the rest exactly, in integers.  Only INFEASIBLE refutes."""
