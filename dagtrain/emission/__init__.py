"""From a placed streaming graph to one folder of Verilog an FPGA: tops, network ports, memories, images, project files,
and the manifest by which they are read back.  What a layer is inside is the layer's.
"""
