"""Curves of a training under way: a line of JSON a batch and an epoch, and TensorBoard's event files if wanted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hdl.errors import DagtrainError

LINES, EVENTS = "metrics.jsonl", "tensorboard"


class Curves:
    """Figures by batch, counted from 1 over all epochs, in ``folder``; whole lines at any moment."""

    def __init__(self, folder: Path, earlier: Path, batches: int, tensorboard: bool) -> None:
        """Goes on from the first ``batches`` batches of the lines in ``earlier``, which may be the same folder."""
        lines = [line for line in _lines(earlier / LINES) if json.loads(line)["batch"] <= batches]
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / LINES).open("w")
        self._file.writelines(lines)
        self._events = _event_writer(folder / EVENTS, batches) if tensorboard else None

    def add(self, batch: int, figures: Mapping[str, float]) -> None:
        """One line."""
        self._file.write(json.dumps({"batch": batch, **figures}) + "\n")
        self._file.flush()
        for name, value in figures.items():
            if self._events is not None and name != "epoch":
                self._events.add_scalar("/".join(name.rsplit("_", 1)), value, batch)

    def close(self) -> None:
        """Nothing more will come."""
        self._file.close()
        if self._events is not None:
            self._events.close()


def _lines(path: Path) -> list[str]:
    """Whole lines of a file; none where there is none."""
    if not path.is_file():
        return []
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def _event_writer(folder: Path, batches: int) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        what = "--tensorboard needs the optional package tensorboardX"
        raise DagtrainError(
            what, "install it with `pip install dagtrain[tensorboard]`, or leave the option out"
        ) from None
    return SummaryWriter(str(folder), purge_step=batches + 1)
