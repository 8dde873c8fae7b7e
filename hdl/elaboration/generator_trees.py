"""Syntax trees of generators: worked out once for each function, shared by all its instances.

MyHDL parses the source of a generator, replaces references to attributes (``x.valid`` becomes ``x_valid``) and looks
for signals in the tree each time one is made.  The tree depends on the function alone; the replacement also on what the
bases of its attributes are; so both are kept, and an instance only looks its names up.

`resolved` is what a generator's tree is after the replacement.  Its trees are shared: whoever changes one must copy it.
"""

from __future__ import annotations

import ast
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import CodeType, FunctionType
from typing import Any

from myhdl._enum import EnumType
from myhdl._intbv import intbv
from myhdl._resolverefs import _AttrRefTransformer, _suffixer
from myhdl._Signal import SignalType, _Signal
from myhdl._visitors import _SigNameVisitor

# attributes that MyHDL keeps
_RESERVED = ("next", "posedge", "negedge", "max", "min", "val", "signed", "verilog_code", "vhdl_code")


@dataclass(frozen=True)
class Resolved:
    """A tree whose references to attributes are names."""

    # has `sourcefile` and `lineoffset`, as MyHDL's
    tree: Any
    # (name, "input", "output", "inout" or "pass"), each once, in the order in which MyHDL meets them
    uses: tuple[tuple[str, str], ...]
    embedded_func: str | None

    @cached_property
    def _packed(self) -> bytes:
        return pickle.dumps(self.tree.body)

    def statements(self) -> list[ast.stmt]:
        """Of the tree, in a copy of their own."""
        copied: list[ast.stmt] = pickle.loads(self._packed)
        return copied


# (base, attribute) of every reference, each once, in MyHDL's order; a base that is a reference itself is its position
_references: dict[CodeType, tuple[tuple[str | int, str], ...]] = {}
_resolved: dict[tuple[CodeType, tuple[str | None, ...]], Resolved] = {}


def resolved(function: Any, symbols: dict[str, Any], parse: Callable[[Any], Any]) -> Resolved:
    """The tree of a generator's function where names mean ``symbols``, which get the names of attributes too.

    ``parse`` gives a fresh tree."""
    code = function.__code__
    references = _references.get(code)
    if references is None:
        references = _references[code] = _references_in(parse(function))
    before = dict(symbols) if references else symbols
    key = code, _names(references, symbols)
    found = _resolved.get(key)
    if found is None:
        found = _resolved[key] = _resolve(parse(function), before)
    return found


def _resolve(tree: Any, symbols: dict[str, Any]) -> Resolved:
    """As MyHDL does it."""
    data: Any = _Names()
    data.symdict = dict(symbols)
    _AttrRefTransformer(data).visit(tree)
    visitor = _UseVisitor(data.symdict)
    visitor.visit(tree)
    return Resolved(tree, tuple(visitor.uses), visitor.embedded_func)


class _Names:
    """What MyHDL's transformer keeps its findings in."""


class _UseVisitor(_SigNameVisitor):  # type: ignore[misc]
    """MyHDL's walk, which notes every name, whatever it stands for."""

    def __init__(self, symbols: dict[str, Any]) -> None:
        super().__init__(symbols)
        self.uses: dict[tuple[str, str], None] = {}

    def visit_Name(self, node: ast.Name) -> None:
        """Note it."""
        self.uses[node.id, self.context] = None


def _references_in(tree: Any) -> tuple[tuple[str | int, str], ...]:
    finder = _ReferenceFinder()
    finder.visit(tree)
    return tuple(finder.found)


class _ReferenceFinder(_AttrRefTransformer):  # type: ignore[misc]
    """MyHDL's walk, which notes attributes of names, and of such attributes, without replacing any."""

    def __init__(self) -> None:
        super().__init__(_Names())
        self.found: dict[tuple[str | int, str], None] = {}
        self._positions: dict[ast.AST, int] = {}

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        """Note it after what it contains."""
        self.generic_visit(node)
        base = node.value.id if isinstance(node.value, ast.Name) else self._positions.get(node.value)
        if node.attr not in _RESERVED and base is not None:
            reference = base, node.attr
            self.found.setdefault(reference)
            self._positions[node] = list(self.found).index(reference)
        return node


def _names(references: tuple[tuple[str | int, str], ...], symbols: dict[str, Any]) -> tuple[str | None, ...]:
    """The name that replaces each reference, None for one that stays; ``symbols`` get them."""
    names: list[str | None] = []
    known: dict[str, str] = {}
    for base, attribute in references:
        owner = names[base] if isinstance(base, int) else base
        name = None
        if owner is not None and owner in symbols and _is_replaced(symbols[owner], attribute):
            value = getattr(symbols[owner], attribute)
            # a name once made stands for the same reference again
            key = f"{owner}.{attribute}"
            name = known.get(key) or _suffixer(f"{owner}_{attribute}", symbols)
            known[key] = name
            symbols[name] = value
        names.append(name)
    return tuple(names)


def _is_replaced(base: Any, attribute: str) -> bool:
    if isinstance(base, EnumType | FunctionType):
        return False
    return not (isinstance(base, SignalType) and hasattr(SignalType, attribute))


def is_signal_list(candidate: Any) -> bool:
    """Whether it is a list of signals and not empty; asked of every name that a generator or block uses."""
    if not isinstance(candidate, list) or not candidate:
        return False
    return all(issubclass(found, _Signal) for found in set(map(type, candidate)))


def init_instance(self: Any, genfunc: Any, callinfo: Any, parse: Callable[[Any], Any]) -> None:
    """What `_Instantiator.__init__` of MyHDL does."""
    self.callinfo = callinfo
    self.callername = callinfo.name
    self.modctxt = callinfo.modctxt
    self.genfunc = genfunc
    self.gen = genfunc()
    function = self.funcobj
    symbols = self.symdict = dict(callinfo.symdict)
    for name in function.__code__.co_varnames:
        symbols.pop(name, None)
    found = resolved(function, symbols, parse)
    uses: dict[str, set[str]] = {"input": set(), "output": set(), "inout": set(), "pass": set()}
    self.sigdict, self.losdict = {}, {}
    for name, context in found.uses:
        if name not in symbols:
            continue
        value = symbols[name]
        if isinstance(value, _Signal):
            self.sigdict[name] = value
        elif isinstance(value, list) and is_signal_list(value):
            self.losdict[name] = value
        elif not isinstance(value, intbv):
            continue
        uses[context].add(name)
    self.inputs, self.outputs, self.inouts = uses["input"], uses["output"], uses["inout"]
    self.embedded_func = found.embedded_func
