"""The house keeps its order: every room says what it is for, functions and files stay small enough to be read.

What may import what is import-linter's (pyproject.toml).
"""

from __future__ import annotations

import ast
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("dagtrain", "hdl", "importers", "placement")
# decorators that make a function a circuit
CIRCUITS = frozenset({"block"})
# lines of a function; circuits hold the generators of all their processes
LONGEST, LONGEST_CIRCUIT = 80, 150
# lines of a file in which one state or one purpose lives
LONGEST_FILES = {"dagtrain/planning": 300}
# words of a docstring that is a sentence
LEAST_WORDS = 5
# lines of a run that two files have in common, and how many such runs there may be: a third of those of 0.1.0
RUN, MOST_RUNS = 6, 16

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST, circuit: bool = False) -> Iterator[tuple[Function, bool]]:
    """Every function of a file, and whether it is a circuit or stands in one."""
    for child in ast.iter_child_nodes(tree):
        inside = circuit
        if isinstance(child, Function):
            inside = circuit or any(_name(decorator) in CIRCUITS for decorator in child.decorator_list)
            yield child, inside
        yield from functions(child, inside)


def _name(decorator: ast.expr) -> str:
    """Of ``@name``, ``@module.name`` or either with arguments."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def too_long(source: str) -> list[str]:
    """Functions of a file with more lines than they may have, decorators not counted."""
    found = []
    for function, circuit in functions(ast.parse(source)):
        assert function.end_lineno is not None
        lines = function.end_lineno - function.lineno + 1
        if lines > (LONGEST_CIRCUIT if circuit else LONGEST):
            found.append(f"{function.name} in line {function.lineno} has {lines} lines")
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_no_function_is_longer_than_a_reader_can_hold(package: str) -> None:
    found = {str(path.relative_to(ROOT)): too_long(path.read_text()) for path in sorted((ROOT / package).rglob("*.py"))}
    assert not {path: names for path, names in found.items() if names}


@pytest.mark.parametrize("folder", LONGEST_FILES)
def test_files_stay_below_their_room_s_limit(folder: str) -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in (ROOT / folder).glob("*.py")}
    assert lines
    assert not {name: count for name, count in lines.items() if count >= LONGEST_FILES[folder]}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_says_what_lives_there(package: str) -> None:
    folders = {path.parent for path in (ROOT / package).rglob("*.py")}
    silent = []
    for folder in sorted(folders):
        file = folder / "__init__.py"
        told = ast.get_docstring(ast.parse(file.read_text())) if file.is_file() else None
        if told is None or len(told.split()) < LEAST_WORDS or "." not in told:
            silent.append(str(folder.relative_to(ROOT)))
    assert not silent


def told_lines(source: str) -> list[tuple[int, str]]:
    """(number, text) of the lines of a file that could stand elsewhere: neither blank nor of an import."""
    imports = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom) and node.end_lineno is not None
        for line in range(node.lineno, node.end_lineno + 1)
    }
    lines = enumerate(map(str.strip, source.splitlines()), 1)
    return [(number, line) for number, line in lines if line and number not in imports]


def repeated_runs(sources: Mapping[str, str]) -> list[str]:
    """Longest runs of `RUN` lines or more that stand in two files, indented or not."""
    told = {name: told_lines(source) for name, source in sources.items()}
    places: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for name, lines in told.items():
        for start in range(len(lines) - RUN + 1):
            places[tuple(line for _, line in lines[start : start + RUN])].append((name, start))
    alike = {(a, b) for found in places.values() for a, b in itertools.combinations(sorted(found), 2) if a[0] != b[0]}
    runs = []
    for (a, start), (b, other) in sorted(alike):
        if ((a, start - 1), (b, other - 1)) in alike:
            continue
        more = next(n for n in itertools.count(1) if ((a, start + n), (b, other + n)) not in alike)
        where = f"{a}:{told[a][start][0]} and {b}:{told[b][other][0]}"
        runs.append(f"{where}: {RUN - 1 + more} lines")
    return runs


def test_one_thing_stands_in_one_place() -> None:
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    found = repeated_runs({str(path.relative_to(ROOT)): path.read_text() for path in files})
    assert len(found) <= MOST_RUNS, "\n".join(found)


def test_repeated_runs_are_counted() -> None:
    lines = [f"x{number} = {number}" for number in range(RUN + 1)]
    text = "\n".join(lines)
    assert repeated_runs({"a": text, "b": "y = 1\n\n" + text}) == [f"a:1 and b:3: {RUN + 1} lines"]
    assert repeated_runs({"a": text, "b": f"def f():\n    {lines[0]}\n\n" + "\n".join(f"    {x}" for x in lines[1:])})
    apart = "\n".join([*lines[:3], "y = 1", *lines[3:]])
    assert repeated_runs({"a": text, "b": apart}) == []
    assert repeated_runs({"a": text + "\n" + text}) == []
    assert len(repeated_runs({"a": text, "b": text + "\n" + text})) == 2
    imported = "\n".join(f"import {name}" for name in ("ast", "io", "os", "re", "sys", "time", "json"))
    assert repeated_runs({"a": imported, "b": imported}) == []


def test_lines_are_counted_for_circuits_and_for_what_stands_in_them() -> None:
    def text(lines: int, decorator: str = "") -> str:
        return "\n".join([*([decorator] if decorator else []), "def f():", *["    x = 1"] * (lines - 1)])

    assert too_long(text(80)) == []
    assert too_long(text(81)) == ["f in line 1 has 81 lines"]
    assert too_long("class C:\n" + "\n".join(f"    {line}" for line in text(81).splitlines())) != []
    for decorator in ("@block", "@myhdl.block", "@block(1)"):
        assert too_long(text(150, decorator)) == []
        assert too_long(text(151, decorator)) != []
    assert too_long(text(81, "@cached_property")) != []
    inner = "\n".join(f"    {line}" for line in text(100).splitlines())
    assert too_long(f"@block\ndef outer():\n{inner}") == []
    assert len(too_long(f"def outer():\n{inner}")) == 2
