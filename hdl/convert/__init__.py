"""MyHDL blocks to Verilog text that means the same: lint of what MyHDL converts wrongly, netlists of instances, memory
images, and the programs that read Verilog.  No circuit of the design lives here.
"""
