"""Work in several processes: results, processes that stay, and none left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from hdl.elaboration.processes import LEAST_TO_START, in_processes
from hdl.errors import ProcessLost
from hdl.layers.base import Layer
from hdl.layers.pointwise.relu import Relu

LAYERS = {f"relu{channels}": Relu(height=1, width=1, channels=channels) for channels in range(1, LEAST_TO_START + 1)}
PARENT = """
import time
from test_processes import LAYERS, process
from hdl.elaboration.processes import in_processes
if __name__ == "__main__":
    print(*{pid for _, (_, pid) in in_processes(process, LAYERS)}, flush=True)
    time.sleep(600)
"""

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: nothing runs beside")


def process(layer: Layer) -> tuple[int, int]:
    """What a layer gives, and who worked on it."""
    return layer.sinks[0].payload_bits, os.getpid()


def test_results_and_processes_that_stay() -> None:
    first, second = dict(in_processes(process, LAYERS)), dict(in_processes(process, LAYERS))
    assert {key: bits for key, (bits, _) in first.items()} == {
        key: layer.sinks[0].payload_bits for key, layer in LAYERS.items()
    }
    workers = {pid for _, pid in first.values()}
    assert os.getpid() not in workers
    # as many workers as cores, each started when there was work for it
    assert len(workers | {pid for _, pid in second.values()}) <= len(os.sched_getaffinity(0))


def test_one_who_stops_early_leaves_the_next_nothing_to_wait_for() -> None:
    started = in_processes(process, LAYERS)
    next(started)
    started.close()
    assert len(dict(in_processes(process, LAYERS))) == len(LAYERS)


def lose(layer: Layer) -> int:
    """Ends its process at one of the layers, as the system does that is out of memory."""
    if layer.sinks[0].tensor.shape[-1] == LEAST_TO_START // 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return layer.sinks[0].payload_bits


def test_a_process_that_is_ended_from_outside_is_told_and_replaced() -> None:
    with pytest.raises(ProcessLost, match=r"ended from outside.*more memory"):
        dict(in_processes(lose, LAYERS))
    assert len(dict(in_processes(process, LAYERS))) == len(LAYERS)


def test_one_who_stops_early_leaves_nobody_at_work(tmp_path: Path) -> None:
    before, slow = set(multiprocessing.active_children()), Slow(tmp_path)
    started = in_processes(slow, LAYERS)
    assert next(started)[0] == "relu1"
    while not slow.began():
        time.sleep(0.01)
    workers = {child.pid for child in set(multiprocessing.active_children()) | before if child.pid is not None}
    assert workers
    started.close()
    for _ in range(300):
        if not any(_alive(pid) for pid in workers):
            return
        time.sleep(0.1)
    raise AssertionError("what a process was at goes on")


@dataclass(frozen=True)
class Slow:
    """Work of which all but the first piece never end."""

    folder: Path

    def __call__(self, layer: Layer) -> int:
        if layer.sinks[0].tensor.shape[-1] > 1:
            (self.folder / "began").touch()
            time.sleep(600)
        return os.getpid()

    def began(self) -> bool:
        """Whether some process is at a piece that never ends."""
        return (self.folder / "began").exists()


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    root, tests = Path(__file__).parent.parent, Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), str(tests)])}
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    workers = [int(word) for word in parent.stdout.readline().split()]
    assert workers
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    for _ in range(300):
        if not any(_alive(pid) for pid in workers):
            return
        time.sleep(0.1)
    raise AssertionError(f"still there: {[pid for pid in workers if _alive(pid)]}")


def _alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"
