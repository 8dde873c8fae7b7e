"""The report as one HTML page that needs no other file: text by a Jinja template, pictures as inline SVG."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

from markupsafe import Markup

from dagtrain.rates import rate_text, training_text
from dagtrain.report.chart import line_chart
from dagtrain.report.contents import (
    WELL_USED,
    Contents,
    block_names,
    device_bars,
    engines,
    layer_uses,
    placed,
    slowest,
    timed_kinds,
    whole_bars,
)
from dagtrain.report.fifos import fifos
from dagtrain.report.gantt import device_rows, gantt, shown, simulated
from dagtrain.report.picture import draw
from dagtrain.report.roofline import GIGA, cluster_efficiency, engine_points, roofline_chart, rooflines
from dagtrain.report.templates import page_environment
from dagtrain.report.timeline import engine_rows, fifo_rows

TEMPLATE = "page.html.j2"
# packages that have a say in results
VERSIONED = ("dagtrain", "myhdl", "ortools", "networkx", "numpy", "onnx")
SCRIPT = Path(__file__).with_name("page.js")


def picture(contents: Contents) -> str:
    """The placed training graph as SVG text."""
    return draw(contents.graph, placed(contents.plan))


def render(contents: Contents) -> str:
    """The HTML text of the report."""
    environment = page_environment()
    environment.filters["count"] = _count
    environment.filters["ns"] = lambda ps: f"{ps / 1000:.2f}"
    environment.filters["rate"] = rate_text
    environment.filters["training"] = training_text
    environment.filters["percent"] = lambda value: f"{float(value):.1%}"
    environment.filters["giga"] = lambda value: f"{float(value / GIGA):,.4g}"
    environment.filters["four"] = lambda value: "none" if value is None else f"{float(value):,.4g}"
    roofs, points, simulation = rooflines(contents), engine_points(contents), contents.simulation
    told = simulated(simulation, roofs) if simulation else {}
    return environment.get_template(TEMPLATE).render(
        contents=contents,
        plan=contents.plan,
        summary=contents.summary,
        graph_svg=Markup(picture(contents)),
        devices=[(use, device_bars(contents.plan, use)) for use in contents.plan.devices],
        whole=whole_bars(contents.plan),
        names=block_names(contents.plan),
        rooflines=roofs,
        roofline_charts=[Markup(text) for roof in roofs if (text := roofline_chart(roof, points))],
        engine_points=points,
        gantt=Markup(gantt(simulation)) if simulation else "",
        gantt_shown=shown(simulation) if simulation else None,
        simulated_devices=device_rows(simulation, roofs) if simulation else (),
        simulated_charts=[
            Markup(text)
            for roof in (roofs if simulation else ())
            if (text := roofline_chart(roof, simulated=told[roof.device]))
        ],
        layers=layer_uses(contents.plan),
        engines=engines(contents),
        fifos=fifos(contents.manifests),
        engine_rows=engine_rows(contents.timeline) if contents.timeline else (),
        fifo_rows=fifo_rows(contents.timeline) if contents.timeline else {},
        cluster_efficiency=cluster_efficiency(roofs),
        slowest=slowest(contents.plan),
        well_used=WELL_USED,
        timed_kinds=timed_kinds(contents.timing) if contents.timing else (),
        recipe=contents.graph.recipe,
        versions=[f"Python {python_version()}", *(f"{package} {version(package)}" for package in VERSIONED)],
        script=Markup(SCRIPT.read_text()),
        cosim_chart=Markup(_cosim_chart(contents.cosim)) if contents.cosim else "",
        train_charts=[Markup(text) for text in _train_charts(contents.train)] if contents.train else [],
    )


def _count(value: float | None) -> str:
    """A number with thousands separators; empty for 0 and None, which would only be noise in a table."""
    return f"{value:,.0f}" if value else ""


def _cosim_chart(cosim: Mapping[str, Any]) -> str:
    """Loss of every frame as the emitted Verilog told it, and its mean over each batch, at the batch's last frame."""
    losses = [float(loss) for loss in cosim["losses"]]
    size = max(1, len(losses) // cosim["batches"])
    batches = [losses[start : start + size] for start in range(0, len(losses), size)]
    series = {
        "each frame": [(float(index + 1), loss) for index, loss in enumerate(losses)],
        "mean of a batch": [
            (float(index * size + len(batch)), sum(batch) / len(batch)) for index, batch in enumerate(batches)
        ],
    }
    return line_chart("loss in co-simulation, told by the emitted Verilog", "frame", "cross-entropy", series)


def _train_charts(train: Mapping[str, Any]) -> tuple[str, str]:
    def curve(key: str) -> list[tuple[float, float]]:
        return [(float(record["epoch"]), float(record[key])) for record in train["epochs"]]

    losses = {"training": curve("train_loss"), "held out": curve("held_out_loss")}
    accuracies = {"training": curve("train_accuracy"), "held out": curve("held_out_accuracy")}
    return (
        line_chart("loss", "epoch", "mean cross-entropy", losses),
        line_chart("accuracy", "epoch", "share of frames", accuracies),
    )
