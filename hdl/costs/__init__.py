"""What a circuit costs: contents counted off its data flow and packed into a part, synthesis and timing to compare
with.  There are no formulas beside the circuits; who chooses between circuits is `placement`.
"""
