"""The steps of the command line, one module each: what a step depends on, what it leaves, each alone and resumable.
Work itself is done in the rooms below; terminals are known to `dagtrain.cli` alone.

``flow.place_step`` imports the step when it is first asked for: one brings solvers, another readers of models.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # isort: off
    from dagtrain.flow import (
        bring_up_step as bring_up_step,
        check_step as check_step,
        clean_step as clean_step,
        cosim_step as cosim_step,
        debug_step as debug_step,
        drive_step as drive_step,
        emit_step as emit_step,
        estimate_step as estimate_step,
        evaluate_step as evaluate_step,
        explain_step as explain_step,
        export_step as export_step,
        import_step as import_step,
        mapping_step as mapping_step,
        parallelize_step as parallelize_step,
        place_options as place_options,
        place_step as place_step,
        placed as placed,
        probe_step as probe_step,
        profile_step as profile_step,
        report_step as report_step,
        selftest_step as selftest_step,
        serve_step as serve_step,
        show as show,
        simulate_step as simulate_step,
        status_step as status_step,
        sweep_step as sweep_step,
        timing_step as timing_step,
        train_step as train_step,
        trained as trained,
        walls_step as walls_step,
    )

    # isort: on
else:

    def __getattr__(name: str) -> ModuleType:
        """A module of this room."""
        whole = f"{__name__}.{name}"
        if name.startswith("_") or find_spec(whole) is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(whole)
