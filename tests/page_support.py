"""Pages of docs/ whose commands run: in order, in one folder, and what they print is what the page says.

    python -m tests.page_support tutorial     # writes into the page what its commands print now

A block whose first line is `# NAME.SUFFIX` is a file.  A block in the language `console` holds commands behind `$ ` and
what they print: `…` stands for any text within a line, and a line of `…` alone for any lines.  Comments in the lines
above such a block say what is done before it (`BEFORE`), and `exits 1` the exit code of its commands, which else is 0.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from glob import glob
from pathlib import Path

import pytest

from tests.flow_support import call, new_case, quick_costs, relu_beats, spoil, with_few_dsp
from tests.import_support import ROOT

DOCS = ROOT / "docs"
# page -> the page whose folder it goes on from
PAGES: Mapping[str, str | None] = {
    "tutorial": None,
    "own-data": "tutorial",
    "own-cluster": "tutorial",
    "refused-model": None,
    "slow-plan": "tutorial",
    "boards": "tutorial",
    "formats": "tutorial",
    "circuits": "tutorial",
    "mismatch": None,
}
BLOCK = re.compile(r"^((?:<!-- [^\n]* -->\n)*)```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# of the terminal in which pages were written
COLUMNS = 100
# estimates that become better now and then: a page that is a little older says nothing wrong
ESTIMATE = re.compile(r"[\d,]+(?=(?:/| of )[\d,]+ (?:ALM|logic cell))")
FILE = re.compile(r"# ([\w.-]+\.\w+)\n")
# commands that need what a page's reader has and the tests have not -> what stands for them
INSTEAD: Mapping[str, Callable[[], object]] = {
    "python model.py": lambda: shutil.copy(ROOT / "examples" / "tutorial" / "model.onnx", "model.onnx"),
}


def _wrong_bit(_: str) -> None:
    """The tiny model, emitted, with one wrong bit in what its relu sends: frame 2, row 1, column 1."""
    with pytest.MonkeyPatch.context() as patch:
        quick_costs(patch)
        case = new_case(Path.cwd(), with_few_dsp(0.002)).must("import", "place", "emit")
    beats = relu_beats(case)
    spoil(case, "r_node", "r_node.y", beats + 7 * beats // 36, 3)


# what comments name, done with the words behind the name
BEFORE: Mapping[str, Callable[[str], object]] = {"wrong_bit": _wrong_bit}


@dataclass(frozen=True)
class Ran:
    """A command of a page, what the page says of it, and what it did."""

    command: str
    expected: str
    wanted_code: int
    printed: str
    code: int

    def check(self) -> None:
        """Raises `AssertionError` where page and command differ."""
        assert self.code == self.wanted_code, f"`{self.command}` exits with {self.code}:\n{self.printed}"
        assert matches(ESTIMATE.sub("…", self.expected), self.printed), (
            f"`{self.command}` prints\n{self.printed}\nand the page says\n{self.expected}\n(see {__file__})"
        )


def matches(expected: str, printed: str) -> bool:
    """Whether a text is what a page says, in which `…` stands for anything."""
    pattern = ""
    for line in expected.splitlines():
        pattern += r"(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n"
    return re.fullmatch(pattern, printed) is not None


def blocks(name: str) -> Iterator[tuple[dict[str, str], str, str]]:
    """(first word of each comment above -> what follows it, language, text) of the blocks of a page."""
    for found in BLOCK.finditer((DOCS / f"{name}.md").read_text()):
        comments = re.findall(r"<!-- (\w+) ?(.*) -->", found[1])
        yield dict(comments), found[2], found[3]


def run_page(name: str, folder: Path) -> list[Ran]:
    """Does what a page says in a folder."""
    found: list[Ran] = []
    with chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(COLUMNS))
        for comments, language, text in blocks(name):
            file = FILE.match(text)
            if file:
                Path(file[1]).write_text(text)
            elif language == "console":
                code = int(comments.pop("exits", 0))
                for what, words in comments.items():
                    BEFORE[what](words)
                found += (_run(command, printed, code) for _, command, printed in commands(text))
    return found


def commands(text: str) -> Iterator[tuple[str, str, str]]:
    """(command as it stands there, in one line, what it prints) of a console block."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        found = re.match(r"((?:[^\n]*\\\n)*[^\n]*)\n(.*)", part, re.DOTALL)
        assert found, part
        yield found[1], re.sub(r"\s*\\\n\s*", " ", found[1]), found[2]


def _run(command: str, expected: str, wanted_code: int) -> Ran:
    words = [name for word in shlex.split(command) for name in (sorted(glob(word)) if "*" in word else [word])]
    if command in INSTEAD:
        INSTEAD[command]()
        return Ran(command, expected, wanted_code, expected, 0)
    if words[0] == "dagtrain":
        outcome = call(*words[1:])
        code, printed = outcome.code, outcome.out + outcome.error
    else:
        assert words[0] == "python", f"no command that pages may have: {command}"
        done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, timeout=120)
        code, printed = done.returncode, done.stdout + done.stderr
    return Ran(command, expected, wanted_code, "".join(f"{line.rstrip()}\n" for line in printed.splitlines()), code)


def folder_of(name: str, root: Path) -> Path:
    """A folder in which a page can be run: one of its own, with what the page before it left."""
    before = PAGES[name]
    if before is None:
        (root / name).mkdir()
    else:
        shutil.copytree(root / before, root / name)
    return root / name


def rewritten(name: str, ran: Sequence[Ran]) -> str:
    """The page with what its commands printed, where that is not what it says."""
    left = iter(ran)

    def block(found: re.Match[str]) -> str:
        if found[2] != "console":
            return found[0]
        done = ((source, next(left)) for source, _, _ in commands(found[3]))
        text = "".join(
            f"$ {source}\n{one.expected if matches(one.expected, one.printed) else one.printed}" for source, one in done
        )
        return f"{found[0][: found.start(3) - found.start()]}{text}```"

    return BLOCK.sub(block, (DOCS / f"{name}.md").read_text())


def main() -> None:
    """Write into pages what their commands print now, where that is not what they say."""
    wanted = set(sys.argv[1:]) or set(PAGES)
    with tempfile.TemporaryDirectory() as root:
        for name in PAGES:
            if name in wanted or name in {PAGES[other] for other in wanted}:
                ran = run_page(name, folder_of(name, Path(root)))
                if name in wanted:
                    (DOCS / f"{name}.md").write_text(rewritten(name, ran))


if __name__ == "__main__":
    main()
