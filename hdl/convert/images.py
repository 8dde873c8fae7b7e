"""Initial contents of memories as files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Image:
    """A memory whose contents are loaded from a file: parameter `parameter` names a ``$readmemh`` file."""

    # public name, given as ``image=`` to the memory
    name: str
    # the Verilog array
    memory: str
    # words
    depth: int
    # bits of a word
    width: int

    @property
    def parameter(self) -> str:
        """The Verilog parameter that names the file."""
        return f"INIT_{self.name}"


def write_image(path: Path, words: Sequence[int], width: int) -> None:
    """A ``$readmemh`` file: one word of ``width`` bits a line, address 0 first."""
    digits = (width + 3) // 4
    path.write_text("".join(f"{word:0{digits}x}\n" for word in words))


def write_sparse_image(path: Path, parts: Sequence[tuple[int, Sequence[int]]], width: int) -> None:
    """A ``$readmemh`` file of parts (first address, words); what lies between them is left as it is."""
    digits = (width + 3) // 4
    lines = (f"@{at:x}\n" + "".join(f"{word:0{digits}x}\n" for word in words) for at, words in parts)
    path.write_text("".join(lines))
