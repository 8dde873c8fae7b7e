"""The steps from an ONNX file to co-simulated Verilog, each alone and resumable.

A module is one command: what it depends on, what it leaves in the working folder, what it tells.  The work itself is
done by other rooms; nothing here prints, sets exit codes or is asked by any room but the command line.
"""
