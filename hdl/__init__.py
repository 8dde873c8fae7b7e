"""Hardware: fixed point, streams, simulation, conversion to Verilog, resource counting."""

from hdl.elaboration.patches import install

install()
