"""The ranks of `dagtrain cosim --mpi`: the first does all that the command does, the others help it to simulate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dagtrain.cosim.mpi import world
from dagtrain.cosim.ranks import help_out
from dagtrain.cosim.windows import Ranks
from dagtrain.flow.emit_step import library
from dagtrain.flow.workspace import Workspace, program_hash
from hdl.errors import DagtrainError


def on_ranks(out: Path, work: Callable[[], None], interrupted: int) -> bool:
    """Do the ``work`` at rank 0, and what it asks for at the others; returns whether all went well here.

    Ctrl-C ends all of them with the code ``interrupted``.  Raises `DagtrainError` where there are no ranks."""
    ranks = world()
    try:
        if ranks.rank:
            return help_out(ranks, program_hash(), Workspace(out).folder("emit"), library())
        ranks.helped = True
        work()
        return True
    except KeyboardInterrupt:
        return False
    finally:
        if ranks.interrupted:
            ranks.transport.abort(interrupted)
        elif not ranks.rank:
            ranks.dismiss()


def helped_ranks() -> Ranks:
    """Those of `on_ranks`, at rank 0.  Raises `DagtrainError` outside."""
    ranks = world()
    if not ranks.helped:
        raise DagtrainError("mpi: nobody helps a program of your own", "run `mpirun -n 4 dagtrain cosim --mpi` from it")
    return ranks
