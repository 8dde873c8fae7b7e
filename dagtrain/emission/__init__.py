"""From a placed streaming graph to one folder of Verilog an FPGA.

Here stand the design of a cluster and its tops, network and memory ports, manifests, images and project files.  How a
layer works inside is `hdl`'s, why a node stands where it does the planner's; nothing is simulated here.
"""
