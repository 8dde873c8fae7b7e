"""How fast a cluster trains, simulated without what it computes: exact, by the control of the Verilog alone, or fast,
by events of what layers declare.  It reads delivered files or a placed graph; of values it knows none.
"""
