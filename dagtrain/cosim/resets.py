"""A co-simulation in which FPGAs are reset while they train, and the host brings the cluster back.

What passes inside is passed once more then, so words are compared where the host gets them: losses of every frame, and
all state, as devices dump it behind the last batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from dagtrain.cosim.cluster import Feeds, bench_options, emulate, is_loaded, with_state
from dagtrain.cosim.compare import SHOWN_MISMATCHES, ClusterRun, compare_start
from dagtrain.cosim.network import PausingHost, read_counts, read_ports
from dagtrain.cosim.serve import build_served, serve_cluster
from dagtrain.cosim.simulator import is_long
from dagtrain.cosim.switch_host import NetworkHost
from dagtrain.emission.delivered import Delivered
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.memory import MemoryModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.graph.executor import Executor, Mode
from dagtrain.graph.ir import Graph
from hdl.engine.loss.numbers import METRICS
from hdl.errors import DagtrainError

# cycles of a reset
RESET_CYCLES = 32


def train_through_resets(
    delivered: Delivered,
    graph: Graph,
    library: ModuleLibrary,
    feeds: Sequence[Feeds],
    folder: Path,
    network: NetworkModel,
    seed: int,
    on_frames: Callable[[int], None],
    optimise: bool | None = None,
) -> ClusterRun:
    """Train on ``feeds``, a batch each, with ``network.resets``; the host keeps the state behind every batch.

    Raises `DagtrainError` where the host can load no state."""
    if not is_loaded(delivered):
        raise DagtrainError(
            "the state of devices that begin anew stands in their images alone", "emit with --state-access ports"
        )
    frames = len(feeds) * graph.recipe.batch
    if optimise is None:
        optimise = is_long(frames * delivered.cycles_per_frame)
    program = build_served(delivered, graph.recipe.batch, library, folder, network, seed, optimise=optimise)
    golden = Executor(graph, Mode.GOLDEN)
    started = compare_start(delivered, golden)
    ((name, expected),) = emulate(golden, feeds).items()
    options = bench_options(delivered, graph, len(feeds), network, MemoryModel(), seed)
    host = NetworkHost(delivered, graph, feeds, every=1, stuck_cycles=options.stuck_cycles)
    try:
        log = serve_cluster(program, delivered, folder, network, PausingHost(host, network.host_pauses), on_frames)
    finally:
        host.close()
    found, wanted = host.records, expected.reshape(frames, -1)
    wrong = np.flatnonzero((found != wanted).any(axis=1))
    mismatches = [*started.mismatches, *host.repeated]
    if len(wrong):
        mismatches.append(f"{name}: {len(wrong)} of {frames} frames differ, the first is frame {wrong[0] + 1}")
    run = ClusterRun(
        cycles=log.cycles,
        cycles_per_frame=log.cycles / frames,
        batch_cycles=(),
        compared_words=started.words + found.size,
        mismatches=tuple(mismatches[:SHOWN_MISMATCHES]),
        losses=tuple(map(float, METRICS.decode(found[:, 0]))),
        pairs=read_counts(folder),
        ports=read_ports(folder),
        host_dropped=host.dropped,
        resets=host.resets,
    )
    return with_state(run, host, golden)
