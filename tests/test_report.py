"""The report: what it shows is what the steps left, in one page that needs nothing else."""

from __future__ import annotations

import json
import math
import re
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from html.parser import HTMLParser
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import pytest

from dagtrain.files import write_text
from dagtrain.flow.placed import load_plan
from dagtrain.flow.report_step import gather
from dagtrain.passes.fold import fold_graph
from dagtrain.rates import rate_text, training_text
from dagtrain.report.chart import COLOURS, axis, line_chart, logarithmic_axis
from dagtrain.report.contents import Bar, Engine, engines, layer_uses
from dagtrain.report.fifos import Kept, fifos
from dagtrain.report.gantt import MOST_BARS, MOST_FRAMES, Shown, device_rows, gantt, shown, simulated
from dagtrain.report.page import picture, render
from dagtrain.report.roofline import (
    EnginePoint,
    Roofline,
    Way,
    cluster_efficiency,
    roofline_chart,
    rooflines,
)
from hdl.costs.estimate import elaborated_contents
from hdl.costs.resources import fit
from hdl.parts.catalogue import part
from hdl.streams import queue
from placement.problem.plan import Binding, Crossing
from tests.flow_support import Case, new_case, quick_costs

SVG = "{http://www.w3.org/2000/svg}"
EPOCHS = [
    {"epoch": 1, "train_loss": 2.0, "train_accuracy": 0.5, "held_out_loss": 1.9, "held_out_accuracy": 0.55},
    {"epoch": 2, "train_loss": 1.0, "train_accuracy": 0.75, "held_out_loss": 0.9, "held_out_accuracy": 0.8125},
]
COSIM = {
    "batches": 2,
    "frames": 32,
    "devices": 2,
    "cycles": 12_345,
    "cycles_per_frame": 385.8,
    "batch_cycles": [6_100],
    "planned_batch_cycles": 6_000,
    "planned_cycles_per_frame": 36,
    "stall": 0.25,
    "compared_words": 4_321,
    "equal": True,
    "mismatches": [],
    "losses": [2.0, 1.5] * 8 + [1.0, 0.5] * 8,
    "saturations": {},
    "traffic": "",
    "mac_efficiency": "",
}

TIMING = {
    "net_ps": 350,
    "module_limit_ps": 4000,
    "top_limit_ps": 4500,
    "rules": [
        {"rule": "modules take at most 4.0 ns", "broken": 1, "of": 2},
        {"rule": "products stand between registers", "broken": 0, "of": 3},
    ],
    "devices": [
        {
            "device": "board0",
            "paths": [{"start": "a_valid of u", "end": "v.b_ready", "ps": 3669, "levels": 1, "steps": []}],
            "ready": [{"start": "p_ready", "instances": ["u", "v"]}],
        }
    ],
    "modules": [
        {
            "module": f"conv_{index}",
            "devices": ["board0"],
            "paths": [{"start": f"sum{index}", "end": "y", "ps": 4100 - index, "levels": 3, "steps": []}],
            "products": [{"signal": "p", "cell": "MISTRAL_MUL18X18", "touches": "", "registered": True}] * (1 + index),
        }
        for index in range(2)
    ],
}


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """A case that is placed and emitted."""
    with pytest.MonkeyPatch.context() as patch:
        quick_costs(patch)
        yield new_case(tmp_path_factory.mktemp("placed")).must("import", "place").pretend_emit()


@pytest.fixture
def case(placed: Case, tmp_path: Path) -> Case:
    """A copy of it that a test may change."""
    shutil.copytree(placed.root, tmp_path / "case")
    return Case(tmp_path / "case")


def page(case: Case) -> str:
    """The report's text, made by the command."""
    outcome = case.step("report")
    assert outcome.code == 0, outcome.error
    return (case.out / "report" / "report.html").read_text()


class Tags(HTMLParser):
    """Tags with their attributes, and open ones left at the end."""

    VOID = frozenset({"meta", "br", "link", "img", "hr", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()


def table(text: str, name: str) -> list[list[str]]:
    """Cells of the body rows of the table with that id."""
    body = text.split(f'<table id="{name}">')[1].split("</table>")[0]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.split("<tr[^>]*>", body)]
    return [row for row in rows if row]


def test_the_page_is_well_formed_and_asks_for_no_other_file(case: Case) -> None:
    case.pretend("cosim", ("emit",), COSIM)
    case.pretend("train", ("import",), {"train_frames": 32, "held_out_frames": 8, "epochs": EPOCHS})
    tags = Tags(page(case))
    assert tags.open == []
    assert {tag for tag, _ in tags.found} & {"link", "img", "iframe", "object"} == set()
    assert [attributes for tag, attributes in tags.found if tag == "script"] == [{}]
    references = [value for _, attributes in tags.found for key, value in attributes.items() if key in ("src", "href")]
    assert all(str(value).startswith("#") for value in references), references
    targets = {attributes.get("id") for _, attributes in tags.found}
    assert {str(value)[1:] for value in references} <= targets
    assert "url(" not in page(case)


def test_the_page_names_versions_and_the_commands_that_made_it(case: Case) -> None:
    text = page(case)
    made = text.split("<th>made by</th>")[1].split("</td>")[0]
    commands = [re.sub(r" \S*/", " ", command) for command in re.findall("<code>(dagtrain .*?)</code>", made)]
    assert commands == [
        f"dagtrain import {case.model.name} --norm as-is",
        f"dagtrain place --devices {case.cluster.name}",
    ]
    assert f"ortools {version('ortools')}" in text.split("<th>versions</th>")[1].split("</td>")[0]
    # what a program made is told too
    assert "<code>a program that uses dagtrain.api</code>" in made


def test_every_node_of_the_plan_has_its_row_with_its_costs(case: Case) -> None:
    rows = table(page(case), "node-table")
    plan = load_plan(case.workspace)
    assert [row[0] for row in rows] == [item.item for item in plan.items]
    for row, item in zip(rows, plan.items, strict=True):
        numbers = [int(cell.replace(",", "") or 0) for cell in row[4:]]
        assert row[1:3] == [item.device, item.configuration]
        assert numbers == [item.cycles_per_frame, item.dsp, item.m20k, item.alm, item.hops]


def test_resources_by_layer_sum_up_to_those_of_the_devices(case: Case) -> None:
    plan = load_plan(case.workspace)
    uses = layer_uses(plan)
    for resource in ("dsp", "m20k", "alm"):
        assert sum(getattr(use, resource) for use in uses) == sum(getattr(use, resource) for use in plan.devices)
    assert sum(use.nodes for use in uses) == len(plan.items)
    assert [row[0] for row in table(page(case), "layer-table")] == [use.layer for use in uses]


def test_throughput_bound_gap_and_what_binds_are_those_of_the_plan(case: Case) -> None:
    text, plan = page(case), load_plan(case.workspace)
    assert f"{training_text(plan.throughput_fps)} frames/s in training: {plan.batch_cycles:,} cycles a batch" in text
    assert f"{rate_text(plan.steady_fps)} frames/s: {plan.cycles_per_frame:,} cycles a frame" in text
    assert f"{rate_text(plan.bound_fps)} frames/s" in text
    assert f"{plan.gap:.2%}" in text
    for binding in plan.binding:
        assert f"<b>{binding.kind}</b>: {binding.reason}" in text
    for use in plan.devices:
        assert f"{use.device} ({use.part}): {use.items} nodes" in text


def test_all_fpgas_together_are_summed_up_and_what_binds_is_marked(case: Case) -> None:
    contents = gather(case.workspace)
    plan = contents.plan
    binding = (Binding(kind="m20k", reason="few"), Binding(kind="granularity", reason="coarse"))
    text = render(replace(contents, plan=replace(plan, binding=binding)))
    whole = text.split('<h3 id="whole">')[1].split("<h3>")[0]
    bars = re.findall(r'<div class="bar"><span>(.*?)</span>.*?<span>(.*?)</span></div>', whole)
    assert [label for label, told in bars if "binds" in told] == ["M20K"]
    for (_, told), name in zip(bars, ("dsp", "m20k", "alm"), strict=False):
        used, capacity = (sum(getattr(use, f"{name}{end}") for use in plan.devices) for end in ("", "_capacity"))
        assert told.startswith(f"{used:,} of {capacity:,} ({used / capacity:.1%})")
    assert len(bars) == 6
    assert text.count(">binds<") == 1


def test_efficiency_that_nobody_measured_is_said_to_be_declared_only(case: Case) -> None:
    text = page(case)
    assert 'id="not-measured"' in text
    rows = table(text, "engine-table")
    contents = gather(case.workspace)
    folded = fold_graph(contents.graph, contents.folds, contents.parts)
    for row in rows:
        layer = folded.by_name[row[0]].layer
        assert row[5] == f"{layer.macs / (layer.multipliers * layer.cycles_per_frame):.1%}"
        assert row[6:8] == ["not measured", "not measured"]
    assert {row[1] for row in rows} == {"Conv", "ConvError", "ConvGradient"}


def test_measured_efficiency_is_that_of_the_measurement(case: Case) -> None:
    engine = engines(gather(case.workspace))[0]
    record = {"node": engine.node, "cycles_per_frame": engine.declared_cycles * 2, "waits_for": "its weights"}
    measured = {"schema_version": 1, "engines": [record]}
    case.pretend("cosim", ("emit",), COSIM, {"efficiency.json": json.dumps(measured)})
    text = page(case)
    assert 'id="not-measured"' not in text
    row = table(text, "engine-table")[0]
    assert row[7] == f"{engine.declared / 2:.1%}"
    assert row[9] == "its weights"


def test_an_engine_with_idle_lanes_says_so_and_a_full_one_says_nothing() -> None:
    full = Engine(node="a", kind="Conv", macs=960, multipliers=10, declared_cycles=96)
    idle = Engine(node="b", kind="Conv", macs=480, multipliers=10, declared_cycles=96)
    assert full.declared == 1
    assert full.wasted == ""
    assert idle.declared == 0.5
    assert idle.at(960) == 0.05
    assert idle.wasted.startswith("48 of 96 cycles a frame")


def test_missing_cosimulation_and_training_are_named(case: Case) -> None:
    text = page(case)
    assert "`dagtrain cosim` has not been run" in text
    assert "`dagtrain train` has not been run" in text


def test_timing_is_shown_by_kind_of_circuit_and_by_device(case: Case) -> None:
    assert "`dagtrain timing` has not been run" in page(case)
    case.pretend("timing", ("emit",), TIMING)
    text = page(case)
    Tags(text)
    assert table(text, "timing-modules") == [["conv", "2", "4.10", "3", "sum0", "y", "3", ""]]
    assert table(text, "timing-devices") == [["board0", "3.67", "a_valid of u", "v.b_ready", "2"]]
    assert "broken in 1 of 2" in text


def test_a_result_of_an_earlier_model_is_not_shown(case: Case) -> None:
    case.pretend("train", ("import",), {"train_frames": 32, "held_out_frames": 8, "epochs": EPOCHS})
    assert "81.25%" in page(case)
    shown = (case.out / "train" / "train.json").read_text()
    case.workspace.leave("train", {"import": "another"}, lambda folder: write_text(folder / "train.json", shown))
    text = page(case)
    assert "81.25%" not in text
    assert "`dagtrain train` ran before an earlier step was run anew" in text


def test_training_curves_have_a_point_for_every_epoch(case: Case) -> None:
    case.pretend("train", ("import",), {"train_frames": 32, "held_out_frames": 8, "epochs": EPOCHS})
    text = page(case)
    assert text.count("<title>training: ") == 2 * len(EPOCHS)
    assert text.count("<title>held out: ") == 2 * len(EPOCHS)
    assert "held out: 0.8125 at 2" in text


def test_losses_of_cosimulation_are_shown_by_frame_and_as_means_of_batches(case: Case) -> None:
    case.pretend("cosim", ("emit",), COSIM)
    text = page(case)
    assert text.count("<title>each frame: ") == 32
    assert "mean of a batch: 1.75 at 16" in text
    assert "mean of a batch: 0.75 at 32" in text


def test_a_mismatch_in_cosimulation_is_shown_in_full(case: Case) -> None:
    case.pretend("cosim", ("emit",), {**COSIM, "equal": False, "mismatches": ["c_node: weight 3 is 7, not 8"]})
    text = page(case)
    assert "MISMATCH" in text
    assert "c_node: weight 3 is 7, not 8" in text
    assert "every bit equal" not in text


def test_an_unchanged_report_is_not_written_again_and_a_new_result_makes_it_anew(case: Case) -> None:
    page(case)
    assert "unchanged, nothing to do" in case.step("report").out
    case.pretend("train", ("import",), {"train_frames": 32, "held_out_frames": 8, "epochs": EPOCHS})
    assert "report: done" in case.step("report").out


def test_the_report_is_the_same_to_the_byte_every_time(case: Case) -> None:
    contents = gather(case.workspace)
    assert render(contents) == render(contents)
    page(case)
    assert (case.out / "report" / "report.html").read_text() == render(contents)
    assert (case.out / "report" / "graph.svg").read_text() == picture(contents)


def test_names_are_escaped(case: Case) -> None:
    contents = gather(case.workspace)
    text = render(replace(contents, imported={**contents.imported, "model": "<script>alert(1)</script>"}))
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


# ---- roofline


def test_rooflines_are_those_of_the_plan_file_cell_by_cell(case: Case) -> None:
    contents = gather(case.workspace)
    # traffic of all kinds, which the small network has not
    busy = [
        replace(use, dram_bytes_per_frame=900 + n, egress_bits_per_frame="5000/3", ingress_bits_per_frame=f"{4000 * n}")
        for n, use in enumerate(contents.plan.devices)
    ]
    contents = replace(contents, plan=replace(contents.plan, devices=tuple(busy)))
    plan, text = json.loads(contents.plan.to_json()), render(contents)
    homes = {item["item"]: item["device"] for item in plan["items"]}
    rows = {row[0]: row[1:] for row in table(text, "roofline-table")}
    assert list(rows) == [use["device"] for use in plan["devices"]]
    total = 0
    for use in plan["devices"]:
        # two products of 16 bits a DSP block of an Agilex
        peak = 2 * use["dsp_capacity"] * plan["clock_hz"]
        here = (node for node in contents.folded.nodes if homes[node.name] == use["device"])
        macs = sum(node.layer.macs for node in here)
        total += macs
        busier = max(Fraction(use["egress_bits_per_frame"]), Fraction(use["ingress_bits_per_frame"])) / 8
        ways = [
            (use["dram_bytes_per_frame"], use["dram_capacity_bytes_per_s"]),
            (busier, use["link_capacity_bits_per_s"] / 8),
        ]
        steady, training = macs * plan["steady_fps"], macs * plan["throughput_fps"]
        wanted = [f"{macs:,}" if macs else "", giga(peak)]
        for size, rate in ways:
            wanted += [giga(rate), f"{float(size):,.4g}", f"{float(macs / size):,.4g}" if size else "none"]
        roofs = {"DSP blocks": peak}
        roofs |= {
            name: macs / size * rate for name, (size, rate) in zip(("DRAM", "network"), ways, strict=True) if size
        }
        lowest = min(roofs, key=roofs.__getitem__)
        share = steady / roofs[lowest] if macs else 0
        assert share <= 1
        wanted += [giga(steady), giga(training), lowest, f"{share:.1%}"]
        assert rows[use["device"]] == wanted
        for name, (size, _) in zip(("DRAM", "network"), ways, strict=True):
            point = f"<title>{name}: {steady / 1e9:.4g} at {float(macs / size):.4g}</title>" if macs and size else ""
            assert point in chart_of(text, use["device"])
    layers = json.loads((case.out / "import" / "summary.json").read_text())["layers"]
    assert total == sum(layer[f"{way}_macs"] for layer in layers for way in ("forward", "error", "gradient"))


def test_every_engine_stands_on_the_roofline_with_the_bytes_of_its_streams(case: Case) -> None:
    case.pretend("cosim", ("emit",), COSIM)
    contents = gather(case.workspace)
    # bytes that the small network does not move: y_node reads over the network from two, and sends less to one
    items = [replace(item, dram_bytes_per_frame=700 * (item.item == "c_node")) for item in contents.plan.items]
    home = {item.item: item.device for item in items}
    (other,) = {use.device for use in contents.plan.devices} - {home["y_node"]}
    ends = [("c_node", "y_node", "4000"), ("r_node", "y_node", "2000/3"), ("y_node", "loss", "960")]
    crossings = tuple(
        Crossing(source=a, target=b, kind="stash", from_device=other, to_device=home["y_node"], bits_per_frame=bits)
        for a, b, bits in ends
    )
    contents = replace(contents, plan=replace(contents.plan, items=tuple(items), crossings=crossings))
    text, plan = render(contents), contents.plan
    Tags(text)
    rows = {row[0]: row[1:] for row in table(text, "roofline-engines")}
    layers = {node.name: node.layer for node in contents.folded.nodes}
    assert set(rows) == {engine.node for engine in engines(contents)}
    seconds = COSIM["batch_cycles"][-1] / plan.clock_hz
    for name, row in rows.items():
        macs = layers[name].macs
        dram = 700 if name == "c_node" else 0
        network = {"y_node": (4000 + Fraction(2000, 3)) / 8, "c_node": Fraction(500)}.get(name, 0)
        wanted = [home[name], f"{macs:,}"]
        for size in (dram, network):
            wanted += [f"{float(size):,.4g}", f"{float(macs / size):,.4g}" if size else "none"]
        peak, rate = layers[name].multipliers * plan.clock_hz, macs * plan.steady_fps
        wanted += [giga(peak), giga(rate), f"{rate / peak:.1%}", giga(macs * plan.batch_frames / seconds)]
        assert row == wanted


def test_engines_are_rings_with_names_below_the_roofs() -> None:
    ways = tuple(
        Way(name=name, bytes_per_frame=Fraction(size), bytes_per_s=Fraction(10**9))
        for name, size in (("DRAM", 100), ("network", 0))
    )
    device = Roofline(
        device="a", macs=400, peak=Fraction(10**10), ways=ways, steady_fps=Fraction(10**7), training_fps=Fraction(1)
    )
    shape = {"macs": 300, "roof": Fraction(4 * 10**9), "rate": Fraction(3 * 10**9), "simulated": None}
    points = [
        EnginePoint(node=node, device=where, bytes_per_frame={"DRAM": Fraction(size), "network": Fraction(0)}, **shape)
        for node, where, size in (("c<1>", "a", 20), ("still", "a", 0), ("far", "b", 20))
    ]
    root = ElementTree.fromstring(roofline_chart(device, points))
    told = [dot[0].text for dot in root.iter(f"{SVG}circle")]
    assert told == ["DRAM: 4 at 4", "c<1> (DRAM): 3 at 15"]
    ring, point = ([dot for dot in root.iter(f"{SVG}circle") if dot.get("fill") == fill] for fill in FILLS)
    assert ring[0].get("stroke") == point[0].get("fill")


FILLS = ("transparent", COLOURS[2])


def test_a_simulation_stands_where_its_frames_and_cables_say() -> None:
    way = Way(name="network", bytes_per_frame=Fraction(100), bytes_per_s=Fraction(10**9))
    roofs = [
        Roofline(
            device=name, macs=macs, peak=Fraction(10**10), ways=(way,), steady_fps=Fraction(10**7),
            training_fps=Fraction(10**7),
        )
        for name, macs in (("a", 400), ("b", 0))
    ]  # fmt: skip
    cables = [{"source": "a", "target": "b", "bits": 1600}, {"source": "b", "target": "a", "bits": 6400}]
    simulation = {
        "frames_per_second": 5e6, "frame_cycles": [10, 20, 30, 40], "cables": cables, "clock_mhz": 100.0,
        "worked_cycles": 50, "batch_interval": 20.0,
        "idle_by_device": [{"device": "a", "share": 0.5, "in_training": 0.25}],
    }  # fmt: skip
    told = simulated(simulation, roofs)
    # 6 400 bits come for four frames, of 400 multiplications each
    root = ElementTree.fromstring(roofline_chart(roofs[0], simulated=told["a"]))
    assert [dot[0].text for dot in root.iter(f"{SVG}circle")] == ["network: 4 at 4", "network, simulated: 2 at 2"]
    first, other = device_rows(simulation, roofs)
    assert (first.idle, first.rate, first.of_peak) == (0.25, 2 * 10**9, Fraction(1, 5))
    assert (other.idle, other.rate) == (None, 0)
    for row, sent, received in ((first, 1600, 6400), (other, 6400, 1600)):
        assert (row.sent, row.received) == (pytest.approx(sent / 500e-9), pytest.approx(received / 500e-9))
    # a single batch has no interval: frames of the whole run
    alone = {**simulation, "frames_per_second": None, "batch_interval": None}
    assert device_rows(alone, roofs)[0].idle == 0.5
    assert device_rows(alone, roofs)[0].rate == 400 * 4 * 100 * 10**6 // 50


def test_the_whole_cluster_s_efficiency_asks_the_part_what_a_dsp_block_multiplies(case: Case) -> None:
    contents = gather(case.workspace)
    plan = contents.plan
    macs = sum(node.layer.macs for node in contents.folded.nodes)
    # two products of 16 bits in a block of an Agilex, one in that of a Virtex-7
    for name, products in (("AGFB014", 2), ("XC7VX690T", 1)):
        uses = tuple(replace(use, part=name) for use in plan.devices)
        found = cluster_efficiency(rooflines(replace(contents, plan=replace(plan, devices=uses))))
        blocks = sum(use.dsp_capacity for use in uses)
        assert found == Fraction(macs, products * blocks * plan.cycles_per_frame)
    assert cluster_efficiency(()) == 0


def giga(value: float) -> str:
    """As the page writes 10⁹."""
    return f"{value / 1e9:,.4g}"


def chart_of(text: str, title: str) -> str:
    """The SVG of that title; "" if there is none."""
    return next((svg for svg in text.split('<svg class="chart"')[1:] if f"<title>{title}</title>" in svg), "")


def test_a_roof_bends_where_bytes_keep_up_with_the_dsp_blocks() -> None:
    ways = (Way(name="DRAM", bytes_per_frame=Fraction(100), bytes_per_s=Fraction(2 * 10**9)),)
    found = Roofline(
        device="a",
        macs=400,
        peak=Fraction(12 * 10**9),
        ways=ways,
        steady_fps=Fraction(10**7),
        training_fps=Fraction(10**6),
    )
    (way,) = ways
    assert found.intensity(way) == 4
    assert [found.roof(way, Fraction(at)) / 10**9 for at in (1, 4, 6, 12)] == [2, 8, 12, 12]
    # 4 multiplications a byte and 2 GB/s are good for 8 of the 12 that the DSP blocks do
    assert found.roofs == {"DSP blocks": 12 * 10**9, "DRAM": 8 * 10**9}
    assert (found.lowest, found.rate, found.share) == ("DRAM", 4 * 10**9, Fraction(1, 2))
    root = ElementTree.fromstring(roofline_chart(found))
    assert [dot[0].text for dot in root.iter(f"{SVG}circle")] == ["DRAM: 4 at 4"]
    (line,) = [path.get("d", "") for path in root.iter(f"{SVG}path") if path.get("stroke-width") == "1.8"][:1]
    places = [tuple(map(float, part[1:].split(","))) for part in line.split()]
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    # it rises to the ridge and is flat behind it
    assert places[0][1] > places[1][1] == places[2][1]


@pytest.mark.parametrize(
    ("channels", "size"), [((), 100), ((60, 40), 120)], ids=["one channel", "the fuller of two counts for both"]
)
def test_dram_counts_by_its_fullest_channel(case: Case, channels: tuple[int, ...], size: int) -> None:
    contents = gather(case.workspace)
    use = replace(contents.plan.devices[0], dram_bytes_per_frame=100, dram_channel_bytes_per_frame=channels)
    found = rooflines(replace(contents, plan=replace(contents.plan, devices=(use, *contents.plan.devices[1:]))))
    assert found[0].ways[0].bytes_per_frame == size


def test_an_fpga_without_engines_has_no_chart() -> None:
    idle = Roofline(device="a", macs=0, peak=Fraction(1), ways=(), steady_fps=Fraction(1), training_fps=Fraction(1))
    assert roofline_chart(idle) == ""
    assert idle.share == 0


# ---- FIFOs


def test_every_fifo_of_the_manifests_has_its_row(case: Case) -> None:
    rows = {(row[1], row[0]): row[2:] for row in table(page(case), "fifo-table")}
    wanted = {}
    for path in (case.out / "emit").glob("*/manifest.json"):
        manifest = json.loads(path.read_text())
        streams = manifest["streams"]
        for copy in manifest["copies"]:
            if copy["depth"]:
                (before,) = (stream for stream in streams if stream["reader"] == copy["part"])
                (behind,) = (stream for stream in streams if stream["writer"] == copy["part"])
                ends = before["writer"], behind["reader"]
                wanted[manifest["device"], copy["part"]] = (*ends, copy["depth"], before["payload_bits"])
        for crossing in manifest["ingress"]:
            name = f"receiver of {crossing['edge']}"
            (behind,) = (stream for stream in streams if stream["writer"] == name)
            # whole elements of a word
            bits = manifest["network"]["format"]["word_bits"] // crossing["element_bits"] * crossing["element_bits"]
            wanted[manifest["device"], name] = (crossing["source"], behind["reader"], crossing["words"], bits)
        for memory in manifest["memory"] or ():
            for region in memory["regions"]:
                ends = memory["port"], memory["port"]
                size = region["words"], memory["format"]["data_bits"]
                wanted[manifest["device"], f"DRAM of {region['name']}"] = (*ends, *size)
    assert len(wanted) > 6
    assert rows.keys() == wanted.keys()
    for key, (writer, reader, words, width) in wanted.items():
        assert rows[key][:5] == [writer, reader, f"{words:,}", f"{width:,}", f"{words * width:,}"]
    assert {row[5] for row in rows.values()} == {kept.value for kept in Kept}


def test_fifos_take_the_blocks_that_their_circuit_is_estimated_at(case: Case) -> None:
    target = part("AGFB014")
    looked_at = set()
    for use in fifos(gather(case.workspace).manifests):
        if use.kept is Kept.DRAM or (use.words, use.width) in looked_at:
            continue
        looked_at.add((use.words, use.width))
        widths = {"x": use.width, "y": use.width}
        depth = use.words
        contents = elaborated_contents(
            widths, lambda domain, s, depth=depth: queue(domain, s["x"], s["y"], depth=depth)
        )
        usage = fit(contents, target)
        assert math.ceil(use.blocks) == usage.m20k, use
        wanted = Kept.BLOCKS if usage.m20k else Kept.LOGIC if usage.mlab else Kept.REGISTERS
        assert use.kept is wanted, use
    assert len(looked_at) > 4


# ---- timeline

TIMELINE = {
    "schema_version": 1,
    "batch": 3,
    "first_cycle": 1_230,
    "stretch_cycles": 10,
    "engines": [
        {"node": "c_node", "device": "head", "busy": [9, 6, 0], "starved": [1, 0, 5], "blocked": [0, 4, 5]},
        {"node": "y_node", "device": "head", "busy": [10, 10, 10], "starved": [0, 0, 0], "blocked": [0, 0, 0]},
    ],
    "fifos": [{"name": "FIFO of r_node.x", "device": "head", "depth": 4, "highest": [0, 3, 1]}],
}


def test_the_timeline_shows_shares_and_levels_as_counted(case: Case) -> None:
    assert "`dagtrain cosim` has not been run" in page(case).split('<h2 id="timeline">')[1].split("<h2")[0]
    case.pretend("cosim", ("emit",), COSIM)
    assert "Not counted" in page(case)
    case.pretend("cosim", ("emit",), COSIM, {"timeline.json": json.dumps(TIMELINE)})
    text = page(case)
    Tags(text)
    rows = [row[:5] for row in table(text, "timeline-table")]
    assert rows == [["c_node", "head", "50.0%", "20.0%", "30.0%"], ["y_node", "head", "100.0%", "0.0%", "0.0%"]]
    assert "Batch 3 of 2 in co-simulation" in text
    levels = {row[0]: row[9] for row in table(text, "fifo-table")}
    assert levels.pop("FIFO of r_node.x") == "3"
    assert set(levels.values()) == {"not counted"}
    # heights of 10, of what is busy, of what is busy or starved, and of the FIFO
    strip = next(part for part in text.split('<svg class="strip"') if "c_node: busy" in part)
    assert '<path class="busy" d="M0 10V1H1V4H2V10H3V10z"/>' in strip
    assert '<path class="starved" d="M0 10V0H1V4H2V5H3V10z"/>' in strip
    assert 'd="M0 10V10H1V2.5H2V7.5H3V10z"' in text.split("FIFO of r_node.x: at most 3 of 4 words")[1]


@pytest.mark.slow
def test_a_simulation_of_the_plan_is_shown_and_one_of_another_plan_is_not(case: Case) -> None:
    before = page(case)
    assert 'id="simulation"' not in before
    outcome = case.step("simulate", "--level", "fast", "--batches", 3, "--json")
    assert outcome.code == 0, outcome.error
    simulation = json.loads(outcome.out)
    text = page(case)
    Tags(text)
    assert "dagtrain simulate --level fast --batches 3" in text
    # a bar for every frame of every node that multiplies, as long as its work
    engines = [node for node in simulation["nodes"] if node["multipliers"]]
    picture = text.split('<div class="scroll" id="gantt"')[1].split("</svg>")[0]
    frames = len(simulation["frame_cycles"])
    assert frames * len(engines) <= MOST_BARS
    assert picture.count("<rect x=") == sum(len(node["spans"]) for node in engines)
    wide = [float(width) for width in re.findall(r'<rect x="[^"]*" y="[^"]*" width="([^"]*)"', picture)]
    said = re.findall(r"cycles ([\d,]+) to ([\d,]+)</title></rect>", picture)
    spans = [int(last.replace(",", "")) - int(first.replace(",", "")) for first, last in said]
    assert sorted(spans) == sorted(last - first for node in engines for first, last in node["spans"])
    scale = max(wide) / max(spans)
    for width, span in zip(wide, spans, strict=True):
        assert width == pytest.approx(max(0.5, scale * span), abs=0.11)
    # multiplications of an FPGA at the pace that was simulated, and what its cables carried
    rows = {row[0]: row[1:] for row in table(text, "simulated-devices")}
    macs = {row[0]: float(row[1].replace(",", "") or 0) for row in table(text, "roofline-table")}
    idle = {one["device"]: one["in_training"] for one in simulation["idle_by_device"]}
    seconds = simulation["worked_cycles"] / (simulation["clock_mhz"] * 1e6)
    for device, (waits, rate, _, sent, received) in rows.items():
        assert waits == (f"{idle[device]:.1%}" if device in idle else "none there")
        assert float(rate.replace(",", "")) == pytest.approx(
            macs[device] * simulation["frames_per_second"] / 1e9, rel=1e-3
        )
        for told, end in ((sent, "source"), (received, "target")):
            bits = sum(cable["bits"] for cable in simulation["cables"] if cable[end] == device)
            assert float(told.replace(",", "")) == pytest.approx(bits / seconds / 1e9, rel=1e-3)
    # a plan that was made since
    kept = (case.out / "simulate" / "simulate.json").read_text()
    case.workspace.leave("simulate", {"place": "another"}, lambda folder: write_text(folder / "simulate.json", kept))
    assert 'id="simulation"' not in page(case)


def test_a_gantt_shows_the_last_frames_where_there_are_many() -> None:
    spans = [[100 * frame, 100 * frame + 250] for frame in range(1000)]
    node = {"node": "a<b", "device": "one", "per_batch": False, "multipliers": 3, "spans": spans}
    idle = {**node, "node": "fork", "multipliers": 0}
    simulation = {"batch": 10, "frame_cycles": list(range(1000)), "nodes": [node, idle]}
    text = gantt(simulation)
    assert shown(simulation) == Shown(1000 - MOST_FRAMES, 1000)
    assert text.count("<rect x=") == MOST_FRAMES
    assert "a&lt;b on one: frame 999, cycles 99,900 to 100,150" in text
    assert "frame 900," not in text
    assert "fork" not in text
    # frames whose work overlaps lie on lanes of their own, and a batch has a colour
    bars = re.findall(r'<rect x="([^"]*)" y="([^"]*)" width="([^"]*)" height="5" fill="([^"]*)"', text)
    for (x, y, width, _), (other, beside, *_) in pairwise(bars):
        assert float(other) < float(x) + float(width)
        assert y != beside
    assert len({colour for *_, colour in bars[-10:]}) == 1
    assert bars[-11][3] != bars[-10][3]
    assert gantt({**simulation, "nodes": [idle]}) == ""


# ---- picture


def test_the_picture_is_xml_with_every_node_and_every_edge_once(case: Case) -> None:
    contents = gather(case.workspace)
    root = ElementTree.fromstring(picture(contents))
    titles = [element.text or "" for element in root.iter(f"{SVG}title")]
    for node in contents.graph.nodes:
        assert sum(title.startswith(f"{node.name}: {type(node.layer).__name__} on ") for title in titles) == 1
    edges = list(root.iter(f"{SVG}path"))
    assert len(edges) == len(list(contents.graph.edges))


def test_edges_over_the_network_are_thick_and_no_others(case: Case) -> None:
    contents = gather(case.workspace)
    root = ElementTree.fromstring(picture(contents))
    thick = [path for path in root.iter(f"{SVG}path") if float(path.get("stroke-width", "0")) > 2]
    assert len(thick) == len(contents.plan.crossings)


def test_nothing_in_the_picture_lies_outside_it_or_on_another_node(case: Case) -> None:
    root = ElementTree.fromstring(picture(gather(case.workspace)))
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    boxes = []
    for group in root.iter(f"{SVG}g"):
        box = group.find(f"{SVG}rect")
        assert box is not None
        x, y, w, h = (float(box.get(key, "nan")) for key in ("x", "y", "width", "height"))
        assert x >= 0
        assert x + w <= width
        assert y + h <= height
        boxes.append((x, y, w, h))
    for index, (x, y, w, h) in enumerate(boxes):
        for x2, y2, w2, h2 in boxes[index + 1 :]:
            assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y


# ---- charts


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.13, 0.97), (-3, 1e6), (5, 5), (0, 0), (-1e-9, 1e-9), (99.2, 99.9)]
)
def test_axes_enclose_their_values_with_few_round_ticks(low: float, high: float) -> None:
    found = axis(low, high)
    assert found.low <= low
    assert found.high >= high
    assert 2 <= len(found.ticks) <= 9
    steps = {round((b - a) / (found.ticks[1] - found.ticks[0]), 6) for a, b in pairwise(found.ticks)}
    assert steps == {1.0}


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (36, 2400, (20, 50, 100, 200, 500, 1000, 2000, 5000)),
        (1, 1, (1, 2)),
        (0.01, 1e5, (0.01, 0.1, 1, 10, 100, 1e3, 1e4, 1e5)),
    ],
)
def test_logarithmic_axes_enclose_their_values(low: float, high: float, ticks: tuple[float, ...]) -> None:
    found = logarithmic_axis(low, high)
    assert found.ticks == pytest.approx(ticks)
    assert found.share(found.low) == 0
    assert found.share(found.high) == 1
    assert found.share(math.sqrt(found.low * found.high)) == pytest.approx(0.5)


def test_a_chart_leaves_out_what_is_not_finite_and_breaks_the_line_there() -> None:
    text = line_chart("loss", "epoch", "loss", {"a": [(1, 1.0), (2, float("nan")), (3, 2.0), (4, 3.0)]})
    root = ElementTree.fromstring(text)
    assert len(list(root.iter(f"{SVG}circle"))) == 3
    line = [path.get("d", "") for path in root.iter(f"{SVG}path") if path.get("stroke-width") == "1.8"]
    assert [part[0] for part in line[0].split()] == ["M", "M", "L"]
    assert "nan" not in text


def test_a_chart_without_values_says_so() -> None:
    assert "no finite values" in line_chart("loss", "epoch", "loss", {"a": []})


def test_greater_values_are_drawn_higher_and_later_ones_further_right() -> None:
    root = ElementTree.fromstring(line_chart("t", "x", "y", {"a": [(1, 1.0), (2, 5.0)]}))
    (x1, y1), (x2, y2) = (
        (float(dot.get("cx", "nan")), float(dot.get("cy", "nan"))) for dot in root.iter(f"{SVG}circle")
    )
    assert x2 > x1
    assert y2 < y1


def test_a_bar_of_nothing_is_empty() -> None:
    assert Bar("DRAM", 0, 0).share == 0
    assert Bar("DRAM", 0, 0).text == "none"
    assert Bar("DSP", 3, 4).text == "3 of 4 (75.0%)"
