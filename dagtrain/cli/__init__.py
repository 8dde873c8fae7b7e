"""The command line: parses, calls the flow, prints, sets the exit code.  Nothing else lives here: a module a kind of
command, with its options, and here all of them, and what becomes of errors.

What does the work is imported when a command is performed: who asks for help, or for the next word of a line, waits for
no solver, compiler or reader of models."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, cast

import typer

from dagtrain import threads as threads
from dagtrain.cli.driving import bring_up, drive, self_test, serve
from dagtrain.cli.emitting import emit, estimate, timing
from dagtrain.cli.importing import import_, or_check
from dagtrain.cli.looking import clean, report, show, status
from dagtrain.cli.parallelizing import parallelize
from dagtrain.cli.perform import MPI_WORD, Jobs, command_of
from dagtrain.cli.placing import place
from dagtrain.cli.simulating import cosim, debug, probe, simulate
from dagtrain.cli.training import evaluate, export, profile, train, train_on_data
from dagtrain.console import error_json
from hdl.errors import DagtrainError, Problem

# exit code of a fault of this program (EX_SOFTWARE of sysexits.h)
CRASHED = 70

# words that no command knows, whatever typer is built on
UsageError = cast(type[typer.BadParameter], typer.BadParameter.__bases__[0])


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"dagtrain {version('dagtrain')}")
        raise typer.Exit


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Turns an ONNX model into streaming FPGA hardware that trains it, layer-parallel, on a cluster.\n\n"
    "Each command takes what the one before it left in the working folder (build/ unless told otherwise):\n"
    "import, place, emit, cosim, train, report.  `dagtrain run` does them all.  Rerunning an unchanged step "
    "costs nothing.",
)


@app.callback()
def _dagtrain(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del show_version


STEPS: tuple[Callable[..., Jobs], ...] = (
    place, emit, cosim, simulate, debug, train, serve, drive, bring_up, self_test, profile, report, export, evaluate,
    parallelize,
)  # fmt: skip
# what works in no folder of results, or leaves nothing there that other steps need
OTHERS = (estimate, timing, show, probe, status, clean)

app.command("import")(or_check(command_of(import_)))
for _step in STEPS:
    app.command(_step.__name__.replace("_", "-"))(command_of(_step, served=_step is serve))
app.command("run", help="All steps: import, place, emit, cosim, train, report.")(
    command_of(import_, place, emit, cosim, train_on_data, report)
)
for _other in OTHERS:
    app.command()(_other)


def crash_report(error: Exception, words: Sequence[str]) -> str:
    """Writes what is known of a fault of this program to a file; returns what to tell the user."""
    text = "".join(traceback.format_exception(error))
    versions = f"dagtrain {version('dagtrain')}, Python {sys.version.split()[0]}, {sys.platform}"
    for folder in (Path.cwd(), Path(tempfile.gettempdir())):
        path = folder / f"dagtrain-crash-{os.getpid()}.txt"
        try:
            path.write_text(f"{versions}\n{shlex.join(words)}\n\n{text}")
        except OSError:
            continue
        kept = f"{path} holds the details: please report it with that file"
        break
    else:
        kept = "the details could not be written anywhere:\n" + text
    return f"a fault of dagtrain itself, {type(error).__name__}: {error}; earlier results are untouched; {kept}"


def main() -> None:
    """The entry point: one clear message and a non-zero exit code for everything a user can cause; with --json the
    message is a document on standard output too."""
    as_json = "--json" in sys.argv[1:]
    try:
        # words that no command knows are told by typer to people, here to programs
        code = app(prog_name="dagtrain", standalone_mode=not as_json)
        sys.exit(code if isinstance(code, int) else 0)
    except typer.Abort:
        sys.exit(_failed("aborted", (Problem("aborted, nothing was changed"),), 1, as_json))
    except UsageError as error:
        where = error.ctx.command_path if error.ctx else "dagtrain"
        problem = Problem(error.format_message(), f"`{where} --help` tells what there is")
        sys.exit(_failed("usage", (problem,), error.exit_code, as_json))
    except DagtrainError as error:
        sys.exit(_failed(type(error).__name__, error.problems, 1, as_json, str(error)))
    except BrokenPipeError:
        sys.exit(141)
    except OSError as error:
        where = f"{error.filename}" if error.filename else ""
        problem = Problem(str(error.strerror or error), "free the place or choose another --out", where)
        sys.exit(_failed("system", (problem,), 1, as_json))
    except MemoryError:
        problem = Problem("out of memory", "close other programs, or take a smaller model or batch")
        sys.exit(_failed("memory", (problem,), 1, as_json))
    except Exception as error:
        sys.exit(_failed("crash", (Problem(crash_report(error, sys.argv)),), CRASHED, as_json))


def _failed(kind: str, problems: Sequence[Problem], code: int, as_json: bool, message: str = "") -> int:
    """Say what went wrong, of ranks that share a simulation the first one; returns the exit code."""
    if MPI_WORD in sys.argv:
        from dagtrain.cosim.mpi import started_first

        if not started_first():
            return code
    message = message or "; ".join(map(str, problems))
    if as_json:
        print(error_json(kind, problems, code, message))
    print(f"error: {message}", file=sys.stderr)
    return code
