"""What a circuit costs: its contents, blocks of a part, look-up tables and slowest paths, and synthesis beside them.

Every number is read off the circuit or its Verilog: no formula for a layer may come in here.
"""
