"""Hardware: fixed point, streams, simulation, conversion to Verilog, resource counting."""

from hdl import elaboration

elaboration.install()
