"""Plans and infeasible problems in words and numbers: what binds, which constraints are at fault, what is the cure.

It explains what the solvers found and improves nothing.
"""
