"""Write the Verilog of the first example of some layers, `ethernet` for the units of an Ethernet port:
`python -m tests.emit_modules FOLDER LAYER …`."""

from __future__ import annotations

import sys
from pathlib import Path

from dagtrain.emission.links import port_share, unit_module
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.files import write_text
from hdl.layers.registry import load_layers
from hdl.link.ethernet.adapter import AVALON, MacAdapter
from hdl.link.ethernet.frame import FrameFormat
from hdl.link.ethernet.packer import Packer
from hdl.link.ethernet.port import EthernetPort
from hdl.link.format import LinkFormat
from hdl.unit import Unit


def ethernet_units() -> dict[str, Unit]:
    """Of a port with three peers."""
    frames, form = FrameFormat(word_bits=64, mtu=576), LinkFormat(word_bits=64, streams=9, devices=1)
    port = EthernetPort(packer=Packer(frames=frames, form=form, regions=(2 * frames.payload_beats,) * 3))
    _, (merge, _), (stage, _) = port_share(form, framed=True, sends=True)
    return {"port": port, "mac": MacAdapter(sink=port.sink, kind=AVALON), "merge": merge, "stage": stage}


def main() -> None:
    """See the module."""
    folder, library = Path(sys.argv[1]), ModuleLibrary()
    for name in sys.argv[2:]:
        if name == "ethernet":
            made = [unit_module(library, kind, unit) for kind, unit in ethernet_units().items()]
        else:
            made = [library.layer(load_layers()[name].examples()[0])]
        for module in made:
            write_text(folder / f"{module.name}.v", module.verilog.text)


if __name__ == "__main__":
    main()
