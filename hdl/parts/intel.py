"""Parts of Intel, packed by their families' rules.

Sources: Intel Arria 10 Device Overview (A10-OVERVIEW, table of Arria 10 GX resources) and Arria 10 Core Fabric
Handbook (A10-HANDBOOK: embedded memory, variable-precision DSP); Intel Agilex 7 FPGAs and SoCs Device Overview
(683458, F-series), Agilex 7 Embedded Memory (683241) and Variable Precision DSP (683037) user guides.
"""

from __future__ import annotations

from hdl.parts.part import DspMode, LogicCell, LutMemory, Part, shapes

# two functions of five inputs, two full adders (of three values each), four flip-flops
ALM = LogicCell(name="ALM", tables={1: 2, 2: 2, 3: 2, 4: 2, 5: 2, 6: 1}, adder_bits=2, registers=4)
_M20K_SHAPES = shapes((512, 40), (1024, 20), (2048, 10))
# true dual port: no port is wider than 20 bits
_DUAL_SHAPES = shapes((1024, 20), (2048, 10))
_MLAB_SHAPES = shapes((32, 20), (64, 10))
_TWO_18X19 = DspMode(width_a=19, width_b=18, multipliers=2, sums=True)
_ONE_27X27 = DspMode(width_a=27, width_b=27, multipliers=1)
_FOUR_9X9 = DspMode(width_a=9, width_b=9, multipliers=4)


def _intel(name: str, family: str, *, alm: int, m20k: int, dsp: int, mlab: int, modes: tuple[DspMode, ...]) -> Part:
    """An Intel part: four registers an ALM, an MLAB is one LAB of ten ALMs holding 640 bits."""
    return Part(
        name=name,
        family=family,
        alm=alm,
        registers=4 * alm,
        m20k=m20k,
        dsp=dsp,
        block_memory="M20K",
        m20k_bits=20_480,
        m20k_shapes=_M20K_SHAPES,
        dual_shapes=_DUAL_SHAPES,
        lut_memory=LutMemory(name="MLAB", shapes=_MLAB_SHAPES, logic_cells=10, blocks=mlab),
        dsp_modes=modes,
        logic_cell=ALM,
    )


INTEL = (
    _intel(
        "10AX115", "Arria 10 GX", alm=427_200, m20k=2_713, dsp=1_518, mlab=20_774,
        modes=(_TWO_18X19, _ONE_27X27),
    ),
    _intel(
        "AGFB014", "Agilex 7 F", alm=487_200, m20k=7_110, dsp=4_510, mlab=24_360,
        modes=(_FOUR_9X9, _TWO_18X19, _ONE_27X27),
    ),
    _intel(
        "AGFB027", "Agilex 7 F", alm=912_800, m20k=13_272, dsp=8_528, mlab=45_640,
        modes=(_FOUR_9X9, _TWO_18X19, _ONE_27X27),
    ),
)  # fmt: skip
