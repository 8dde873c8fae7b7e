"""Cluster files: what is read, and every problem of a bad one in one message."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest

from hdl.errors import DagtrainError
from hdl.parts.catalogue import PARTS, part
from placement.problem.cluster import (
    BoardTable,
    ClusterTable,
    DeviceTable,
    UtilisationTable,
    parse_cluster,
    read_cluster,
)
from placement.problem.network import CableTable, NetworkTable

DOCUMENT = Path(__file__).parent.parent / "docs" / "cluster-file.md"

GOOD = """
[cluster]
name = "lab"
clock_mhz = 200

[[board]]
name = "agilex"
part = "AGFB014"
dram_gb_per_s = 76.8
dram_gbyte = 32
link_gbit_per_s = 100
utilisation = { dsp = 0.9 }

[[board]]
name = "arria"
part = "10AX115"
dram_gb_per_s = 0
dram_gbyte = 0
link_gbit_per_s = 40

[[device]]
name = "head"
board = "agilex"

[[device]]
name = "worker"
board = "arria"
count = 2
"""


def test_good_file_is_read_exactly() -> None:
    cluster = parse_cluster(GOOD)
    assert cluster.name == "lab"
    assert cluster.clock_hz == 200_000_000
    assert [device.name for device in cluster.devices] == ["head", "worker-0", "worker-1"]
    head, worker, _ = cluster.placement_devices()
    assert (head.part, head.dsp, head.m20k, head.alm) == ("AGFB014", 4059, 6043, 414_120)
    # the port of a memory channel carries 2 × 12.8 GB/s, less than 76.8 GB/s × 0.7
    assert cluster.dram_word_bits == 512
    assert head.dram_bytes_per_s == 25_600_000_000
    wide = parse_cluster(GOOD.replace("clock_mhz = 200", "clock_mhz = 200\ndram_word_bits = 1024", 1))
    assert wide.placement_devices()[0].dram_bytes_per_s == 51_200_000_000
    assert head.link_bits_per_s == 100_000_000_000
    assert (worker.part, worker.dsp, worker.dram_bytes_per_s) == ("10AX115", 1290, 0)
    # the narrowest power of two that carries 100 Gbit/s at 200 MHz
    assert cluster.link_word_bits == 512


def test_usable_bandwidth_is_an_exact_share_and_the_port_the_narrowest_that_carries_it() -> None:
    text = GOOD.replace("dram_gb_per_s = 76.8", "dram_gb_per_s = 38.4\ndram_efficiency = 0.6")
    cluster = parse_cluster(text)
    assert cluster.placement_devices()[0].dram_bytes_per_s == 23_040_000_000
    assert cluster.dram_word_bits == 512
    narrow = parse_cluster(text.replace("clock_mhz = 200", "clock_mhz = 200\ndram_word_bits = 64", 1))
    assert narrow.placement_devices()[0].dram_bytes_per_s == 2 * 64 * 200_000_000 // 8


def test_memory_channels_share_what_a_board_has_each_through_a_port() -> None:
    four = GOOD.replace("dram_gb_per_s = 76.8", "dram_gb_per_s = 76.8\ndram_channels = 4")
    cluster = parse_cluster(four)
    head, worker, _ = cluster.placement_devices()
    # a channel of 13.44 GB/s needs more than the 2 × 6.4 GB/s of 256 bits; all of 53.76 GB/s can be used
    assert cluster.dram_word_bits == 512
    assert (head.dram_channels, head.dram_bytes_per_s) == (4, 53_760_000_000)
    assert worker.dram_channels == 1
    narrow = parse_cluster(four.replace("clock_mhz = 200", "clock_mhz = 200\ndram_word_bits = 256", 1))
    assert narrow.placement_devices()[0].dram_bytes_per_s == 4 * 2 * 6_400_000_000
    apart = parse_cluster(four.replace("clock_mhz = 200", "clock_mhz = 200\ndram_apart = true", 1))
    # all of it may go one way
    assert apart.placement_devices()[0].dram_bytes_per_s == 4 * 12_800_000_000
    assert (apart.dram_apart, cluster.dram_apart) == (True, False)
    units = parse_cluster(four.replace("clock_mhz = 200", "clock_mhz = 200\ndram_unit_bits = 128", 1))
    assert (units.dram_unit_bits, cluster.dram_unit_bits) == (128, 0)


def test_what_is_wrong_with_memory_channels_comes_in_one_message() -> None:
    bad = GOOD.replace("clock_mhz = 200", "clock_mhz = 200\ndram_unit_bits = 100\ndram_apart = 1", 1)
    bad = bad.replace("dram_gb_per_s = 76.8", "dram_gb_per_s = 76.8\ndram_channels = 0")
    bad = bad.replace("dram_gb_per_s = 0", "dram_gb_per_s = 0\ndram_channels = 2")
    expected = [
        r"cluster\.dram_unit_bits = 100: input should be 64, 128, 256 or 512; write bits a word of the narrowest .*",
        r"cluster\.dram_apart = 1: input should be a valid boolean; write true where reads and writes share .*",
        r"board\[0\]\.dram_channels = 0: input should be greater .*; write a whole number of memory channels, 1 to 64",
        r"board\[1\]\.dram_channels = 2 with dram_gb_per_s = 0: channels without DRAM; leave it out, or say .*",
    ]
    with pytest.raises(DagtrainError) as caught:
        parse_cluster(bad, "lab.toml")
    lines = str(caught.value).split("\n")
    assert len(lines) == len(expected), lines
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(r"lab\.toml: " + pattern, line), line
    wide = GOOD.replace("clock_mhz = 200", "clock_mhz = 200\ndram_word_bits = 128\ndram_unit_bits = 256", 1)
    with pytest.raises(DagtrainError, match=r"dram_unit_bits = 256: streams wider than the memory port of 128 bits"):
        parse_cluster(wide)


def test_all_problems_of_a_file_come_in_one_message() -> None:
    bad = """
[cluster]
name = "lab"
clock_mhz = -3
speed = 4

[[board]]
name = "agilex"
part = "AGFB01"
dram_gb_per_s = -76.8
dram_gbyte = "x"
link_gbit_per_s = nan
utilisation = { dsp = 1.9, dps = 3 }

[[board]]
name = "agilex"
part = "10AX115"
dram_gb_per_s = 3
dram_gbyte = 0

[[device]]
name = "a 0"
board = "q"
count = 1.5

[[device]]
name = "a"
board = "agilex"
count = 2

[[device]]
name = "a-0"
board = "agilex"
"""
    expected = [
        r"cluster\.clock_mhz = -3: input should be greater .*; write the clock in MHz, 0.001 to 2000",
        r"cluster\.speed = 4: unknown key; remove it, or correct it to one of name, clock_mhz, link_word_bits, "
        r"dram_word_bits, dram_unit_bits, dram_apart",
        r"board\[0\]\.dram_gb_per_s = -76.8: input should be greater than or equal to 0; write peak DRAM bandwidth .*",
        r"board\[0\]\.dram_gbyte = 'x': is not a number; write DRAM size in .*",
        r"board\[0\]\.link_gbit_per_s = NaN: input should be a finite number; write network rate .*",
        r"board\[0\]\.utilisation\.dsp = 1.9: input should be less than or equal to 1; write a share .*",
        r"board\[0\]\.utilisation\.dps = 3: unknown key; remove it, or correct it to one of dsp, m20k, alm",
        r"board\[1\]\.link_gbit_per_s is missing; add network rate in .*",
        r"device\[0\]\.name = 'a 0': string should match pattern .*; write a name of letters, digits, _ and -",
        r"device\[0\]\.count = 1.5: input should be a valid integer; write a whole number of devices, at least 1",
        r"board\[0\]\.part = 'AGFB01': unknown part; known parts are 10AX115, AGFB014, AGFB027, XC7VX690T",
        r"board\[1\]\.dram_gbyte = 0 with dram_gb_per_s = 3: DRAM has both a size and a bandwidth; set both to 0 .*",
        r"board\[0\]\.name and board\[1\]\.name = 'agilex': 2 times the same board name; give each its own",
        r"device\[1\]\.name and device\[2\]\.name = 'a-0': 2 times the same device name; give each its own",
        r"device\[0\]\.board = 'q': no such board; boards of this file are agilex",
    ]
    with pytest.raises(DagtrainError) as caught:
        parse_cluster(bad, "lab.toml")
    lines = str(caught.value).split("\n")
    assert len(lines) == len(expected), lines
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(r"lab\.toml: " + pattern, line), line


ONE_EDIT = {
    "empty device list": (GOOD.split("[[device]]")[0], r"device is missing; add at least one \[\[device\]\]"),
    "device list of nothing": (
        "device = []\n" + GOOD.split("[[device]]")[0], r"device = \[\]: .*; write at least one \[\[device\]\]",
    ),
    "no cluster table": (GOOD.replace("[cluster]", "[klaster]"), r"cluster is missing; add a table with the keys name"),
    "cluster is a number": ("cluster = 3\n" + GOOD.split("mhz = 200")[1], r"cluster = 3: is not a table"),
    "board is a number": ("board = 3\n[cluster]\nname='x'\nclock_mhz=1", r"board = 3: is not an array of tables"),
    "clock missing": (GOOD.replace("clock_mhz = 200", ""), r"cluster\.clock_mhz is missing; add the clock in MHz"),
    "clock as text": (GOOD.replace("= 200", '= "200"'), r"cluster\.clock_mhz = '200': is not a number"),
    "clock true": (GOOD.replace("= 200", "= true"), r"cluster\.clock_mhz = True: is not a number"),
    "clock infinite": (GOOD.replace("= 200", "= inf"), r"cluster\.clock_mhz = Infinity: .*finite number"),
    "link as text": (GOOD.replace("= 40", '= "fast"'), r"board\[1\]\.link_gbit_per_s = 'fast': is not a number"),
    "negative link": (GOOD.replace("= 40", "= -40"), r"board\[1\]\.link_gbit_per_s = -40: .*or equal to 0"),
    "zero count": (GOOD.replace("count = 2", "count = 0"), r"device\[1\]\.count = 0: .*; write a whole number"),
    "negative count": (GOOD.replace("count = 2", "count = -2"), r"device\[1\]\.count = -2: .*; write a whole number"),
    "count true": (GOOD.replace("count = 2", "count = true"), r"device\[1\]\.count = True: .*valid integer"),
    "zero efficiency": (
        GOOD.replace("dram_gbyte = 32", "dram_gbyte = 32\ndram_efficiency = 0"),
        r"board\[0\]\.dram_efficiency = 0: .*greater than 0; write a share above 0",
    ),
    "utilisation in percent": (GOOD.replace("0.9", "90"), r"board\[0\]\.utilisation\.dsp = 90: .*; write a share"),
    "half a DRAM": (GOOD.replace("dram_gb_per_s = 0", "dram_gb_per_s = 9"), r"board\[1\]\.dram_gbyte = 0 with dram_gb"),
    "unknown part": (GOOD.replace("10AX115", "10AX116"), r"board\[1\]\.part = '10AX116': unknown part; known"),
    "unknown board": (GOOD.replace('board = "arria"', 'board = "aria"'), r"device\[1\]\.board = 'aria': no such board"),
    "two names": (GOOD.replace('"head"', '"worker-1"'), r"device\[0\]\.name and device\[1\]\.name = 'worker-1': 2"),
    "clocks far apart": (
        GOOD.replace("link_gbit_per_s = 40", "link_gbit_per_s = 40\nclock_mhz = 66"),
        r"board 'arria': clock_mhz = 66: the network's clock, cluster\.clock_mhz = 200, is more than 3 times as fast "
        r"or as slow; write at least 66\.6667 and at most 600",
    ),
    "a clock of 0": (
        GOOD.replace("link_gbit_per_s = 40", "link_gbit_per_s = 40\nclock_mhz = 0"),
        r"board\[1\]\.clock_mhz = 0: input should be greater .*; write the clock in MHz, 0\.001 to 2000",
    ),
    "word too narrow": (
        GOOD.replace("= 200", "= 200\nlink_word_bits = 256"),
        r"cluster\.link_word_bits = 256: at 200 MHz carries 51.2 Gbit/s, less than board 'agilex' .* at least 512",
    ),
    "word of odd width": (GOOD.replace("= 200", "= 200\nlink_word_bits = 513"), r"link_word_bits = 513: .*multiple"),
    "not TOML": (GOOD.replace('name = "lab"', "name = "), r"not TOML: .*line 3.*; correct that line"),
    "cut off": ("[cluster]\nname=", r"not TOML: .*line 2; correct that line"),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_EDIT)
def test_bad_file_is_refused_with_place_value_and_cure(name: str) -> None:
    text, pattern = ONE_EDIT[name]
    with pytest.raises(DagtrainError, match=pattern) as caught:
        parse_cluster(text, "lab.toml")
    assert all(line.startswith("lab.toml: ") for line in str(caught.value).split("\n"))


def test_clock_of_an_unused_board_does_not_matter() -> None:
    spare = GOOD.replace("link_gbit_per_s = 40", "link_gbit_per_s = 40\nclock_mhz = 150").split("[[device]]")
    assert parse_cluster("[[device]]".join(spare[:2])).clock_hz == 200_000_000


def test_clock_of_a_board_overrides_the_clusters() -> None:
    boards = GOOD.replace("dram_gbyte", "clock_mhz = 156.25\ndram_gbyte")
    assert parse_cluster(boards).clock_hz == 156_250_000


def test_boards_may_have_clocks_of_their_own() -> None:
    cluster = parse_cluster(GOOD.replace("link_gbit_per_s = 40", "link_gbit_per_s = 40\nclock_mhz = 150"))
    assert cluster.clock_hz == 200_000_000
    assert [device.clock_hz for device in cluster.placement_devices()] == [0, 150_000_000, 150_000_000]
    assert cluster.periods == {"worker-0": Fraction(4, 3), "worker-1": Fraction(4, 3)}
    # the port of a faster board passes a word a cycle of the network, that of a slower one a word a cycle of its own
    assert cluster.link_word_bits == 512
    fast = parse_cluster(GOOD.replace("link_gbit_per_s = 100", "link_gbit_per_s = 100\nclock_mhz = 400"))
    assert fast.link_word_bits == 512
    # and its memory port reads and writes twice as much
    assert fast.placement_devices()[0].dram_bytes_per_s == 51_200_000_000
    slow = parse_cluster(GOOD.replace("link_gbit_per_s = 100", "link_gbit_per_s = 100\nclock_mhz = 150"))
    assert slow.link_word_bits == 1024


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(DagtrainError, match=r"nowhere\.toml: cannot read the cluster file: .*give the path"):
        read_cluster(tmp_path / "nowhere.toml")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DagtrainError, match="cannot read the cluster file"):
        read_cluster(binary)
    file = tmp_path / "lab.toml"
    file.write_text(GOOD, encoding="utf-8")
    assert read_cluster(file) == parse_cluster(GOOD)


def test_example_of_the_documentation_is_a_cluster_file_and_every_key_is_explained() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    examples = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    assert examples
    for example in examples:
        parse_cluster(example)
    for table in (ClusterTable, BoardTable, DeviceTable, UtilisationTable, NetworkTable, CableTable):
        for key in table.model_fields:
            assert f"`{key}`" in text, key
    for name in PARTS:
        assert f"`{name}`" in text


# --- parts -------------------------------------------------------------------------------------------------------


def test_parts_have_the_totals_of_their_data_sheets() -> None:
    totals = {name: (p.alm, p.registers, p.m20k, p.dsp) for name, p in PARTS.items()}
    assert totals == {
        "10AX115": (427_200, 1_708_800, 2_713, 1_518),
        "AGFB014": (487_200, 1_948_800, 7_110, 4_510),
        "AGFB027": (912_800, 3_651_200, 13_272, 8_528),
        "XC7VX690T": (433_200, 866_400, 1_470, 3_600),
    }


@pytest.mark.parametrize(
    ("name", "multipliers", "blocks"),
    [
        ("10AX115", {(16, 16): 7}, 4),
        ("10AX115", {(18, 19): 2, (19, 18): 1}, 2),
        ("10AX115", {(19, 19): 2}, 2),
        ("10AX115", {(16, 16): 1, (27, 27): 1}, 2),
        ("10AX115", {(9, 9): 4}, 2),
        ("AGFB014", {(9, 9): 5}, 2),
        ("AGFB014", {(9, 10): 5}, 3),
        ("AGFB014", {(32, 16): 1}, 2),
        ("AGFB027", {(40, 28): 3}, 12),
        ("XC7VX690T", {(16, 16): 7}, 7),
        ("XC7VX690T", {(18, 25): 1, (26, 18): 1}, 3),
        ("10AX115", {}, 0),
    ],
)
def test_multipliers_pack_into_dsp_blocks(name: str, multipliers: dict[tuple[int, int], int], blocks: int) -> None:
    assert part(name).dsp_blocks(multipliers) == blocks


@pytest.mark.parametrize(
    ("name", "depth", "width", "blocks"),
    [
        ("10AX115", 512, 40, 1),
        ("10AX115", 513, 20, 1),
        ("10AX115", 513, 40, 2),
        ("10AX115", 2048, 10, 1),
        ("10AX115", 2049, 16, 3),
        ("10AX115", 1, 400, 10),
        ("10AX115", 0, 16, 0),
        ("XC7VX690T", 512, 72, 1),
        ("XC7VX690T", 4096, 9, 1),
    ],
)
def test_memories_take_the_best_shape_of_block(name: str, depth: int, width: int, blocks: int) -> None:
    assert part(name).m20k_blocks(depth, width) == blocks


def test_small_memories_in_logic() -> None:
    assert part("10AX115").mlab_blocks(32, 20) == 1
    assert part("10AX115").mlab_blocks(64, 16) == 2
    assert part("XC7VX690T").mlab_blocks(64, 8) == 8
    for p in PARTS.values():
        assert p.lut_memory.blocks * p.lut_memory.logic_cells <= p.alm


def test_unknown_parts_and_senseless_multipliers_are_refused() -> None:
    with pytest.raises(DagtrainError, match=r"^unknown part '10AX'; known parts: 10AX115, AGFB014, .*690T$"):
        part("10AX")
    with pytest.raises(DagtrainError, match="0×16 bits make no sense"):
        part("10AX115").dsp_blocks({(0, 16): 1})
    with pytest.raises(DagtrainError, match="-1 multipliers"):
        part("10AX115").dsp_blocks({(16, 16): -1})
