"""Ranks that `mpirun` has started, on one machine or several: the optional extra ``mpi``."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

from dagtrain.cosim.windows import Ranks
from hdl.errors import DagtrainError

# seconds between two looks at what has come, at first and at last: a rank that waits leaves its core to the simulation
SHORT_S, LONG_S = 2e-5, 1e-3


class MpiTransport:
    """The ranks of a communicator."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()

    def exchange(self, parts: Sequence[bytes]) -> list[bytes]:
        """See `dagtrain.cosim.windows.Transport`."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        sent = [self._comm.isend(parts[rank], dest=rank) for rank in others]
        came = {self.rank: parts[self.rank]}
        wait = SHORT_S
        for rank in others:
            # MPI itself would keep a core busy
            while not self._comm.Iprobe(source=rank):
                time.sleep(wait)
                wait = min(LONG_S, 2 * wait)
            came[rank] = self._comm.recv(source=rank)
        for request in sent:
            request.wait()
        return [came[rank] for rank in range(self.size)]

    def abort(self, code: int) -> None:
        """See `dagtrain.cosim.windows.Transport`."""
        self._comm.Abort(code)


# of a process, as launchers say before MPI has begun
RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def started_first() -> bool:
    """Whether no launcher has called this process another one than the first."""
    return next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "0") == "0"


@cache
def world() -> Ranks:
    """All ranks.  Raises `DagtrainError` where there is no MPI, or no `mpirun` has started them."""
    try:
        comm = import_module("mpi4py.MPI").COMM_WORLD
    except (ImportError, RuntimeError) as error:
        raise DagtrainError(
            f"--mpi needs mpi4py and an MPI that it finds: {error}",
            "install the extra, `pip install 'dagtrain[mpi]'`, or mpi4py and your machines' own MPI",
        ) from None
    if comm.Get_size() < 2:
        raise DagtrainError(
            "--mpi: there is one rank, so nobody to share the FPGAs with",
            "start it as `mpirun -n 4 dagtrain cosim --mpi`, with the mpirun of the MPI that mpi4py uses",
        )
    return Ranks(MpiTransport(comm))
