"""How parameters are spelt: names of modules, and keys under which results are kept, come of the text of a dataclass.

So a field that comes later must leave the text of all that have its default as it was:

    groups: int = field(default=1, metadata=QUIET)
"""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import Any

# metadata of fields that the text names only where they have not their default
QUIET = MappingProxyType({"quiet": True})


def spelt(value: Any) -> str:
    """What `repr` says of a dataclass, less the `QUIET` fields with their default."""
    fields = (field for field in dataclasses.fields(value) if field.repr and not _is_quiet(field, value))
    return (
        f"{type(value).__qualname__}({', '.join(f'{field.name}={getattr(value, field.name)!r}' for field in fields)})"
    )


def _is_quiet(field: dataclasses.Field[Any], value: Any) -> bool:
    made = field.default_factory
    default = field.default if made is dataclasses.MISSING else made()
    return "quiet" in field.metadata and getattr(value, field.name) == default
