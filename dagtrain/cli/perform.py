"""What a command does: the steps of one or several, in order, each with its own of the options of all."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import typer

from dagtrain.cli.options import AsJson, Out, Quiet, Verbose
from dagtrain.console import Voice

if TYPE_CHECKING:
    from dagtrain.api import Done, Network
    from dagtrain.flow.result import StepResult
    from dagtrain.progress import Progress

# exit code of Ctrl-C, as shells have it
INTERRUPTED = 130
# shares a simulation among ranks; options of every command, which change no result: the first one has a value
MPI_WORD, OUT_WORD, VOICE_WORDS = "--mpi", "--out", frozenset({"--json", "--quiet", "-q", "--verbose", "-v"})


Job: TypeAlias = "Callable[[Network], Done]"
Jobs: TypeAlias = Sequence[Job]


def network(out: Path, progress: Progress | None = None) -> Network:
    """What does the work, with all rooms that it brings."""
    from dagtrain.api import Network

    return Network(out, progress, command=typed(sys.argv[1:]))


def perform(out: Path, voice: Voice, *jobs: Job, served: bool = False) -> None:
    """Run steps in order; every failure a user can cause ends here, as one message and an exit code.

    ``served``: others work beside a cluster that is served; no other process works in the folder of other results."""
    from dagtrain.files import working_folder
    from dagtrain.flow.workspace import SERVED

    results: list[StepResult] = []
    try:
        with working_folder(out / SERVED if served else out), voice.progress() as progress:
            for job in jobs:
                result = job(network(out, progress)).result
                results.append(result)
                voice.begin(result)
    except KeyboardInterrupt as stop:
        # here and not in `main`: click turns it into an exit without a word
        told = str(stop) or "interrupted; the results of earlier steps are as they were"
        print(f"\n{told}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    voice.end(results)
    if not all(result.passed for result in results):
        raise typer.Exit(1)


def typed(words: Sequence[str]) -> str:
    """A command as it was typed, but for the options of every command: where it works and how much it says."""
    told, rest = ["dagtrain"], iter(words)
    for word in rest:
        if word == OUT_WORD:
            next(rest, "")
        elif word not in VOICE_WORDS and not word.startswith(f"{OUT_WORD}="):
            told.append(word)
    return shlex.join(told)


def tell(done: Done, voice: Voice) -> None:
    """What leaves no files."""
    voice.facts(done.result)
    if not done.passed:
        raise typer.Exit(1)


def command_of(*steps: Callable[..., Jobs], served: bool = False) -> Callable[..., None]:
    """A command that does these steps in order, each with its own of the options of all.

    A step is a function of options, annotated as typer reads them, that returns what is to be done; an option that
    several of them have is one, with the default of the first.  ``served`` as `perform` takes it."""
    found: dict[str, inspect.Parameter] = {}
    all_of: tuple[Callable[..., Any], ...] = (*steps, everywhere)
    for step in all_of:
        for parameter in inspect.signature(step, eval_str=True).parameters.values():
            found.setdefault(parameter.name, parameter)
    parameters = sorted(found.values(), key=lambda parameter: parameter.default is not inspect.Parameter.empty)

    def command(*, out: Path, as_json: bool, quiet: bool, verbose: bool, **options: Any) -> None:
        jobs = [
            job
            for step in steps
            for job in step(**{name: options[name] for name in inspect.signature(step).parameters})
        ]

        def performed() -> None:
            perform(out, Voice(as_json, quiet, verbose), *jobs, served=served)

        if not options.get("mpi"):
            performed()
            return
        from dagtrain.flow.cosim_ranks import on_ranks

        if not on_ranks(out, performed, INTERRUPTED):
            raise typer.Exit(1)

    command.__doc__ = steps[0].__doc__
    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def everywhere(
    out: Out = Path("build"), as_json: AsJson = False, quiet: Quiet = False, verbose: Verbose = False
) -> None:
    """Options of every command."""
    del out, as_json, quiet, verbose
