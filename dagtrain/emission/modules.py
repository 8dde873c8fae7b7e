"""The distinct Verilog modules of a design: each circuit configuration is converted once, whoever uses it.

A module's name ends in a hash of its configuration, so the same configuration has the same name and text in every
design, on every machine, and module texts can be kept on disk between runs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dagtrain.files import write_text
from hdl.cache import code_hash
from hdl.convert.images import Image
from hdl.convert.netlist import VERILOG_KEYWORDS, Direction, PortDecl
from hdl.convert.verilog import VerilogModule, convert
from hdl.elaboration.patches import forgotten_signals
from hdl.elaboration.ports import port_signals
from hdl.elaboration.processes import in_processes
from hdl.layers.base import Layer
from hdl.memory import unsimulated
from hdl.records import parse_json
from hdl.signals import ClockReset
from hdl.stream import Stream

# builds a block from (clock and reset, streams by name)
Builder = Callable[[ClockReset, Mapping[str, Stream]], Any]


@dataclass(frozen=True)
class StreamModule:
    """A Verilog module whose ports are clk, rst and streams."""

    verilog: VerilogModule
    # stream name -> prefix of its Verilog ports
    prefixes: Mapping[str, str]

    @property
    def name(self) -> str:
        """The Verilog module name."""
        return self.verilog.name

    def payload_bits(self, stream: str) -> int:
        """Payload width of a stream port."""
        payload = f"{self.prefixes[stream]}_payload"
        return next(port.width for port in self.verilog.ports if port.name == payload)


class ModuleLibrary:
    """All modules of one design; ``cache`` is a folder that keeps converted modules between runs."""

    def __init__(self, cache: Path | None = None) -> None:
        self._cache = cache
        self._modules: dict[str, StreamModule] = {}

    def __iter__(self) -> Any:
        return iter(sorted(self._modules.values(), key=lambda module: module.name))

    def layer(self, layer: Layer) -> StreamModule:
        """The module of a layer's circuit."""
        return self.block(*_layer_block(layer), lambda domain, streams: layer.circuit(domain, streams))

    def prepare(self, layers: Iterable[Layer]) -> None:
        """Convert the layers that aren't known yet in several processes, where that pays."""
        wanted = {_module_name(*_layer_block(layer)): layer for layer in layers if layer.sinks and layer.sources}
        missing = {name: wanted[name] for name in wanted if name not in self._modules and self._load(name) is None}
        with closing(in_processes(_converted_layer, missing)) as results:
            for name, module in results:
                self._modules[name] = module
                self._store(module)

    def block(self, kind: str, configuration: str, widths: Mapping[str, int], build: Builder) -> StreamModule:
        """The module of any block between streams of the given payload widths.

        ``kind`` and ``configuration`` must determine the circuit."""
        name = _module_name(kind, configuration, widths)
        if name not in self._modules:
            self._modules[name] = self._load(name) or self._make(name, widths, build)
        return self._modules[name]

    def _make(self, name: str, widths: Mapping[str, int], build: Builder) -> StreamModule:
        module = _converted(name, widths, build)
        self._store(module)
        return module

    def _path(self, name: str) -> Path | None:
        return self._cache / f"{name}-{code_hash()[:16]}.json" if self._cache else None

    def _store(self, module: StreamModule) -> None:
        path = self._path(module.name)
        if path:
            ports = [[port.name, port.width, port.direction.value, port.signed] for port in module.verilog.ports]
            images = {name: asdict(image) for name, image in module.verilog.images.items()}
            write_text(
                path,
                json.dumps(
                    {
                        "text": module.verilog.text,
                        "ports": ports,
                        "images": images,
                        "prefixes": dict(module.prefixes),
                    }
                ),
            )

    def _load(self, name: str) -> StreamModule | None:
        path = self._path(name)
        if path is None or not path.exists():
            return None
        try:
            data = parse_json(path.read_text())
            ports = tuple(PortDecl(port, width, Direction(way), signed) for port, width, way, signed in data["ports"])
            images = {image: Image(**fields) for image, fields in data["images"].items()}
            return StreamModule(VerilogModule(name, data["text"], ports, images), data["prefixes"])
        except (ValueError, TypeError, KeyError, AttributeError):
            # damaged: converted anew
            return None


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _module_name(kind: str, configuration: str, widths: Mapping[str, int]) -> str:
    digest = hashlib.sha256(f"{kind}|{configuration}|{sorted(widths.items())}".encode()).hexdigest()
    return f"{kind}_{digest[:10]}"


def _layer_block(layer: Layer) -> tuple[str, str, dict[str, int]]:
    """Kind, configuration and payload widths of a layer's module."""
    widths = {port.name: port.payload_bits for port in (*layer.sinks, *layer.sources, *layer.beside)}
    return _snake(type(layer).__name__), repr(layer), widths


def _converted_layer(layer: Layer) -> StreamModule:
    block = _layer_block(layer)
    return _converted(_module_name(*block), block[2], lambda domain, streams: layer.circuit(domain, streams))


def _converted(name: str, widths: Mapping[str, int], build: Builder) -> StreamModule:
    domain = ClockReset()
    streams = {stream: Stream(width) for stream, width in widths.items()}
    with unsimulated(), forgotten_signals():
        block = build(domain, streams)
        by_signal = {id(signal): port for port, signal in port_signals(block, name).items()}
        prefixes = {stream: by_signal[id(signals.valid)].removesuffix("_valid") for stream, signals in streams.items()}
        return StreamModule(convert(block, name), prefixes)


def verilog_name(name: str) -> str:
    """A Verilog identifier for the name of a node, an edge or a device; `large` and `small` are keywords, say."""
    found = re.sub(r"\W", "_", name)
    return f"{found}_" if found in VERILOG_KEYWORDS else found
