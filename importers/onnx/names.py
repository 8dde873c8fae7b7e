"""Names for nodes: safe in Verilog, unique, deterministic, and as close to the file's own as that allows."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# words that an ONNX file may well use and Verilog does not allow
RESERVED = {
    "and", "assign", "begin", "buf", "case", "default", "else", "end", "for", "function", "if", "initial", "inout",
    "input", "integer", "module", "nand", "nor", "not", "or", "output", "parameter", "real", "reg", "repeat", "signed",
    "table", "task", "time", "wait", "while", "wire", "xnor", "xor",
    "clk", "rst",
}  # fmt: skip
WEIGHT_SUFFIXES = (".weight", ".kernel", ".gamma")


def module_of(weight: str) -> str:
    """The module that a weight belongs to by its name (``layer1.0.conv1.weight``); empty if the name does not say."""
    return next((weight.removesuffix(suffix) for suffix in WEIGHT_SUFFIXES if weight.endswith(suffix)), "")


def safe(name: str) -> str:
    """Letters, digits and single underscores; starts with a letter; no reserved word.

    Scopes that exporters repeat inside the next one's name vanish: ``/layer1/layer1.0/conv1/Conv`` becomes
    ``layer1_0_conv1_Conv``."""
    scopes = [scope for scope in name.split("/") if scope]
    kept = [
        scope for scope, inner in zip(scopes, [*scopes[1:], ""], strict=True) if not f"{inner}.".startswith(f"{scope}.")
    ]
    text = re.sub(r"[^A-Za-z0-9]+", "_", "_".join(kept)).strip("_")
    if not text or not text[0].isalpha():
        text = f"n_{text}".rstrip("_")
    return f"{text}_" if text.lower() in RESERVED else text


@dataclass
class Names:
    """Hands out every name once."""

    taken: set[str] = field(default_factory=set)

    def take(self, *wishes: str) -> str:
        """The first wish that is not empty, made safe; with a number if it is taken."""
        name = safe(next((wish for wish in wishes if wish), "node"))
        number = 1
        unique = name
        while unique.lower() in self.taken:
            number += 1
            unique = f"{name.rstrip('_')}_{number}"
        self.taken.add(unique.lower())
        return unique
