"""Circuits with a fault seeded into their text."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest


class Mutator:
    """Puts a block with another text in the place of one, until the test ends."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.patch, self.folder, self.made = patch, folder, 0

    def __call__(self, user: ModuleType, home: ModuleType, name: str, changes: Mapping[str, str]) -> None:
        """``user`` finds ``name`` of ``home`` with each text, which must be there once, replaced by another."""
        assert home.__file__ is not None
        text = Path(home.__file__).read_text()
        for old, new in changes.items():
            assert text.count(old) == 1, f"{text.count(old)} of {old!r} in {home.__name__}"
            text = text.replace(old, new)
        self.made += 1
        label = f"mutated_{name}_{self.made}"
        path = self.folder / f"{label}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(label, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        self.patch.setitem(sys.modules, label, module)
        spec.loader.exec_module(module)
        self.patch.setattr(user, name, getattr(module, name))
