"""The tables of docs/network.md are those that the command prints."""

from __future__ import annotations

import re

import pytest

from benchmarks.network import TABLES
from tests.import_support import ROOT

# of the keyed checks Yosys maps every candidate; the one that is built is held by tests/test_ethernet_tag.py. A plan is
# a minute's work; what it charges for ports is held by tests/test_frame_ports.py
SLOW = {"keyed", "plans"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in TABLES])
def test_a_table_of_the_page_is_what_the_command_prints(name: str) -> None:
    page = (ROOT / "docs" / "network.md").read_text()
    (found,) = re.findall(rf"<!-- begin: benchmarks/network.py --{name} -->\n(.*?)\n<!-- end -->", page, re.DOTALL)
    assert found == TABLES[name]()
