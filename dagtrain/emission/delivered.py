"""What was delivered for a whole cluster, read back from its folders and held against its manifests.

The co-simulation compiles these files, and nothing else of the design.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dagtrain.emission.manifest import (
    COMMAND,
    FILE_LIST,
    MANIFEST,
    DeliveryError,
    ImageRecord,
    Manifest,
    MemoryRecord,
    PortRecord,
    read_manifest,
)
from hdl.convert.netlist import Direction
from hdl.link.ethernet.transmitter import PEER_BITS, own_constant, peer_constant

_MODULE = re.compile(r"^\s*module\s+(\w+)", re.MULTILINE)
_CONSTANT = re.compile(r"^localparam (?:\[\d+:0\] )?(\w+) = \d+'h([0-9a-f]+);$", re.MULTILINE)
_TOP_PORT = re.compile(r"^\s*(input|output) wire (?:\[(\d+):0\] )?(\w+)", re.MULTILINE)


@dataclass(frozen=True)
class DeliveredDevice:
    """The folder of one FPGA."""

    folder: Path
    manifest: Manifest

    @property
    def sources(self) -> list[Path]:
        """Verilog in order of compilation, as `files.f` names it."""
        return [self.folder / line for line in (self.folder / FILE_LIST).read_text().split()]

    def words(self, image: ImageRecord) -> list[int]:
        """The contents of an image.  Raises `DeliveryError` for what is no word of its width."""
        return _read_words(self.folder / image.file, image.width)

    def memory_words(self, memory: MemoryRecord) -> list[tuple[int, list[int]]]:
        """The image of a memory channel: (first word, words) of each part.  Raises `DeliveryError` as `words`."""
        path, width, parts = self.folder / memory.image, memory.format.data_bits, []
        for part in path.read_text().split("@")[1:]:
            first, _, text = part.partition("\n")
            parts.append((_word(first, 64, path), [_word(line, width, path) for line in text.split()]))
        return parts


@dataclass(frozen=True)
class Delivered:
    """All FPGAs of a cluster."""

    devices: tuple[DeliveredDevice, ...]

    @property
    def cycles_per_frame(self) -> int:
        """Pipeline interval that the design is for."""
        return self.devices[0].manifest.cycles_per_frame

    @property
    def needed_staleness(self) -> int:
        """Least staleness, in frames, at which the pipeline never waits for weights."""
        return self.devices[0].manifest.needed_staleness

    @property
    def network_mhz(self) -> float:
        """The clock of the cluster and of its network of words, in whose cycles all this counts."""
        first = self.devices[0].manifest
        return first.clock_mhz if first.network_mhz is None else first.network_mhz

    @property
    def clocks(self) -> dict[str, float]:
        """Device → its clock in MHz, where that is another one than the cluster's."""
        manifests = [device.manifest for device in self.devices]
        return {manifest.device: manifest.clock_mhz for manifest in manifests if manifest.network_mhz is not None}

    def modules(self) -> dict[str, Path]:
        """Module → its file, in order of compilation: what several devices have once.

        Raises `DeliveryError` where devices have different texts of one module."""
        found: dict[str, Path] = {}
        problems = []
        for device in self.devices:
            for path in device.sources:
                known = found.setdefault(path.stem, path)
                if known != path and known.read_bytes() != path.read_bytes():
                    problems.append(f"{known} and {path} differ, but are the same module")
        if problems:
            raise DeliveryError.listing("", problems, f"run `{COMMAND}` again")
        return found


def load_delivered(folders: Sequence[Path]) -> Delivered:
    """The devices in these folders.  Raises `DeliveryError` naming every file that is not what the manifest says."""
    devices = tuple(DeliveredDevice(folder, read_manifest(folder / MANIFEST)) for folder in folders)
    problems = [problem for device in devices for problem in _problems(device)]
    networks = {device.manifest.network_mhz or device.manifest.clock_mhz for device in devices}
    if len(devices) > 1 and len(networks) > 1:
        listed = ", ".join(f"{mhz:g} MHz" for mhz in sorted(networks))
        problems.append(f"the manifests tell of different clocks of the cluster, which plans count in: {listed}")
    problems += _strangers([device.manifest for device in devices])
    for what in ("cycles_per_frame", "needed_staleness"):
        if len({getattr(device.manifest, what) for device in devices}) > 1:
            problems.append(f"the manifests of {', '.join(d.manifest.device for d in devices)} differ in {what}")
    if problems:
        raise DeliveryError.listing("", problems, f"run `{COMMAND}` again")
    return Delivered(devices)


def _problems(device: DeliveredDevice) -> Iterable[str]:
    folder, manifest = device.folder, device.manifest
    listed = folder / FILE_LIST
    if not listed.is_file():
        yield f"{listed} is missing"
        return
    if listed.read_text().split() != list(manifest.sources):
        yield f"{listed} names other files than {folder / MANIFEST}"
        return
    if manifest.top not in (path.stem for path in device.sources):
        yield f"{listed} names no file of the top module {manifest.top}"
    for path in device.sources:
        yield from _source_problems(path, manifest)
    for image in manifest.images:
        path, size = folder / image.file, image.depth * ((image.width + 3) // 4 + 1)
        if not path.is_file():
            yield f"{path} is missing"
        elif path.stat().st_size != size:
            yield f"{path} has {path.stat().st_size:,} bytes, {image.depth:,} words of {image.width} bits have {size:,}"
    for memory in manifest.memory or ():
        if not (folder / memory.image).is_file():
            yield f"{folder / memory.image} is missing"
    for shared in manifest.ethernet.files if manifest.ethernet else ():
        path = folder / shared.file
        if not path.is_file():
            yield f"{path} is missing"
        elif hashlib.sha256(path.read_bytes()).hexdigest() != shared.sha256:
            yield f"{path} is not the file that {folder / MANIFEST} tells of"


def _source_problems(path: Path, manifest: Manifest) -> Iterable[str]:
    try:
        text = path.read_text()
    except OSError as error:
        yield f"{path} cannot be read: {error.strerror}"
        return
    except UnicodeDecodeError as error:
        yield f"{path} is no Verilog ({error})"
        return
    modules = _MODULE.findall(text)
    if modules != [path.stem]:
        yield f"{path} has modules {', '.join(modules) or '(none)'} instead of {path.stem}"
    elif path.stem == manifest.top:
        ports = tuple(
            PortRecord(name=name, width=int(high or 0) + 1, direction=Direction(way))
            for way, high, name in _TOP_PORT.findall(text)
        )
        if ports != manifest.ports:
            differing = {port.name for port in {*ports} ^ {*manifest.ports}}
            yield f"ports of {path} differ from the manifest's: {', '.join(sorted(differing)) or 'their order'}"
        yield from _constant_problems(path, text, manifest)


def _constant_problems(path: Path, text: str, manifest: Manifest) -> Iterable[str]:
    """What an Ethernet port is told of itself, its peers and the plan, and is not what the manifest says."""
    record = manifest.ethernet
    if record is None:
        return
    own, peers = record.own.address, [peer.address for peer in record.peers]
    told = {
        "OWN": own_constant(own),
        "OTHERS": sum(peer_constant(own, peer) << at * PEER_BITS for at, peer in enumerate(peers)),
        "DIGEST": int(record.digest, 16),
    }
    found = {name: int(value, 16) for name, value in _CONSTANT.findall(text)}
    wrong = [name for name, value in told.items() if found.get(name) != value]
    if wrong:
        yield f"{', '.join(wrong)} of {path} are not what {MANIFEST} says of addresses and plan"


def _strangers(manifests: Sequence[Manifest]) -> Iterable[str]:
    """Devices on one Ethernet that would not hear one another."""
    ports = {manifest.device: manifest.ethernet for manifest in manifests if manifest.ethernet}
    for what in ("digest", "word_bits", "mtu", "window"):
        if len({getattr(port, what) for port in ports.values()}) > 1:
            yield f"the manifests of {', '.join(ports)} differ in {what}"
    ends = {port.own.number: port.own for port in ports.values()}
    if len(ends) < len(ports):
        yield f"the manifests of {', '.join(ports)} give one number to two devices"
    for name, port in ports.items():
        wrong = [str(peer.number) for peer in port.peers if ends.get(peer.number, peer) != peer]
        if wrong:
            yield f"the manifest of {name} has other addresses of devices {', '.join(wrong)} than these have"


def _read_words(path: Path, width: int) -> list[int]:
    return [_word(line, width, path) for line in path.read_text().split()]


def _word(text: str, width: int, path: Path) -> int:
    try:
        word = int(text, 16)
    except ValueError:
        word = -1
    if not 0 <= word < 1 << width:
        raise DeliveryError(f"{path}: {text[:40]!r} is no word of {width} bits", f"run `{COMMAND}` again")
    return word
