"""Blocks are called what the part's family calls them: by estimate, by place, in the report; keys of files stay."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from hdl.parts.catalogue import PARTS
from hdl.parts.part import common_name
from tests.flow_support import CLUSTER, Case, new_case, quick_costs

VIRTEX = "XC7VX690T"
# made of names: cluster file, block memory, logic cell
CLUSTERS = {
    "one family": (CLUSTER.replace("AGFB014", VIRTEX), "RAMB36", "LUT"),
    "two families": (
        CLUSTER.replace('[[device]]\nname = "head"', f'[[board]]\nname = "old"\npart = "{VIRTEX}"\n'
        'dram_gb_per_s = 12.8\ndram_gbyte = 8\nlink_gbit_per_s = 100\n\n[[device]]\nname = "head"')
        .replace('name = "worker"\nboard = "agilex"', 'name = "worker"\nboard = "old"'),
        "block memory", "logic cell",
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=CLUSTERS)
def placed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Case, str, str]]:
    """A plan on a cluster, and what its parts call a block memory and a logic cell."""
    text, memory, cell = CLUSTERS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        quick_costs(patch)
        case = new_case(tmp_path_factory.mktemp("names"))
        case.write("cluster.toml", text)
        yield case.must("import", "place").pretend_emit(), memory, cell


def test_every_part_has_names_of_its_family() -> None:
    found = {
        (one.family.split()[0], one.block_memory, one.lut_memory.name, one.logic_cell.name) for one in PARTS.values()
    }
    assert found == {
        ("Arria", "M20K", "MLAB", "ALM"), ("Agilex", "M20K", "MLAB", "ALM"), ("Virtex-7", "RAMB36", "LUTRAM", "LUT"),
    }  # fmt: skip


def test_a_word_for_all_stands_where_families_differ() -> None:
    assert common_name(["M20K", "M20K"], "block memory") == "M20K"
    assert common_name(["M20K", "RAMB36"], "block memory") == "block memory"


def test_place_and_report_name_the_blocks_of_every_fpga(placed: tuple[Case, str, str]) -> None:
    case, memory, cell = placed
    devices = [line for line in case.step("place").out.splitlines() if " nodes, " in line]
    assert len(devices) == 2
    for line in devices:
        names = ("RAMB36", "LUT") if VIRTEX in line else ("M20K", "ALM")
        assert f" {names[0]}, " in line
        assert line.endswith(f" {names[1]}")
    use = json.loads((case.out / "place" / "plan.json").read_text())["devices"][0]
    assert {"m20k", "m20k_capacity", "alm", "alm_capacity"} <= set(use)
    case.must("report")
    page = (case.out / "report" / "report.html").read_text()
    assert page.count(f'<th class="n">{memory}</th><th class="n">{cell}</th>') == 2
    assert "RAMB36" in page


def test_estimate_counts_and_names_the_blocks_of_a_part(placed: tuple[Case, str, str]) -> None:
    case, *_ = placed
    head, unlike = (case.step("estimate", "--cycles", 400, *words).out for words in (("--part", VIRTEX), ()))
    assert f"on {VIRTEX}" in head
    assert head.splitlines()[2].split()[3:] == ["DSP", "RAMB36", "LUTRAM", "regs", "LUT"]
    assert unlike.splitlines()[2].split()[3:] == ["DSP", "M20K", "MLAB", "regs", "ALM"]
    record = json.loads((case.out / "estimate" / "estimate.json").read_text())
    assert {"m20k", "mlab", "alm"} <= set(record["layers"][0])


def test_estimate_refuses_unknown_parts_and_synthesis_of_others(placed: tuple[Case, str, str]) -> None:
    case, *_ = placed
    assert "known parts: 10AX115" in case.step("estimate", "--part", "5CGXFC").error
    assert f"--check with --part {VIRTEX}" in case.step("estimate", "--check", "--part", VIRTEX).error
