"""What the simulations of several ranks wrote, as one simulation of the whole cluster would have written it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from dagtrain.cosim.network import COUNTS_FILE as PAIRS_FILE
from dagtrain.cosim.network import FRAMES_FILE, PORTS_FILE, join_counts, join_frames
from dagtrain.cosim.outermost import STREAMS_FILE
from dagtrain.cosim.timeline import COUNTS_FILE, Probes, Timeline
from dagtrain.cosim.windows import SHARE_FILE

# one after another
JOINED = (STREAMS_FILE, PORTS_FILE)
# of a network with frames, put together by what they say
NETWORK = {PAIRS_FILE: join_counts, FRAMES_FILE: join_frames}
# that each rank has of its own, or all have
APART = (SHARE_FILE, COUNTS_FILE)


def gather(folders: Sequence[Path], into: Path) -> None:
    """From the ranks' folders into one, of which readers know nothing of ranks."""
    for folder in folders:
        for path in folder.iterdir():
            if path.is_file() and path.name not in (*JOINED, *APART, *NETWORK):
                shutil.copyfile(path, into / path.name)
    for name in JOINED:
        texts = [(folder / name).read_text() for folder in folders if (folder / name).is_file()]
        if texts:
            (into / name).write_text("".join(texts))
    for name, joined in NETWORK.items():
        paths = [folder / name for folder in folders if (folder / name).is_file()]
        if paths:
            joined(paths, into / name)


def merged_timeline(parts: Sequence[Timeline | None], probed: Probes) -> Timeline | None:
    """Of all ranks, in the order of what is counted; None where there are too few batches."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    engines = {(one.device, one.node): one for part in found for one in part.engines}
    fifos = {(one.device, one.name): one for part in found for one in part.fifos}
    first = found[0]
    return Timeline(
        first.batch, first.first_cycle, first.stretch_cycles,
        tuple(engines[one.device, one.node] for one in probed.engines),
        tuple(fifos[one.device, one.name] for one in probed.levels),
    )  # fmt: skip
