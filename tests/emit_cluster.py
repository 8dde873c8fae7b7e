"""Write all files of the tiny cluster: `python -m tests.emit_cluster FOLDER PROCESSES`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dagtrain.emission.modules import ModuleLibrary
from hdl.cache import cache_folder
from tests.cosim_support import deliver, tiny_design


def main() -> None:
    """See the module."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[2])])
    library = ModuleLibrary(cache_folder() / "modules")
    deliver(tiny_design(library), library, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
