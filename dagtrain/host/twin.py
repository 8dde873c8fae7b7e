"""An emulator that trains beside a cluster, and what the two differ in."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from dagtrain.emission.state import differences, held
from dagtrain.graph.ir import GraphError
from dagtrain.host.cluster import Trained
from dagtrain.training.data import Dataset, Draw
from dagtrain.training.emulator import Emulator
from hdl.fixed import IntArray

# mismatches that are told
MOST_TOLD = 20


@dataclass
class Twin:
    """Trains the batches that a cluster does, and compares losses, right answers and words of state."""

    emulator: Emulator
    data: Dataset
    # batches that the cluster was fed and the emulator has not trained
    fed: deque[tuple[IntArray, Draw]] = field(default_factory=deque)
    # that were compared: batches, and words of states
    batches: int = 0
    words: int = 0
    mismatches: list[str] = field(default_factory=list)

    def feed(self, index: IntArray, draw: Draw) -> None:
        """The cluster is fed a batch; what it is fed once more, from a checkpoint on, was compared or waits already."""
        if draw[1] >= self.emulator.executor.batches + len(self.fed):
            self.fed.append((index, draw))

    async def check(self, trained: Trained) -> None:
        """The next batch of the cluster.  The emulator works in a thread, so that devices do not wait for an answer."""
        index, draw = self.fed.popleft()
        own = await asyncio.to_thread(self.emulator.train_batch, self.data, index, draw)
        self.batches += 1
        if self.emulator.executor.batches != trained.batch:
            raise GraphError(f"batch {trained.batch} came where {self.emulator.executor.batches} was due")
        if own != trained.metrics:
            self._differs(f"batch {trained.batch}: {trained.metrics} where the emulator has {own}")

    def check_state(self, cluster: Emulator) -> None:
        """The state of the cluster, as the emulator of its checkpoint has it, behind the newest batch."""
        own, other = self.emulator.executor, cluster.executor
        if own.batches != other.batches:
            raise GraphError(f"a state behind {other.batches} batches, where {own.batches} were compared")
        wanted = held(own)
        self.words += sum(map(len, wanted.words.values()))
        for what in differences(held(other), wanted, "the emulator"):
            self._differs(what)

    def _differs(self, what: str) -> None:
        if len(self.mismatches) < MOST_TOLD:
            self.mismatches.append(what)
