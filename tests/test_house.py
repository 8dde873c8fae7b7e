"""The house keeps its order: every room says what it is for, functions and files stay small enough to be read.

What may import what is import-linter's (pyproject.toml).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
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
