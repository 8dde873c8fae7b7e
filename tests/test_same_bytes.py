"""Whoever moves or merges code finds the same Verilog, states, plans and estimates afterwards."""

from __future__ import annotations

import pytest

from tests.same_bytes import GROUPS, stored


@pytest.mark.parametrize("group", GROUPS)
def test_bytes_are_those_that_were_stored(group: str) -> None:
    found, before = dict(GROUPS[group]()), stored()[group]
    changed = [name for name in {**before, **found} if found.get(name) != before.get(name)]
    assert changed == [], f"{group}: {len(changed)} of {len(before)} are not what they were; tests/same_bytes.py"
