"""Changes to MyHDL 0.11.52 that this project needs, installed once by `install`.

Speed, with output identical to the byte (the tests compare):

* ``bin`` in linear instead of quadratic time;
* caller information without reading source files (``inspect.stack`` reads them for every frame), and blocks without
  their source, which every import of a circuit looked for;
* the syntax tree of a function is parsed once for each code object, then copied; what an instance of a generator wants
  to know of it is worked out once for each function (`hdl.elaboration.generator_trees`), and conversion starts from
  the tree whose references are replaced;
* the value of a signal is copied as what it is, not by `copy.deepcopy`;
* lists are told to be lists of signals by the types in them.

Meaning:

* a slice whose bounds move with a variable but differ by a constant, ``x[i*16+16:i*16]``, is emitted as an
  indexed part select ``x[(i*16) +: 16]``; MyHDL emits ``x[(i*16)+16-1:(i*16)]``, which Verilog forbids;
* ``x[bits_of(lane, width)]`` is the slice that it means (`hdl.elaboration.lane_slices`);
* the sensitivity list of a combinational process is in the order of its names; MyHDL has them in the order of a set of
  texts, which differs from process to process;
* every block remembers the instances made while it was elaborated (`created_instances`), so that
  `hdl.convert.lint` can report one that wasn't returned; MyHDL drops it silently.
"""

from __future__ import annotations

import ast
import inspect
import pickle
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from types import CodeType, FrameType
from typing import Any

import myhdl
from myhdl import (
    ToVerilogError,
    _always,
    _always_comb,
    _always_seq,
    _bin,
    _block,
    _instance,
    _simulator,
    _util,
    intbv,
)
from myhdl._extractHierarchy import _memInfoMap
from myhdl.conversion import _analyze, _toVerilog
from myhdl.conversion._misc import _context

from hdl.elaboration.generator_trees import Resolved, init_instance, is_signal_list, resolved
from hdl.elaboration.lane_slices import LaneSlices
from hdl.errors import ToolError

MYHDL_VERSION = "0.11.52"

_AST_USERS = (_util, _instance, _analyze, _always_seq, _always_comb, _always)


def install() -> None:
    """Patch MyHDL; harmless when called again.  Raises `ToolError` for another version of MyHDL."""
    if myhdl.__version__ != MYHDL_VERSION:
        raise ToolError(
            f"MyHDL {myhdl.__version__} is installed, but this project patches internals of {MYHDL_VERSION} only",
            f"run `make setup` or `pip install myhdl=={MYHDL_VERSION}`",
        )
    if getattr(_block._Block, "_dagtrain", False):
        return
    _install_speed()
    _toVerilog._ConvertVisitor.accessSlice = _access_slice
    _always_comb._AlwaysComb.__init__ = _init_always_comb
    _record_created_instances()
    _block._Block._dagtrain = True


# ---------------------------------------------------------------------------------------------- speed

# the module; the package has a class of that name
_SIGNAL: Any = sys.modules["myhdl._Signal"]
_originals: dict[str, Any] = {
    "deepcopy": _SIGNAL.deepcopy,
    "is_signal_list": _SIGNAL._isListOfSigs,
    "bits": _bin._int2bitstring,
    "make_ast": _util._makeAST,
    "init_instance": _instance._Instantiator.__init__,
    "replace_references": _analyze._AttrRefTransformer,
}
# how an instance of a generator is made
_make_instance: Callable[..., None] = _originals["init_instance"]


def _install_speed() -> None:
    global _make_instance
    _make_instance = _init_instance
    _SIGNAL.deepcopy = _copy_value
    _use_signal_list_test(is_signal_list)
    _bin._int2bitstring = _bit_string
    _block.inspect = _instance.inspect = _LightInspect()
    for module in _AST_USERS:
        if hasattr(module, "_makeAST"):
            module._makeAST = _cached_ast
    _instance._makeAST = _outline
    _analyze._AttrRefTransformer = _KnownReferences


@contextmanager
def without_speed_patches() -> Iterator[None]:
    """MyHDL's own slow code, for tests that compare."""
    global _make_instance
    _make_instance = _originals["init_instance"]
    _SIGNAL.deepcopy = _originals["deepcopy"]
    _use_signal_list_test(_originals["is_signal_list"])
    _bin._int2bitstring = _originals["bits"]
    _block.inspect = _instance.inspect = _SlowInspect()
    for module in _AST_USERS:
        if hasattr(module, "_makeAST"):
            module._makeAST = _slow_ast
    _analyze._AttrRefTransformer = _originals["replace_references"]
    try:
        yield
    finally:
        _install_speed()


def _copy_value(value: Any) -> Any:
    """A copy of a signal's value, without the bookkeeping of `copy.deepcopy`, which three times a signal adds up."""
    return copy(value) if isinstance(value, intbv) else _originals["deepcopy"](value)


def _use_signal_list_test(test: Callable[[Any], bool]) -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("myhdl.") and hasattr(module, "_isListOfSigs"):
            vars(module)["_isListOfSigs"] = test


@contextmanager
def forgotten_signals() -> Iterator[None]:
    """Signals and memories created inside are dropped from MyHDL's lists, which would keep them alive for good."""
    known, memories = len(_simulator._signals), set(_memInfoMap)
    try:
        yield
    finally:
        del _simulator._signals[known:]
        for key in set(_memInfoMap) - memories:
            del _memInfoMap[key]


def _bit_string(number: int) -> str:
    """The shortest two's-complement digits of ``number`` (at least one)."""
    if number >= 0:
        return format(number, "b")
    width = (-number - 1).bit_length() + 1
    return format(number & ((1 << width) - 1), "b")


# frames that MyHDL looks at: it never asks for more than the fifth
_FRAMES = 6


class _LightInspect:
    """Stands for the module ``inspect`` where MyHDL only wants frames and function names."""

    @staticmethod
    def stack(_context: int = 1) -> list[tuple[FrameType, str, int, str]]:
        frame: FrameType | None = sys._getframe(1)
        found: list[tuple[FrameType, str, int, str]] = []
        while frame is not None and len(found) < _FRAMES:
            if frame.f_code.co_filename != __file__:
                found.append((frame, frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
        return found

    @staticmethod
    def getsourcelines(function: Callable[..., Any]) -> tuple[list[str], int]:
        """No lines: MyHDL has them looked for at every block, which takes the file to tokens, and never reads them."""
        return [], function.__code__.co_firstlineno

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect, name)


class _SlowInspect(_LightInspect):
    """As MyHDL has it, but for the frames of this file."""

    @staticmethod
    def getsourcelines(function: Callable[..., Any]) -> tuple[list[str], int]:
        return inspect.getsourcelines(function)

    @staticmethod
    def stack(_context: int = 1) -> list[Any]:
        return [record for record in inspect.stack() if record.filename != __file__]


_parsed: dict[CodeType, tuple[bytes, Any, int]] = {}


def _cached_ast(function: Callable[..., Any]) -> ast.Module:
    code = inspect.unwrap(function).__code__
    if code not in _parsed:
        tree = _make_ast(function)
        _parsed[code] = (pickle.dumps(tree.body), tree.sourcefile, tree.lineoffset)
    body, sourcefile, lineoffset = _parsed[code]
    copy: Any = ast.Module(body=pickle.loads(body), type_ignores=[])
    copy.sourcefile, copy.lineoffset = sourcefile, lineoffset
    return copy  # type: ignore[no-any-return]


def _make_ast(function: Callable[..., Any]) -> Any:
    """As MyHDL makes it, with the source looked for once, and without taking it to tokens and back."""
    lines, first = inspect.getsourcelines(function)
    tree: Any = ast.parse(textwrap.dedent("".join(lines)))
    tree.sourcefile, tree.lineoffset = inspect.getsourcefile(function), first - 1
    return LaneSlices().visit(tree)


def _slow_ast(function: Callable[..., Any]) -> Any:
    """As MyHDL makes it, lanes sliced."""
    return LaneSlices().visit(_originals["make_ast"](function))


def _init_instance(self: Any, genfunc: Any, callinfo: Any) -> None:
    init_instance(self, genfunc, callinfo, _cached_ast)


def resolved_tree(function: Any, symbols: dict[str, Any]) -> Resolved:
    """The tree of a generator's function where names mean ``symbols``: `hdl.elaboration.generator_trees.resolved`."""
    return resolved(function, symbols, _cached_ast)


def _outline(function: Callable[..., Any]) -> ast.Module:
    """The tree of a generator as conversion first asks for it: `_KnownReferences` puts the statements in."""
    outline: Any = ast.Module(body=[], type_ignores=[])
    outline.function = function
    return outline  # type: ignore[no-any-return]


class _KnownReferences:
    """Stands for the walk that replaces references in the tree of a generator, before conversion reads it."""

    def __init__(self, outline: Any) -> None:
        self._symbols = outline.symdict

    def visit(self, outline: Any) -> None:
        """Statements whose references are replaced; names for them among the symbols, as MyHDL leaves them."""
        found = resolved_tree(outline.function, self._symbols)
        outline.sourcefile, outline.lineoffset = found.tree.sourcefile, found.tree.lineoffset
        outline.body = found.statements()


# -------------------------------------------------------------------------------------- moving slices


class LinearForm:
    """An integer expression as ``constant + Σ coefficient · term``; terms are compared by their syntax."""

    def __init__(self, constant: int = 0, terms: dict[str, int] | None = None) -> None:
        self.constant = constant
        self.terms = {key: value for key, value in (terms or {}).items() if value}

    def plus(self, other: LinearForm, factor: int = 1) -> LinearForm:
        """``self + factor * other``."""
        terms = dict(self.terms)
        for key, value in other.terms.items():
            terms[key] = terms.get(key, 0) + factor * value
        return LinearForm(self.constant + factor * other.constant, terms)

    @classmethod
    def of(cls, node: ast.expr, value_of: Callable[[ast.expr], int | None]) -> LinearForm:
        """The form of ``node``; ``value_of`` gives the value of a constant leaf, None for a variable."""
        value = value_of(node)
        if value is not None:
            return cls(value)
        if isinstance(node, ast.BinOp):
            left, right = cls.of(node.left, value_of), cls.of(node.right, value_of)
            if isinstance(node.op, ast.Add):
                return left.plus(right)
            if isinstance(node.op, ast.Sub):
                return left.plus(right, -1)
            if isinstance(node.op, ast.Mult) and not left.terms:
                return cls().plus(right, left.constant)
            if isinstance(node.op, ast.Mult) and not right.terms:
                return cls().plus(left, right.constant)
        return cls(0, {ast.dump(node): 1})


def _constant_of(visitor: Any) -> Callable[[ast.expr], int | None]:
    """Values of the names and numbers that don't change while the generator runs."""

    def value(node: ast.expr) -> int | None:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return int(node.value)
        if isinstance(node, ast.Name) and node.id not in visitor.tree.vardict:
            known = visitor.tree.symdict.get(node.id)
            return int(known) if isinstance(known, int) else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
            return len(visitor.getVal(node.args[0]))
        return None

    return value


def _moves(visitor: Any, bound: ast.expr | None) -> bool:
    """The bound has a variable: a local, a loop variable or a signal."""
    value_of = _constant_of(visitor)
    return bound is not None and bool(LinearForm.of(bound, value_of).terms)


_original_access_slice = _toVerilog._ConvertVisitor.accessSlice


def _access_slice(self: Any, node: ast.Subscript) -> None:
    """Emit a slice; see the module's docstring.  Raises ToVerilogError if its width isn't constant."""
    assert isinstance(node.slice, ast.Slice)
    high, low = node.slice.lower, node.slice.upper
    if not _moves(self, high) and not _moves(self, low):
        _original_access_slice(self, node)
        return
    value_of = _constant_of(self)
    width = LinearForm.of(high, value_of) if high is not None else LinearForm(0, {"width": 1})
    if low is not None:
        width = width.plus(LinearForm.of(low, value_of), -1)
    if width.terms or width.constant < 1:
        source = ast.unparse(node)
        self.raiseError(node, "Slice of varying width", f"{source}: the bounds must differ by a constant > 0")
    widen = isinstance(node.ctx, ast.Load) and self.context == _context.SIGNED
    if widen:
        self.write("$signed({1'b0, ")
    self.context = None
    self.visit(node.value)
    self.write("[")
    if low is None:
        self.write("0")
    else:
        self.visit(low)
    self.write(f" +: {width.constant}]")
    self.context = None
    if widen:
        self.write("})")


# ---------------------------------------------------------------------------------- sensitivity lists

_original_init_always_comb = _always_comb._AlwaysComb.__init__


def _init_always_comb(self: Any, func: Any, callinfo: Any) -> None:
    """As MyHDL has it, with the sensitivity list in the order of names."""
    _original_init_always_comb(self, func, callinfo)
    rank: dict[int, int] = {}
    for name in sorted(self.inputs):
        found = self.symdict[name]
        for signal in found if isinstance(found, list) else [found]:
            rank.setdefault(id(signal), len(rank))
    self.senslist = tuple(sorted(self.senslist, key=lambda signal: rank[id(signal)]))


# ---------------------------------------------------------------------------------- created instances

_open_blocks: list[list[Any]] = []


def created_instances(block: Any) -> list[Any]:
    """Blocks and generators made while ``block`` was elaborated, returned by it or not."""
    return list(block._created)


def _record_created_instances() -> None:
    block_init = _block._Block.__init__

    def init_block(self: Any, *args: Any, **kwargs: Any) -> None:
        if _open_blocks:
            _open_blocks[-1].append(self)
        self._created = []
        _open_blocks.append(self._created)
        try:
            block_init(self, *args, **kwargs)
        finally:
            _open_blocks.pop()

    def init_instance(self: Any, *args: Any, **kwargs: Any) -> None:
        if _open_blocks:
            _open_blocks[-1].append(self)
        _make_instance(self, *args, **kwargs)

    _block._Block.__init__ = init_block
    _instance._Instantiator.__init__ = init_instance


__all__ = ["LinearForm", "ToVerilogError", "created_instances", "install", "resolved_tree", "without_speed_patches"]
