"""How HTML pages are made of the Jinja templates of this folder."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def page_environment() -> Environment:
    """Values are escaped, and one that a page forgets is an error; each page adds its own filters."""
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
