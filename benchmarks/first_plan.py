"""How long until there is a plan?  Plans a real network from an empty cache and prints every plan that it writes.

python benchmarks/first_plan.py                     # ResNet-18 on the poster's cluster
python benchmarks/first_plan.py mobilenetv2-agilex --until-first

Seconds are wall clock from the start of `dagtrain place`; CPU seconds are user and system time of the process and all
that it started, which other work on the machine hardly changes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.networks import CASES, ROOT, dagtrain

# between two looks at the folder
POLL_SECONDS = 0.2


def main() -> None:
    """Import, then place with an empty cache."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="?", default="resnet18", help=f"of {', '.join(CASES)}; default: resnet18")
    parser.add_argument("--until-first", action="store_true", help="press Ctrl-C when the first plan is written")
    parser.add_argument("--time-limit", type=float, help="of `dagtrain place`")
    options = parser.parse_args()
    if options.case not in CASES:
        parser.error(f"unknown: {options.case}; cases are {', '.join(CASES)}")
    model, cluster, further = CASES[options.case]
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "build"
        path = ROOT / "build" / "models" / f"{model}.onnx"
        if not path.exists():
            subprocess.run([sys.executable, "examples/models/fill.py", model], cwd=ROOT, check=True, stdout=sys.stderr)
        imported = dagtrain("import", path, "--out", out)
        if imported.error:
            sys.exit(imported.error)
        words = ["--devices", ROOT / "examples" / "clusters" / f"{cluster}.toml", *further, "--out", out]
        if options.time_limit is not None:
            words += ["--time-limit", options.time_limit]
        print("| plan | s | CPU s | frames/s in training |\n|" + " --- |" * 4, flush=True)
        sys.exit(_watch([str(word) for word in words], out / "place", Path(name) / "cache", options.until_first))


def _watch(words: list[str], folder: Path, cache: Path, until_first: bool) -> int:
    """Plan, with a line for every plan written; the exit code."""
    began, seen, before = time.monotonic(), "", os.times()
    command = [str(Path(sys.executable).with_name("dagtrain")), "place", *words]
    environment = {**os.environ, "DAGTRAIN_CACHE": str(cache)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=sys.stderr, start_new_session=True) as process:
        ended = False
        while not ended:
            # looked at once more after the end
            ended = process.poll() is not None
            stamp, cpu = _stamp(folder), _cpu_seconds(process.pid)
            if stamp and stamp != seen:
                label = "first" if not seen else "next"
                _print_plan(label, time.monotonic() - began, cpu, folder)
                if until_first and not seen:
                    os.killpg(process.pid, signal.SIGINT)
                seen = stamp
            time.sleep(0 if ended else POLL_SECONDS)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    print(f"| end | {time.monotonic() - began:.0f} | {cpu:.0f} | |", flush=True)
    return process.returncode


def _stamp(folder: Path) -> str:
    """What tells one plan from another: the stamp is written last and moved with its folder."""
    try:
        return str((folder / "stamp.json").stat().st_mtime_ns)
    except OSError:
        return ""


def _print_plan(label: str, seconds: float, cpu_seconds: float, folder: Path) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    print(f"| {label} | {seconds:.0f} | {cpu_seconds:.0f} | {plan['throughput_fps']:,.0f} |", flush=True)


def _cpu_seconds(group: int) -> float:
    """User and system time of all processes of a session that are alive, and of their children that ended."""
    ticks = 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == group:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
