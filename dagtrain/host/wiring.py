"""What a host has to know of a cluster: devices, their addresses, the streams between them and it.

It stands in one TOML file, ``network/addresses.toml``, which docs/network.md describes."""

from __future__ import annotations

import ipaddress
import json
import tomllib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from dagtrain.emission.ethernet import FROM_DEVICE as FROM_DEVICE
from dagtrain.emission.ethernet import TO_DEVICE as TO_DEVICE
from dagtrain.emission.state import StateLink
from dagtrain.host.streams import Layout
from hdl.engine.weights.records import WORD_BITS as STATE_BITS
from hdl.errors import DagtrainError, Problem
from hdl.link.ethernet.frame import HOST, LEAST_MTU, MOST_MTU, UDP_PORT, FrameFormat
from hdl.records import shown
from placement.problem.network import Ip, Mac
from placement.problem.tables import Name, Table, repeated

SCHEMA = 1
# the file, in the folder of `dagtrain emit`
ADDRESSES = Path("network") / "addresses.toml"
Count = Annotated[int, Field(strict=True, ge=0, description="a whole number, 0 or more")]
Positive = Annotated[int, Field(strict=True, ge=1, description="a whole number, 1 or more")]
Port = Annotated[int, Field(strict=True, ge=0, lt=1 << 16, description="a UDP port")]


class WiringError(DagtrainError):
    """A file of addresses that can't be used; the message lists all problems."""


class LinkTable(Table):
    """[[device.link]]: a node in the chain of a device's state."""

    node: str
    words: Count


class DeviceTable(Table):
    """[[device]]: where a device is and what state it holds."""

    name: Name
    number: Annotated[int, Field(strict=True, ge=0, lt=HOST, description=f"a whole number below {HOST}")]
    ip: Ip
    port: Port = UDP_PORT
    mac: Mac = None
    link: tuple[LinkTable, ...] = ()
    # what a report of a self-test tells
    values: tuple[str, ...] = ()
    # of a march through all of a memory channel of it
    bursts: Positive | None = None

    @property
    def links(self) -> tuple[StateLink, ...]:
        """Its chain."""
        return tuple(StateLink(node=link.node, words=link.words) for link in self.link)

    @property
    def place(self) -> tuple[str, int]:
        """Address of its UDP socket."""
        return str(self.ip), self.port


class StreamTable(Table):
    """[[stream]]: words between the host and a device."""

    number: Annotated[int, Field(strict=True, ge=0, lt=1 << 16, description="a whole number of 16 bits")]
    device: Name
    carries: Annotated[
        Literal["image", "label", "result", "load", "dump", "order", "report"],
        Field(description='"image", "label", "result", "load", "dump", "order" or "report"'),
    ]
    # words that the receiver holds
    credits: Positive
    # of images, labels and results
    element_bits: Positive = STATE_BITS
    elements: Count = 0

    def layout(self, word_bits: int) -> Layout:
        """How its numbers lie in words."""
        return Layout(word_bits=word_bits, element_bits=self.element_bits, elements=self.elements)


class HostTable(Table):
    """[host]: where the host takes its port."""

    ip: Ip
    port: Port = UDP_PORT
    # by which devices know it; of no use to the host itself
    mac: Mac = None


class Wiring(Table):
    """The file."""

    schema_version: Literal[1]
    # first 32 bits of the plan's SHA-256
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{8}$", description="8 hexadecimal digits in quotation marks")]
    # of a word of the network
    word_bits: Literal[64, 128, 256, 512]
    mtu: Annotated[int, Field(strict=True, ge=LEAST_MTU, le=MOST_MTU, description=f"{LEAST_MTU} to {MOST_MTU}")]
    # frames on their way between the host and a device
    window: Annotated[int, Field(strict=True, ge=2, le=4096, description="a whole number, 2 to 4096")] = 16
    key: Annotated[
        str | None, Field(pattern=r"^[0-9a-fA-F]{16}$", description="16 hexadecimal digits in quotation marks")
    ] = None
    # frames of a batch; how often state is loaded
    batch: Positive
    rounds: Annotated[int, Field(strict=True, ge=1, le=2, description="1 or 2")] = 1
    host: HostTable
    device: tuple[DeviceTable, ...]
    stream: tuple[StreamTable, ...]

    @cached_property
    def form(self) -> FrameFormat:
        """Frames of the cluster."""
        key = None if self.key is None else int(self.key, 16)
        return FrameFormat(word_bits=self.word_bits, mtu=self.mtu, key=key)

    def streams_of(self, device: str, carries: Sequence[str]) -> list[StreamTable]:
        """Streams between the host and a device that carry one of these."""
        return [stream for stream in self.stream if stream.device == device and stream.carries in carries]

    def only(self, carries: str) -> StreamTable:
        """The one stream of the cluster that carries this."""
        (found,) = (stream for stream in self.stream if stream.carries == carries)
        return found


def read_wiring(path: Path) -> Wiring:
    """The file.  Raises `WiringError` that lists all problems."""
    cure = "let `dagtrain emit` write it again"
    try:
        raw = tomllib.loads(path.read_text())
    except OSError as error:
        raise WiringError(f"cannot read {path}: {error.strerror}", "name the file with --addresses") from error
    except ValueError as error:
        raise WiringError(f"{path} is no TOML: {error}", cure) from error
    try:
        wiring = Wiring.model_validate(raw)
    except ValidationError as error:
        raise WiringError.listing(f"{path} can't be used", _misfits(error), cure, lines=True) from error
    problems = _problems(wiring)
    if problems:
        raise WiringError.listing(f"{path} can't be used", problems, cure, lines=True)
    return wiring


def _misfits(error: ValidationError) -> list[str]:
    return [
        f"{'.'.join(map(str, found['loc']))}: {found['msg']}"
        + ("" if found["type"] in ("missing", "extra_forbidden") else f", not {shown(found['input'])}")
        for found in error.errors()
    ]


def _problems(wiring: Wiring) -> list[Problem | str]:
    names = [(f"device[{i}].name", device.name) for i, device in enumerate(wiring.device)]
    found: list[Problem | str] = [*repeated("name", names)]
    numbers = [(f"device[{i}].number", str(device.number)) for i, device in enumerate(wiring.device)]
    found += repeated("number", numbers)
    found += repeated("number", [(f"stream[{i}].number", str(s.number)) for i, s in enumerate(wiring.stream)])
    known = {name for _, name in names}
    for index, stream in enumerate(wiring.stream):
        if stream.device not in known:
            found.append(f"stream[{index}].device = {stream.device!r}: there is no such device")
        state = stream.carries not in ("image", "label", "result")
        if stream.element_bits > wiring.word_bits or (state and stream.element_bits != STATE_BITS):
            found.append(
                f"stream[{index}].element_bits = {stream.element_bits}: does not fit a {stream.carries} stream"
            )
        if state != (stream.elements == 0):
            found.append(f"stream[{index}].elements = {stream.elements}: only state and tests have no tensors")
    carried = [stream.carries for stream in wiring.stream]
    tests = "order" in carried
    found += [f"streams that carry {what}: {carried.count(what)}, not {int(not tests)}"
              for what in ("image", "label", "result") if carried.count(what) != int(not tests)]  # fmt: skip
    for device in wiring.device:
        ends = sorted(stream.carries for stream in wiring.streams_of(device.name, ("order", "report")))
        if ends != (["order", "report"] if device.values else []) or bool(device.values) != tests:
            found.append(f"device {device.name} that tells {len(device.values)} values: streams of its test are {ends}")
        streams = [stream.carries for stream in wiring.streams_of(device.name, ("load", "dump"))]
        if sorted(streams) != (["dump", "load"] if device.link else []):
            found.append(f"device {device.name} with {len(device.link)} links: streams of its state are {streams}")
    return found


def wiring_text(wiring: Wiring) -> str:
    """The file of a wiring."""
    values = wiring.model_dump(exclude_none=True, exclude_defaults=False)
    lines = _lines({key: value for key, value in values.items() if not isinstance(value, dict | tuple)})
    lines += ["", "[host]", *_lines(values["host"])]
    for device in values["device"]:
        lines += [
            "",
            "[[device]]",
            *_lines({key: value for key, value in device.items() if key != "link" and value != ()}),
        ]
        for link in device["link"]:
            lines += ["[[device.link]]", *_lines(link)]
    for stream in values["stream"]:
        lines += ["", "[[stream]]", *_lines(stream)]
    return "\n".join(lines) + "\n"


def _lines(values: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {json.dumps(value)}" for key, value in values.items()]


def neighbour_command(device: DeviceTable) -> str:
    """How a host is told the MAC address of a device, which answers no ARP."""
    address = ipaddress.IPv4Address(str(device.ip))
    return "" if address.is_loopback or device.mac is None else (
        f"ip neigh replace {device.ip} lladdr {device.mac} nud permanent dev INTERFACE"
    )  # fmt: skip
