"""Texts of dataclasses, from which modules have their names: fields that came later stand in them only where said."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import pytest

from hdl.layers.base import Layer
from hdl.layers.registry import load_layers
from hdl.spelling import QUIET, spelt

EXAMPLES = [layer for kind in load_layers().values() for layer in kind.examples()]


@dataclass(frozen=True)
class _Thing:
    first: int
    second: str = field(default="a", metadata=QUIET)
    __repr__ = spelt


def test_a_quiet_field_is_named_only_where_it_has_not_its_default() -> None:
    assert repr(_Thing(3)) == repr(_Thing(3, "a")) == "_Thing(first=3)"
    assert repr(_Thing(3, "b")) == "_Thing(first=3, second='b')"


def test_layers_that_differ_are_spelt_differently() -> None:
    distinct = list(dict.fromkeys(EXAMPLES))
    assert len({repr(layer) for layer in distinct}) == len(distinct)


@pytest.mark.parametrize("layer", EXAMPLES, ids=lambda layer: type(layer).__name__)
def test_a_layer_names_all_its_fields_but_quiet_ones(layer: Layer) -> None:
    for item in fields(layer):  # type: ignore[arg-type]
        loud = f"{item.name}={getattr(layer, item.name)!r}" in repr(layer)
        assert loud or (item.metadata == QUIET and getattr(layer, item.name) == item.default)
