"""Run a circuit on lists of beats, in MyHDL, in Icarus or in Verilator, through one function.

design = Design("relu_8", factory, (StreamPort("x", 128, Direction.IN), StreamPort("y", 128, Direction.OUT)))
run = run_streams(Backend.VERILATOR, design, {"x": beats}, {"y": len(beats)}, seed=1)
run.outputs["y"], run.fire_cycles["y"], run.cycles
"""

from hdl.cache import cache_folder
from hdl.convert.netlist import Direction
from hdl.simulate.design import Backend, Design, Run, StreamPort
from hdl.simulate.run import check_no_x, run_streams

__all__ = [
    "Backend",
    "Design",
    "Direction",
    "Run",
    "StreamPort",
    "cache_folder",
    "check_no_x",
    "run_streams",
]
