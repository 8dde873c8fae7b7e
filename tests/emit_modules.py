"""Write the Verilog of the first example of some layers: `python -m tests.emit_modules FOLDER LAYER …`."""

from __future__ import annotations

import sys
from pathlib import Path

from dagtrain.emission.modules import ModuleLibrary
from dagtrain.files import write_text
from hdl.layers.registry import load_layers


def main() -> None:
    """See the module."""
    folder, library = Path(sys.argv[1]), ModuleLibrary()
    for name in sys.argv[2:]:
        module = library.layer(load_layers()[name].examples()[0])
        write_text(folder / f"{module.name}.v", module.verilog.text)


if __name__ == "__main__":
    main()
