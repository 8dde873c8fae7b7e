"""What can be told of an elaborated circuit without running it: ranges of values, bits that matter, bits that agree.

Nothing here changes a circuit or counts what it costs; findings are proofs, never samples.
"""
