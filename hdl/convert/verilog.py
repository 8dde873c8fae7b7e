"""MyHDL blocks to Verilog modules: one flat module for a block, the same text for the same block.

What MyHDL's own ``convert`` leaves open is decided here:

* The block isn't elaborated a second time; names of instances come from their position, labels are counted
  afresh for each conversion, and no date or path is written: converting twice gives the same text.
  (MyHDL numbers instances over the life of the process.)
* Ports are every signal among the arguments: signals, interfaces such as `hdl.stream.Stream`, and lists of
  interfaces (``ys[1].valid`` becomes ``ys1_valid``); a `ClockReset` becomes ``clk`` and ``rst``.
* An unused port or an unread signal is fine; any other warning of MyHDL is an error.
* A memory of few words carries the attribute ``ramstyle = "MLAB"`` (`hdl.memory.LOGIC_MEMORY_WORDS`).
* A memory with a public name (``image=``) starts from the file in the parameter ``INIT_<name>``; nothing
  of its contents is in the text, so one module serves for all weights.
* The block's docstring heads the module, without the section "Ports": the text declares them, under its own names.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import myhdl
from myhdl._always import _Always
from myhdl._block import _Block
from myhdl._extractHierarchy import _memInfoMap
from myhdl._instance import _Instantiator
from myhdl._Signal import _WaiterList
from myhdl.conversion import _misc, _toVerilog

from hdl.convert.images import Image
from hdl.convert.netlist import VERILOG_KEYWORDS, Direction, PortDecl
from hdl.elaboration.ports import port_signals, running_counts, subblocks
from hdl.errors import ConversionError
from hdl.memory import LOGIC_MEMORY_WORDS, dual_clock, simple_dual_port, true_dual_port


@dataclass(frozen=True)
class VerilogModule:
    """One flat Verilog module."""

    name: str
    text: str
    ports: tuple[PortDecl, ...]
    images: Mapping[str, Image]

    def write(self, folder: Path) -> Path:
        """Write ``<folder>/<name>.v`` and return its path."""
        path = folder / f"{self.name}.v"
        path.write_text(self.text)
        return path


def convert(block: Any, name: str, *, lint: bool = True) -> VerilogModule:
    """The Verilog module of an elaborated block; the block must not be under simulation.

    Raises `ConversionError`, with everything `hdl.convert.lint` finds or the words of MyHDL, when the Verilog would
    not mean what the block means.  ``lint=False`` is for tests of the lint.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name) or name in VERILOG_KEYWORDS:
        raise ConversionError(f"{name!r} is no name for a Verilog module")
    if lint:
        _lint(block, name)
    _prepare(block)
    ports = port_signals(block, name)
    memories = _image_blocks(block, name)
    marked = _marked_memories(block)
    raw, declared, arrays = _run_myhdl(block, name, ports, [*memories.values(), *(sub for sub, _ in marked)])
    images = {image: Image(image, arrays[id(sub)], *_shape(sub)) for image, sub in memories.items()}
    _check_inside(name, raw)
    text = _postprocess(raw, name, images, {arrays[id(sub)]: attributes for sub, attributes in marked})
    return VerilogModule(name, text, declared, images)


def _lint(block: Any, name: str) -> None:
    from hdl.convert.lint import lint

    findings = lint(block)
    if findings:
        head = f"{name}: Verilog would differ from MyHDL in {len(findings)} place(s)"
        raise ConversionError.listing(head, map(str, findings), lines=True)


def _prepare(block: Any) -> None:
    """Bring the marks that conversion reads into the state just after elaboration, and fix the names."""
    for sub in subblocks(block):
        for signal in sub.sigdict.values():
            signal._clear()
            signal._used = False
        for memory in sub.memdict.values():
            memory.name = memory._driven = None
            memory._read = memory._used = False
            _memInfoMap[id(memory.mem)] = memory
            for signal in memory.mem:
                signal._clear()
                signal._used = False
    for sub in subblocks(block):
        counts: dict[str, int] = {}
        for child in sub.subs:
            if isinstance(child, _Block):
                function = child.func.__name__
                child.name = child.__name__ = f"{function}{counts.get(function, 0)}"
                counts[function] = counts.get(function, 0) + 1
            elif isinstance(child, _Instantiator):
                _mark_used(sub, child)


def _mark_used(block: Any, generator: Any) -> None:
    for signal in generator.sigdict.values():
        signal._markUsed()
    for name, members in generator.losdict.items():
        _memory(block, name, members)._used = True
        for signal in members:
            signal._markUsed()
    if isinstance(generator, _Always):
        for item in generator.senslist:
            signal = item.sig if isinstance(item, _WaiterList) else item
            signal._read = signal._used = True


def _image_blocks(block: Any, name: str) -> dict[str, Any]:
    """Memories with a public name."""
    found: dict[str, Any] = {}
    for sub in subblocks(block):
        image = sub.kwargs.get("image")
        if image is None:
            continue
        if not re.fullmatch(r"\w+", image):
            raise ConversionError(f"{name}: memory image {image!r} must consist of letters, digits and _")
        if image in found:
            raise ConversionError(f"{name}: two memories are named {image!r}", "number them")
        found[image] = sub
    return found


def _array(memory_block: Any) -> Any:
    return memory_block.memdict["mem"]


def _shape(memory_block: Any) -> tuple[int, int]:
    memory = _array(memory_block)
    return memory.depth, memory.elObj._nrbits


def _marked_memories(block: Any) -> list[tuple[Any, str]]:
    """Memories with what to tell synthesis: to make a small one of MLABs, to keep a count that nothing reads."""
    kinds = (simple_dual_port.__name__, true_dual_port.__name__, dual_clock.__name__)
    memories = [sub for sub in subblocks(block) if sub.func.__name__ in kinds]
    small = [memory for memory in memories if _array(memory).depth <= LOGIC_MEMORY_WORDS]
    counts = [(count, "noprune, keep") for count in running_counts(block)]
    return [(memory, 'ramstyle = "MLAB"') for memory in small] + counts


# warnings of MyHDL that are no trouble
_HARMLESS = (_misc._error.UnusedPort, _misc._error.UnreadSignal, _misc._error.OutputPortRead)


class _KeptText(io.StringIO):
    """A file in memory that can be read after it was closed."""

    def close(self) -> None:
        """Keep the text."""


def _run_myhdl(
    block: Any, name: str, ports: dict[str, Any], memories: Sequence[Any]
) -> tuple[str, tuple[PortDecl, ...], dict[int, str]]:
    """MyHDL's text, the ports with their directions, the array names of these memories by identity."""
    _misc._genLabel = _misc._LabelGenerator()
    block.argnames, block.argdict = list(ports), ports
    block._inferInterface = lambda: None
    declared: list[PortDecl] = []
    names: dict[int, str] = {}

    def inspect_analysis(_self: Any, _hierarchy: Any, _interface: Any, signals: Any, mems: Any, _gens: Any) -> None:
        for port, signal in ports.items():
            signal._name = port
            declared.append(_port_decl(port, signal, name))
        names.update({id(sub): _array(sub).name for sub in memories})
        _check_names(name, [s for s in signals if s._used], [m for m in mems if m._used])
        _check_hidden(name, block)

    # MyHDL opens a file and leaves it open when it fails
    file = _KeptText()
    _toVerilog.open = lambda _path, _mode: file
    converter = _toVerilog.toVerilog
    hook = _toVerilog._ToVerilogConvertor._convert_filter
    _toVerilog._ToVerilogConvertor._convert_filter = inspect_analysis
    converter.name, converter.timescale, converter.initial_values = name, "1ns/1ps", True
    converter.no_testbench, converter.no_myhdl_header = True, True
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            converter(block)
            text = file.getvalue()
    except (myhdl.ConversionError, myhdl.ToVerilogError, AssertionError, KeyError, AttributeError) as error:
        raise ConversionError(f"{name}: MyHDL can't convert it: {type(error).__name__} {error}") from error
    finally:
        del _toVerilog.open
        _toVerilog._converting = 0
        converter._cleanup([], [])
        converter.initial_values = False
        _toVerilog._ToVerilogConvertor._convert_filter = hook
        del block._inferInterface
        _memInfoMap.clear()
    _judge(name, caught)
    return text, tuple(declared), names


def _port_decl(port: str, signal: Any, module: str) -> PortDecl:
    if signal._inList:
        raise ConversionError(f"{module}: port {port} is also an element of a list of signals")
    direction = Direction.OUT if signal._driven else Direction.IN
    width = 1 if signal._type is bool else signal._nrbits
    return PortDecl(port, width, direction, signal._min is not None and signal._min < 0)


def _check_names(module: str, signals: list[Any], memories: list[Any]) -> None:
    names = [signal._name for signal in signals] + [memory.name for memory in memories]
    for found in names:
        if found in VERILOG_KEYWORDS:
            raise ConversionError(f"{module}: signal {found!r} has the name of a Verilog keyword", "rename it")
        if names.count(found) > 1:
            raise ConversionError(f"{module}: two signals get the Verilog name {found!r}", "rename one")


def _check_hidden(module: str, block: Any) -> None:
    """A process has no variable that hides a signal of its own, which may be named otherwise in MyHDL."""
    for sub in subblocks(block):
        for process in (child for child in sub.subs if isinstance(child, _Instantiator)):
            names = {signal._name for signal in process.sigdict.values()}
            names |= {_memory(sub, *lists).name for lists in process.losdict.items()}
            for hidden in sorted(names.intersection(process.funcobj.__code__.co_varnames)):
                what = f"variable {hidden!r} of process {process.name!r} hides a signal that it uses"
                raise ConversionError(f"{module}: {what}", "rename it")


def _memory(block: Any, name: str, members: Any) -> Any:
    return block.memdict.get(name) or _memInfoMap[id(members)]


# a process, or a variable in one, as MyHDL writes them
_INSIDE = re.compile(r"\bbegin: (\w+)$|^ +(?:reg(?: signed)?(?: \[[^\]]*\])?|integer) (\w+);$", re.MULTILINE)


def _check_inside(module: str, text: str) -> None:
    for process, variable in _INSIDE.findall(text):
        for what, found in (("process", process), ("variable", variable)):
            if found in VERILOG_KEYWORDS:
                raise ConversionError(f"{module}: {what} {found!r} has the name of a Verilog keyword", "rename it")


def _judge(name: str, caught: list[warnings.WarningMessage]) -> None:
    serious = []
    for warning in caught:
        text = str(warning.message).strip()
        if isinstance(warning.message, myhdl.ToVerilogWarning) and text.startswith(_HARMLESS):
            continue
        if text.startswith(_misc._error.UndrivenSignal):
            text += " (for a constant use a Python int, or drive it; or is an instance missing in the return?)"
        serious.append(text)
    if serious:
        raise ConversionError.listing(f"{name}: MyHDL warns", sorted(set(serious)))


# a docstring's section, as a comment
_PORTS = re.compile(r"^// *\n// Ports:\n(?:// {5,}\S.*\n)+", re.MULTILINE)


def _postprocess(raw: str, name: str, images: Mapping[str, Image], marked: Mapping[str, str]) -> str:
    text = re.sub(r"^\s*`timescale[^\n]*\n", "", raw, flags=re.MULTILINE)
    text = _PORTS.sub("", text, count=1)
    for image in images.values():
        text = _load_from_file(text, image)
    for array, attributes in marked.items():
        text = _with_attributes(text, array, attributes)
    if images:
        parameters = ",\n".join(f'    parameter {image.parameter} = ""' for image in images.values())
        text = text.replace(f"module {name} (", f"module {name} #(\n{parameters}\n) (", 1)
    # initial words of a memory: blocking, as other initial values are
    words = r"^initial begin\n(?:    \w+\[\d+\] <= [^\n]*;\n)+end$"
    text = re.sub(words, lambda found: found.group(0).replace("] <= ", "] = "), text, flags=re.MULTILINE)
    text = "\n".join(line.rstrip() for line in text.splitlines())
    text = re.sub(r"\n{3,}", "\n\n", text).strip()
    return f"{text}\n"


def _with_attributes(text: str, array: str, attributes: str) -> str:
    """Tell synthesis how to make a memory."""
    declaration = rf"^(reg (?:signed )?(?:\[[^\]]*\]\s+)?{re.escape(array)} \[0:[^\]]*\];)$"
    changed, count = re.subn(declaration, rf"(* {attributes} *) \1", text, flags=re.MULTILINE)
    if count != 1:
        raise ConversionError(f"memory {array} not found in MyHDL's text", "a bug here")
    return changed


def _load_from_file(text: str, image: Image) -> str:
    """Put a ``$readmemh`` in place of MyHDL's initial values of one memory."""
    array = re.escape(image.memory)
    declaration = rf"(reg (?:signed )?\[[^\]]*\]\s+{array} \[0:[^\]]*\];\n)"
    loop = (
        r"\ninitial begin: \w+\n    integer i;\n    for\(i=0; i<\d+; i=i\+1\) begin\n"
        rf"\s*{array}\[i\] = [^\n]*\n    end\nend\n"
    )
    words = rf"initial begin\n(?:    {array}\[\d+\] <= [^\n]*;\n)+end"
    load = f'\ninitial if ({image.parameter} != "") $readmemh({image.parameter}, {image.memory});\n'
    changed, count = re.subn(
        rf"{declaration}(?:{loop}|{words})", lambda found: found.group(1) + load.lstrip("\n"), text
    )
    if count != 1:
        raise ConversionError(f"memory {image.memory} of image {image.name} not found in MyHDL's text", "a bug here")
    return changed
