"""Seconds and memory of importing large models, each in a process of its own.

    python benchmarks/import_speed.py [resnet152-dynamo-eval densenet121-dynamo-eval ...]

Models are skeletons of examples/models, filled.  Seconds are those of a CPU that `importers.onnx.attempt` takes, from
the path to the graph, so that other load counts for nothing; memory is the most that the process ever held, in GB of
10^9 bytes.
Behind it stands what `dagtrain import` without data takes on top: the training graph, and its calibration on two
synthetic frames in float32.  Exits with 1 where a model takes more than 5 s or 1 GB, both together.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from importers.onnx.skeleton import fill, load_skeleton

MODELS = Path(__file__).parent.parent / "examples" / "models"
DEFAULT = (
    "resnet152-dynamo-eval",
    "resnet152-torchscript-training",
    "densenet121-dynamo-eval",
    "wide_resnet50_2-dynamo-eval",
)
MOST_SECONDS, MOST_GB = 5.0, 1.0
# in a fresh process: seconds and GB, of the import and of calibration as well, layers or the number of problems
MEASURE = """
import sys, time
from pathlib import Path
from dagtrain import threads
from dagtrain.flow.import_step import SYNTHETIC_FRAMES
from dagtrain.passes.autodiff import differentiate
from dagtrain.graph.executor import Mode
from dagtrain.passes.calibrate import CalibrationOptions, calibrate
from dagtrain.training.feeds import synthetic_feeds
from importers.onnx import attempt

def told(begin):
    # not ru_maxrss, which begins at what the process held that started this one
    held = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return f"{time.process_time() - begin},{int(held.split()[1]) * 1024 / 1e9}"

begin = time.process_time()
tried = attempt(Path(sys.argv[1]))
result = f"{len(tried.graph.nodes)} layers" if tried.graph else f"{len(tried.problems)} problems"
words = [told(begin)]
begin = time.process_time()
if tried.graph:
    training = differentiate(tried.graph)
    calibrate(training, [synthetic_feeds(training, SYNTHETIC_FRAMES, 1)], CalibrationOptions(mode=Mode.SINGLE))
print(*words, told(begin), result, sep=",")
"""


def main() -> int:
    """A line for every model; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=DEFAULT, help=f"below examples/models ({' '.join(DEFAULT)})")
    names, code = parser.parse_args().models, 0
    print(f"{'model':32} {'MB':>6} {'seconds':>8} {'GB':>6} {'calibrated':>10} {'GB':>6}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        for name in names:
            path.write_bytes(fill(load_skeleton(MODELS / f"{name}.skeleton.gz")).SerializeToString())
            command = [sys.executable, "-c", MEASURE, str(path)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds, gigabytes, more, most, result = done.stdout.strip().split(",")
            slow = float(seconds) + float(more) > MOST_SECONDS or float(most) > MOST_GB
            code |= slow
            size = path.stat().st_size / 2**20
            numbers = f"{float(seconds):8.2f} {float(gigabytes):6.2f} {float(more):10.2f} {float(most):6.2f}"
            print(f"{name:32} {size:6.0f} {numbers}  {result}{'  too much' if slow else ''}", flush=True)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
