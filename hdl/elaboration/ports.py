"""The ports of a MyHDL block, by the names that they get in Verilog."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum
from typing import Any

import myhdl
from myhdl import EnumType
from myhdl._block import _Block
from myhdl._ShadowSignal import _ShadowSignal
from myhdl._Signal import _Signal

from hdl.errors import ConversionError
from hdl.memory import running_count
from hdl.signals import ClockReset


def subblocks(block: Any) -> Iterator[Any]:
    """The block and all blocks below it, in elaboration order."""
    yield block
    for sub in block.subs:
        if isinstance(sub, _Block):
            yield from subblocks(sub)


def running_counts(block: Any) -> list[Any]:
    """The `hdl.memory.running_count` among them, which are kept though nothing in the circuit reads what they count."""
    return [sub for sub in subblocks(block) if sub.func.__name__ == running_count.__name__]


def port_signals(block: Any, name: str) -> dict[str, Any]:
    """Port names and signals of the arguments, in their order."""
    signature = inspect.signature(block.func)
    bound = signature.bind(*block.args, **block.kwargs)
    found: dict[str, Any] = {}
    for argument, value in bound.arguments.items():
        kind = signature.parameters[argument].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            for key, item in value.items():
                _expand(key, item, found, set())
        else:
            _expand(argument, value, found, set())
    by_signal: dict[int, str] = {}
    for port, signal in found.items():
        if isinstance(signal, _ShadowSignal):
            raise ConversionError(f"{name}: port {port} is a slice of another signal", "give a signal of its own")
        if id(signal) in by_signal:
            raise ConversionError(f"{name}: ports {by_signal[id(signal)]} and {port} are the same signal")
        by_signal[id(signal)] = port
    return found


def _expand(name: str, value: Any, found: dict[str, Any], seen: set[int]) -> None:
    if isinstance(value, _Signal):
        if name in found:
            raise ConversionError(f"two ports are named {name}")
        found[name] = value
        return
    plain = (str, bytes, int, float, type, EnumType, Enum, myhdl.intbv)
    if value is None or isinstance(value, plain) or callable(value) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, ClockReset):
        _expand("clk", value.clk, found, seen)
        _expand("rst", value.rst, found, seen)
        return
    if isinstance(value, list | tuple):
        if any(isinstance(item, _Signal) for item in value):
            raise ConversionError(f"port {name} is a list of signals", "use one flat vector or a list of interfaces")
        for index, item in enumerate(value):
            _expand(f"{name}{index}", item, found, seen)
        return
    attributes = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        for slot in getattr(cls, "__slots__", ()):
            if isinstance(getattr(value, slot, None), _Signal):
                raise ConversionError(f"port {name}: {cls.__name__}.{slot} is in __slots__", "MyHDL would lose it")
    for attribute, item in attributes.items():
        _expand(f"{name}_{attribute}", item, found, seen)
