"""How viewers show a waveform of streams: a save file for GTKWave, a command file for Surfer.

In both every node is there by its name, with a group for each of its streams (handshake, the frame that passes, lanes
as numbers, the payload) and what is inside its circuit, arrays aside; a cursor stands where one is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from vcd.gtkw import GTKWSave

from dagtrain.cosim.inside import Inner
from dagtrain.cosim.waves import INSIDE, SHOWN_LANES, Wave, inner_scope

GTKWAVE, SURFER = ".gtkw", ".sucl"


def write_views(file: Path, waves: Sequence[Wave], inner: Sequence[Inner] = (), cursor_ps: int | None = None) -> None:
    """Beside the waveform ``file`` what `gtkwave waves.gtkw` reads, and `surfer --command-file waves.sucl FILE`.

    Args:
        cursor_ps: where the cursor stands, picoseconds."""
    _write_gtkwave(file, waves, inner, cursor_ps)
    lines = (*_surfer_lines(waves, inner), "zoom_fit", *(() if cursor_ps is None else (f"cursor_set {cursor_ps}",)))
    file.with_suffix(SURFER).write_text("".join(f"{line}\n" for line in lines))


def _nodes(waves: Sequence[Wave]) -> Iterator[tuple[str, str, list[Wave]]]:
    """(device, node, its streams)."""
    for device, node in dict.fromkeys((wave.traced.device, wave.traced.node) for wave in waves):
        yield device, node, [wave for wave in waves if (wave.traced.device, wave.traced.node) == (device, node)]


def _surfer_lines(waves: Sequence[Wave], inner: Sequence[Inner]) -> Iterator[str]:
    """Surfer names a group after its scope and takes one word for a divider's name; what is inside has a divider."""
    for device, node, streams in _nodes(waves):
        yield "divider_add " + re.sub(r"\W", "_", node)
        for wave in streams:
            yield "scope_add_as_group " + ".".join(wave.scope)
        own = _shown_inside(inner, device, node)
        if own:
            yield f"divider_add {INSIDE}"
        for one in own:
            yield "variable_add " + ".".join((*inner_scope(one), one.name))


def _shown_inside(inner: Sequence[Inner], device: str, node: str) -> list[Inner]:
    """Signals inside the circuit of a node, arrays aside."""
    return [one for one in inner if (one.device, one.node) == (device, node) and not one.is_element]


def _write_gtkwave(file: Path, waves: Sequence[Wave], inner: Sequence[Inner], cursor_ps: int | None) -> None:
    with file.with_suffix(GTKWAVE).open("w") as sink:
        save = GTKWSave(sink)
        save.dumpfile(file.name, abspath=False)
        if cursor_ps is not None:
            save.zoom_markers(marker=cursor_ps)
        for device, node, streams in _nodes(waves):
            with save.group(node):
                for wave in streams:
                    _save_stream(save, wave)
                own = _shown_inside(inner, device, node)
                if own:
                    with save.group(INSIDE, closed=True):
                        for one in own:
                            name = ".".join((*inner_scope(one), one.name))
                            save.trace(f"{name}{_range(one.bits)}", datafmt="hex")


def _save_stream(save: GTKWSave, wave: Wave) -> None:
    prefix = ".".join(wave.scope)
    with save.group(wave.scope[-1]):
        for name in ("valid", "ready"):
            save.trace(f"{prefix}.{name}", datafmt="bin")
        save.trace(f"{prefix}.tensor{_range(32)}", datafmt="dec")
        for lane in range(min(wave.port.lanes, SHOWN_LANES)):
            save.trace(f"{prefix}.lane{lane}", datafmt="real")
        save.trace(f"{prefix}.payload{_range(wave.port.payload_bits)}", datafmt="hex")


def _range(bits: int) -> str:
    """What stands behind the name of a signal of so many bits."""
    return f"[{bits - 1}:0]" if bits > 1 else ""
