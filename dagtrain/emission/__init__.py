"""From a placed streaming graph to one folder of Verilog an FPGA."""
