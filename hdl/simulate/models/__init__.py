"""What stands around a design in a simulation: hosts, the network between FPGAs, DRAM.  Circuits too, but none that is
delivered.
"""
