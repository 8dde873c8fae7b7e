"""What `dagtrain cosim` is told of an Ethernet between FPGAs, and what it tells of it: faults, counters, captures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagtrain.cosim.cluster import framed_devices, port_names
from dagtrain.cosim.compare import ClusterRun
from dagtrain.cosim.network import PairCounts, write_capture
from dagtrain.cosim.resets import RESET_CYCLES
from dagtrain.emission.delivered import Delivered
from hdl.errors import DagtrainError
from hdl.simulate.models.ethernet import RATES, Faults

# in the step's folder
CAPTURE = "capture.pcapng"


@dataclass(frozen=True, kw_only=True)
class FaultOptions:
    """What the user said of what happens to frames on their way."""

    # of a frame
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    # as "fpga1:2000:12000": port of a device, or of the host; first cycle, and the one behind the last
    link_down: tuple[str, ...] = ()

    def network_problems(self) -> list[str]:
        """What is wrong without a look at the cluster."""
        found = [
            f"--{name} must lie in [0, 1], not {getattr(self, name)}"
            for name in RATES
            if not 0 <= getattr(self, name) <= 1
        ]
        for text in self.link_down:
            try:
                _cut(text)
            except ValueError:
                found.append(f"--link-down {text} is not PORT:FIRST:END, as fpga1:2000:12000")
        return found

    @property
    def said(self) -> list[str]:
        """Options that only frames have a use for."""
        rates = [f"--{name}" for name in RATES if getattr(self, name)]
        return [*rates, *(["--link-down"] if self.link_down else [])]

    def faults(self, delivered: Delivered) -> Faults:
        """What the switch does.  Raises `DagtrainError` where there is none, or it has no such port."""
        names = port_names(delivered)
        if self.said and not names:
            raise DagtrainError(
                f"{', '.join(self.said)}: words go over this network as they are, there are no frames",
                "write network.kind = 'ethernet' in the cluster file, place and emit again",
            )
        down = [_cut(text) for text in self.link_down]
        unknown = sorted({name for name, _, _ in down} - set(names))
        if unknown:
            raise DagtrainError(f"--link-down: the switch has no port {', '.join(unknown)}", f"of {', '.join(names)}")
        return Faults(
            **{name: getattr(self, name) for name in RATES},
            down=tuple((names.index(name), first, end) for name, first, end in down),
        )


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(FaultOptions):
    """What the user said of the network between Ethernet ports, and wants to see of it."""

    # as "fpga1@50000": a device, and the cycle in which it is reset by nobody's word but its own
    reset: tuple[str, ...] = ()
    # write every frame to a file
    pcap: bool = False

    def network_problems(self) -> list[str]:
        """See the base class."""
        found = super().network_problems()
        for text in self.reset:
            name, _, cycle = text.rpartition("@")
            if not (name and cycle.isdecimal()):
                found.append(f"--reset {text} is not DEVICE@CYCLE, as fpga1@50000")
        return found

    @property
    def said(self) -> list[str]:
        """See the base class."""
        others = {"--reset": self.reset, "--pcap": self.pcap}
        return [*super().said, *(name for name, said in others.items() if said)]

    def resets(self, delivered: Delivered) -> tuple[tuple[int, int, int], ...]:
        """Port of a device, first cycle and the one behind the last.  Raises `DagtrainError` for what is no device."""
        names = framed_devices(delivered)
        told = [(name, int(cycle)) for name, _, cycle in (text.rpartition("@") for text in self.reset)]
        unknown = sorted({name for name, _ in told} - set(names))
        if unknown:
            raise DagtrainError(f"--reset: there is no device {', '.join(unknown)}", f"of {', '.join(names)}")
        return tuple((names.index(name), cycle, cycle + RESET_CYCLES) for name, cycle in told)


def _cut(text: str) -> tuple[str, int, int]:
    """Port, first cycle, end.  Raises `ValueError`."""
    name, first, end = text.rsplit(":", 2)
    if not name or not 0 <= int(first) < int(end):
        raise ValueError(text)
    return name, int(first), int(end)


def network_meta(run: ClusterRun, delivered: Delivered) -> dict[str, Any]:
    """`NetworkRecord` of a run."""
    names = port_names(delivered)
    return {
        "pairs": [pair_meta(one, names) for one in run.pairs],
        "ports": [
            {
                "device": name,
                "dropped": {cause.name.lower(): count for cause, count in port.dropped.items()}
                | {"overflow": port.overflow},
            }
            for name, port in zip(names, run.ports, strict=False)
        ],
        "host_dropped": dict(run.host_dropped),
        "resets": run.resets,
    }


def pair_meta(one: PairCounts, names: Sequence[str]) -> dict[str, Any]:
    """`PairRecord` of two ports."""
    return {
        "source": names[one.source],
        "target": names[one.target],
        "frames": one.frames,
        "data": one.data,
        "retransmitted": one.again,
        "lost": one.lost,
        "duplicated": one.doubled,
        "reordered": one.reordered,
        "corrupted": one.corrupted,
        "link_down": one.down,
        "delivered": one.left,
        "share_lost": one.share_lost,
    }


def network_lines(meta: Mapping[str, Any]) -> list[str]:
    """What the summary says of it."""
    pairs = meta["pairs"]

    def total(name: str) -> int:
        return sum(pair[name] for pair in pairs)

    drops: Counter[str] = Counter()
    for dropped in (*(port["dropped"] for port in meta["ports"]), meta["host_dropped"]):
        drops.update(dropped)
    told = ", ".join(f"{count:,} as {cause}" for cause, count in sorted(drops.items()) if count)
    worst = max(pairs, key=lambda pair: pair["share_lost"], default=None)
    lost = "" if worst is None else f", at most {worst['share_lost']:.1%} of what a pair sent"
    resets = meta["resets"]
    brought = [f"the host brought the cluster back {resets} {'time' if resets == 1 else 'times'}"] if resets else []
    return [
        *brought,
        f"Ethernet: {total('frames'):,} frames, {total('retransmitted'):,} of them again{lost}; the network lost "
        f"{total('lost') + total('link_down'):,}, doubled {total('duplicated'):,}, reordered {total('reordered'):,}, "
        f"corrupted {total('corrupted'):,}; dropped {told or 'none'}",
    ]


def capture_frames(folder: Path, bench: Path, delivered: Delivered, clock_hz: int) -> int:
    """All frames of a run in ``bench`` as a capture in ``folder``; how many there are."""
    return write_capture(folder / CAPTURE, bench, port_names(delivered), clock_hz)
