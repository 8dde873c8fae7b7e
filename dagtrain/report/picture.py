"""The placed training graph as an SVG picture.

A column a forward layer, in order; a row a role: forward engines on top, then error, gradient and update below them,
so that data flows right along the top and returns left along the middle.  Colour says which FPGA a node is on, the
stroke of an edge its kind; edges that cross the network are thick.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape

from dagtrain.ir import Graph, Node
from dagtrain.summary import base_layer
from hdl.tensor import Kind

COLUMN_WIDTH = 118
NODE_WIDTH = 104
NODE_HEIGHT = 20
SUB_ROW = 24
MARGIN = 24
LEGEND_HEIGHT = 46

DEVICE_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#eeca3b")
KIND_COLOURS = {
    Kind.ACTIVATION: "#1f4e8c",
    Kind.ERROR: "#b22222",
    Kind.STASH: "#9a9a9a",
    Kind.WEIGHT: "#2e7d32",
    Kind.GRADIENT: "#8e5bb5",
}
ROLES = ("forward", "error", "gradient", "update")


@dataclass(frozen=True)
class _Place:
    x: float
    y: float

    @property
    def left(self) -> tuple[float, float]:
        return self.x, self.y + NODE_HEIGHT / 2

    @property
    def right(self) -> tuple[float, float]:
        return self.x + NODE_WIDTH, self.y + NODE_HEIGHT / 2


def draw(graph: Graph, placed: Mapping[str, str] | None = None) -> str:
    """The SVG text of a training graph; ``placed`` maps nodes to devices (all one colour if None)."""
    on = placed or {}
    devices = sorted(set(on.values()))
    colours = {device: DEVICE_COLOURS[index % len(DEVICE_COLOURS)] for index, device in enumerate(devices)}
    places, width, height = _layout(graph)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="10">',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
        *_legend(colours),
        *_edges(graph, places, on),
        *_nodes(graph, places, on, colours),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def role(node: Node) -> str:
    """What a node does for its layer, told by the kinds it produces."""
    kinds = {port.tensor.kind for port in node.layer.sources}
    if Kind.ERROR in kinds:
        return "error"
    if Kind.WEIGHT in kinds:
        return "update"
    if Kind.GRADIENT in kinds:
        return "gradient"
    return "forward"


def _layout(graph: Graph) -> tuple[dict[str, _Place], float, float]:
    columns = {name: index for index, name in enumerate(dict.fromkeys(base_layer(node.name) for node in graph.nodes))}
    cells: dict[tuple[str, int], list[str]] = {}
    for node in graph.nodes:
        cells.setdefault((role(node), columns[base_layer(node.name)]), []).append(node.name)
    tallest = {name: max((len(v) for (r, _c), v in cells.items() if r == name), default=0) for name in ROLES}
    places: dict[str, _Place] = {}
    top: float = MARGIN + LEGEND_HEIGHT
    for name in ROLES:
        for (cell_role, column), names in cells.items():
            if cell_role == name:
                for index, node_name in enumerate(names):
                    places[node_name] = _Place(MARGIN + column * COLUMN_WIDTH, top + index * SUB_ROW)
        top += tallest[name] * SUB_ROW + 22
    return places, 2 * MARGIN + len(columns) * COLUMN_WIDTH, top + MARGIN


def _legend(colours: Mapping[str, str]) -> Iterator[str]:
    x = float(MARGIN)
    for device, colour in colours.items():
        yield f'<rect x="{x}" y="10" width="12" height="12" rx="2" fill="{colour}"/>'
        yield f'<text x="{x + 16}" y="20">{escape(device)}</text>'
        x += 30 + 7 * len(device)
    x = float(MARGIN)
    for kind, colour in KIND_COLOURS.items():
        yield f'<line x1="{x}" y1="38" x2="{x + 22}" y2="38" stroke="{colour}" stroke-width="2"/>'
        yield f'<text x="{x + 26}" y="42">{kind.value}</text>'
        x += 46 + 7 * len(kind.value)


def _edges(graph: Graph, places: Mapping[str, _Place], on: Mapping[str, str]) -> Iterator[str]:
    for edge, producer, source, consumer, _sink in graph.edges:
        start, stop = places[producer.name], places[consumer.name]
        crosses = on.get(producer.name) != on.get(consumer.name)
        forwards = stop.x > start.x
        (x1, y1), (x2, y2) = (start.right, stop.left) if forwards else (start.left, stop.right)
        if stop.x == start.x:
            (x1, y1), (x2, y2) = start.right, stop.right
        bend = max(20.0, abs(x2 - x1) / 3)
        c1 = x1 + bend if forwards or stop.x == start.x else x1 - bend
        c2 = x2 - bend if forwards else x2 + bend
        colour, weight = KIND_COLOURS[source.tensor.kind], 2.4 if crosses else 1.0
        yield (
            f'<path d="M{x1:.0f},{y1:.0f} C{c1:.0f},{y1:.0f} {c2:.0f},{y2:.0f} {x2:.0f},{y2:.0f}" fill="none" '
            f'stroke="{colour}" stroke-width="{weight}" stroke-opacity="0.7"><title>{escape(edge)}: '
            f"{source.tensor.kind.value} {source.tensor.shape}</title></path>"
        )


def _nodes(
    graph: Graph, places: Mapping[str, _Place], on: Mapping[str, str], colours: Mapping[str, str]
) -> Iterator[str]:
    for node in graph.nodes:
        place, device = places[node.name], on.get(node.name, "")
        label = node.name if len(node.name) <= 19 else f"{node.name[:9]}…{node.name[-9:]}"
        yield (
            f'<g><rect x="{place.x:.0f}" y="{place.y:.0f}" width="{NODE_WIDTH}" height="{NODE_HEIGHT}" rx="4" '
            f'fill="{colours.get(device, "#888888")}"/><text x="{place.x + NODE_WIDTH / 2:.0f}" '
            f'y="{place.y + 14:.0f}" text-anchor="middle" fill="white">{escape(label)}</text>'
            f"<title>{escape(node.name)}: {escape(type(node.layer).__name__)} on {escape(device or 'no device')}"
            "</title></g>"
        )
