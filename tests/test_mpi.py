"""`mpirun -n 3 dagtrain cosim --mpi`: ranks that are processes leave what one program does, or end together."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.flow_support import CLUSTER, Case, call, new_case, quick_costs, with_few_dsp

WORDS = ("cosim", "--batches", "3", "--no-efficiency")
SECONDS = 900.0
# beside the Python that has mpi4py first: there lies the mpirun of an MPI that was installed with it
MPIRUN = shutil.which("mpirun", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
needs_mpi = pytest.mark.skipif(
    find_spec("mpi4py") is None or MPIRUN is None, reason="no mpi4py or no mpirun: install the extra `mpich`"
)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A network on two devices, emitted."""
    with pytest.MonkeyPatch.context() as patch:
        quick_costs(patch)
        made = new_case(tmp_path_factory.mktemp("mpi"), with_few_dsp(0.003, CLUSTER))
        recipe = made.write("recipe.toml", "batch = 4\nstaleness = 4\n")
        for words in (("import", "--recipe", recipe, "--data", made.data()), ("place",), ("emit",)):
            outcome = made.step(*words)
            assert outcome.code == 0, outcome.error
    return made


def started(ranks: int, case: Case, *words: object) -> subprocess.Popen[str]:
    assert MPIRUN is not None
    program = [sys.executable, "-c", "from dagtrain.cli import main; main()"]
    command = [MPIRUN, "-n", str(ranks), *program, *WORDS, "--mpi", "--out", str(case.out), *map(str, words)]
    paths = [str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, process_group=0
    )


@pytest.mark.slow
@needs_mpi
def test_ranks_leave_what_one_program_does(case: Case) -> None:
    assert case.step(*WORDS).code == 0
    alone = (case.out / "cosim" / "cosim.json").read_text()
    timeline = (case.out / "cosim" / "timeline.json").read_text()
    # two ranks have a device each; of three the first is the host alone
    for ranks in (2, 3):
        shutil.rmtree(case.out / "cosim")
        process = started(ranks, case)
        told, wrong = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, wrong
        assert told.count("every bit equal") == 1
        assert (case.out / "cosim" / "cosim.json").read_text() == alone
        assert (case.out / "cosim" / "timeline.json").read_text() == timeline


@pytest.mark.slow
@needs_mpi
def test_what_ranks_can_not_do_is_one_message_and_leaves_what_was_there(case: Case) -> None:
    # an unchanged result needs no ranks
    process = started(4, case, "--seed", 2)
    _, wrong = process.communicate(timeout=SECONDS)
    assert process.returncode != 0
    assert re.findall("^error: .*", wrong, re.MULTILINE) == [
        "error: 4 ranks for 2 devices; start at most 3: one a device, and one for the emulator and the comparison"
    ]
    assert not list(case.out.glob(".*.tmp-*"))


@pytest.mark.slow
@needs_mpi
def test_a_rank_that_is_killed_ends_all(case: Case) -> None:
    shutil.rmtree(case.out / "cosim", ignore_errors=True)
    process = started(2, case, "--batches", 4000)
    deadline = time.monotonic() + SECONDS
    while not (benches := running(process.pid, "dagtrain_bench")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.5)
    os.kill(parent(benches[0]), signal.SIGKILL)
    process.communicate(timeout=SECONDS)
    assert process.returncode != 0
    assert not (case.out / "cosim").exists()
    while any(Path(f"/proc/{bench}").exists() for bench in benches):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def running(root: int, name: str) -> list[int]:
    """Processes below one whose program has a name."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_text().split("\0")
            above = int(path.name)
            while above > 1 and above != root:
                above = parent(above)
        except (OSError, ValueError):
            continue
        if above == root and Path(words[0]).name.startswith(name):
            found.append(int(path.name))
    return found


def test_without_mpirun_the_message_says_how_to_start(tmp_path: Path) -> None:
    outcome = call("cosim", "--mpi", "--out", tmp_path / "build")
    assert outcome.code == 1
    assert outcome.error.startswith("error: --mpi")
    assert "mpi" in outcome.error.partition("; ")[2]
    assert not (tmp_path / "build").exists()
