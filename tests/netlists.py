"""What Yosys makes of layers drawn by seed, of self-test circuits and of compressors, in tests/netlists.json: cells by
type, and digests of their Verilog.

    .venv/bin/python -m tests.netlists

synthesises those whose Verilog is not the one that is stored, and writes the file.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from benchmarks.timing import MODULE, Build, circuit_text, layer_circuit
from dagtrain.files import write_text
from hdl.convert.verilog import VerilogModule
from hdl.costs.estimate import elaborated_contents
from hdl.costs.resources import Resources
from hdl.costs.synthesis import Synthesis, counted_text, synthesise
from hdl.dram.axi import AxiFormat
from hdl.engine.codec.bursts import Bursts
from hdl.engine.codec.compressor import Compressor
from hdl.engine.codec.decompressor import Decompressor
from hdl.engine.codec.float_codec import FloatCodec, Kind
from hdl.engine.codec.integer_codec import IntegerCodec
from hdl.layers.base import Layer
from hdl.layers.registry import load_layers
from hdl.selftest.console import Console
from hdl.selftest.march import March
from hdl.selftest.prbs import PrbsCheck, PrbsSource
from hdl.unit import Unit
from tests.layer_support import all_examples

# payload widths of its streams, and what builds it
Circuit: TypeAlias = tuple[Mapping[str, int], Build]

STORE = Path(__file__).with_name("netlists.json")
COMMAND = "python -m tests.netlists"
# kinds of layers drawn with this seed, and those that are looked at whatever it is; of each an example, each drawn by
# itself: a kind more leaves the others' as they are
SEED, KINDS, ALWAYS = 1, 15, (
    "HardSigmoid", "Sigmoid", "ChannelAffine", "Collect", "Deal", "GradientSum", "RingStore", "RowDeal", "RowGather",
    "SaturationCounter", "WeightStore",
)  # fmt: skip

# the paper's words
BURSTS = Bursts(codec=IntegerCodec(5), elements=1000)
FLOAT_BURSTS = Bursts(codec=FloatCodec(10, Kind.BOUNDED), elements=1000, lanes=8)
# circuits that are no layers: a wide one of each kind that holds sums, comparisons and choices
BESIDE: Mapping[str, Unit] = {
    "PrbsSource": PrbsSource(word_bits=256),
    "PrbsCheck": PrbsCheck(word_bits=256),
    "March": March(format=AxiFormat(data_bits=128, address_bits=26), burst=8),
    "Console": Console(links=3, channels=2, values=24),
    "Compressor": Compressor(bursts=BURSTS),
    "Decompressor": Decompressor(bursts=BURSTS),
    "CompressorOfFloats": Compressor(bursts=FLOAT_BURSTS),
    "DecompressorOfFloats": Decompressor(bursts=FLOAT_BURSTS),
}


@dataclass(frozen=True)
class Netlist:
    """A circuit as Yosys mapped it."""

    # of the Verilog that is synthesised
    digest: str
    synthesis: Synthesis


def drawn() -> dict[str, Layer]:
    """Examples of layers by name."""
    examples = all_examples(load_layers().values())
    draws = {kind: random.Random(f"{SEED} {kind}") for kind in {name.rsplit("-")[0] for name in examples}}
    ranks = {kind: draw.random() for kind, draw in draws.items()}
    chosen = sorted({*ALWAYS, *sorted(ranks, key=ranks.__getitem__)[:KINDS]})
    names = [draws[kind].choice([name for name in sorted(examples) if name.rsplit("-")[0] == kind]) for kind in chosen]
    return {name: examples[name] for name in names}


def circuits() -> dict[str, Circuit]:
    """All circuits by name."""
    layers = {name: layer_circuit(layer) for name, layer in drawn().items()}
    return layers | {name: (unit.streams, unit.build) for name, unit in BESIDE.items()}


def text_of(circuit: Circuit) -> str:
    """The Verilog of a circuit as it is synthesised for its count."""
    return counted_text(circuit_text(*circuit))


def digest_of(text: str) -> str:
    """Of Verilog."""
    return hashlib.sha256(text.encode()).hexdigest()


def counted(circuit: Circuit) -> Resources:
    """The contents of a circuit, as they are estimated."""
    return elaborated_contents(*circuit)


def stored() -> dict[str, Netlist]:
    """What was written, by name."""
    if not STORE.exists():
        return {}
    record = json.loads(STORE.read_text())["netlists"]
    return {name: Netlist(item["digest"], Synthesis(item["cells"])) for name, item in record.items()}


def stale(found: Mapping[str, str], known: Mapping[str, Netlist]) -> list[str]:
    """Names whose Verilog of this digest is not the one that is stored, and of what is stored and no longer drawn."""
    return sorted(name for name in {*found, *known} if name not in known or known[name].digest != found.get(name))


def main() -> None:
    """Write the store."""
    known, rows = stored(), {}
    for name, circuit in circuits().items():
        text = text_of(circuit)
        digest = digest_of(text)
        if name not in known or known[name].digest != digest:
            known[name] = Netlist(digest, synthesise(VerilogModule(MODULE, text, (), {})))
        rows[name] = {"digest": digest, "cells": dict(sorted(known[name].synthesis.cells.items()))}
        print(name, known[name].synthesis.alm, flush=True)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(rows.items()))
    write_text(STORE, f'{{"command": {json.dumps(COMMAND)}, "netlists": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
