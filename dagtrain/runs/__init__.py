"""Many jobs over processes and machines: what a job is, and who runs them.

A job is a function of a module with its words, and what comes back is plain data: nothing here knows a graph, a plan or
a step, and nothing is kept here.  Whoever hands out jobs keeps each outcome as it comes, and hands out only what is
missing, so that work goes on where it was.
"""
