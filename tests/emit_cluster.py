"""Write all files of the tiny cluster, with Ethernet ports if so said: `python -m tests.emit_cluster FOLDER PROCESSES
[ethernet]`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dagtrain.emission.modules import ModuleLibrary
from hdl.cache import cache_folder
from tests.cosim_support import deliver, tiny_design
from tests.test_ethernet_emission import designed


def main() -> None:
    """See the module."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[2])])
    library = ModuleLibrary(cache_folder() / "modules")
    design = designed() if sys.argv[3:] == ["ethernet"] else tiny_design(library)
    deliver(design, library, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
