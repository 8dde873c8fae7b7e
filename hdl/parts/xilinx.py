"""Parts of Xilinx, packed by their family's rules; block memories are RAMB36, of two RAMB18.

Sources: Xilinx 7 Series Overview (DS180), 7 Series Memory Resources (UG473) and DSP48E1 (UG479) guides.
"""

from __future__ import annotations

import math

from hdl.parts.part import DspMode, LogicCell, LutMemory, Part, shapes

# one function (Yosys uses the second output of none), the propagate signal of one carry bit, two flip-flops; inverters
# vanish, since flip-flops may start with 1 and a carry bit's table inverts
LUT6 = LogicCell(name="LUT", tables={1: math.inf, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1}, adder_bits=1, registers=2)

XILINX = (
    Part(
        name="XC7VX690T",
        family="Virtex-7",
        alm=433_200,
        registers=866_400,
        m20k=1_470,
        dsp=3_600,
        block_memory="RAMB36",
        m20k_bits=36_864,
        m20k_shapes=shapes((512, 72), (1024, 36), (2048, 18), (4096, 9)),
        # true dual port: no port is wider than 36 bits
        dual_shapes=shapes((1024, 36), (2048, 18), (4096, 9)),
        # 64×1 (or 32×2) a look-up table; 10 888 kbit at most (DS180)
        lut_memory=LutMemory(name="LUTRAM", shapes=shapes((64, 1), (32, 2)), logic_cells=1, blocks=174_208),
        # two blocks add two products: PCOUT to PCIN
        dsp_modes=(DspMode(width_a=25, width_b=18, multipliers=1, sums=True),),
        logic_cell=LUT6,
        half_shapes=shapes((512, 36), (1024, 18), (2048, 9)),
        dual_half_shapes=shapes((1024, 18), (2048, 9)),
    ),
)
