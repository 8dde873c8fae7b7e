"""Where a host finds a cluster, as options of commands say it."""

from __future__ import annotations

import socket

from dagtrain.host.connection import Settings
from dagtrain.host.endpoint import Place
from dagtrain.host.wiring import Wiring
from hdl.errors import DagtrainError
from hdl.link.ethernet.frame import UDP_PORT


def host_settings(host: str | None, bind: str | None, wiring: Wiring, answer_seconds: float) -> Settings:
    """Of --host and --bind.  Raises `DagtrainError` for what is no address."""
    gateway = None if host is None else _place("--host", host, UDP_PORT)
    own = None if bind is None else _place("--bind", bind, 0 if gateway else wiring.host.port)
    return Settings(gateway=gateway, bind=own, answer_seconds=answer_seconds)


def _place(option: str, text: str, port: int) -> Place:
    """An address as a socket takes it.  Raises `DagtrainError` for what is none."""
    name, colon, number = text.partition(":")
    cure = "write ADDRESS or ADDRESS:PORT"
    if colon and not (number.isdecimal() and int(number) < 1 << 16):
        raise DagtrainError(f"{option} {text}: {number!r} is no port", cure)
    try:
        return socket.gethostbyname(name), int(number) if colon else port
    except OSError:
        raise DagtrainError(f"{option} {text}: {name!r} is no address", cure) from None
