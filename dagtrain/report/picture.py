"""The placed training graph as an SVG picture that fits a page.

A row a forward layer, in the order of the network; a column for what nodes make: forward engines left, then error,
gradient and update.  So data runs down the first column and errors run up the second, each layer's engines side by
side.  Colour says which FPGA a node is on, the colour of an edge its kind; edges that cross the network are thick.  A
fork is a dot beside the node that feeds it.  Every node and edge says its name when the mouse is on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape

from dagtrain.graph.ir import Graph, Node, Role
from hdl.tensor import Kind

NODE_WIDTH = 96
FORK_WIDTH = 10
NODE_HEIGHT = 18
ROW_HEIGHT = 34
# between nodes of one cell, and between columns
GAP = 8
COLUMN_GAP = 46
MARGIN = 16
# above the first row: two lines of legend and the names of the columns
LEGEND_HEIGHT = 64
CHARACTER_WIDTH = 6.2
# how far an edge that passes over rows bows out sideways, at most
MOST_BOW = 34

# white text on them has a contrast of 4.5 at least
DEVICE_COLOURS = ("#416d9c", "#b35900", "#2f7d32", "#8a4d82", "#c03540", "#1f7a75", "#775745", "#7d6800")
KIND_COLOURS = {
    Kind.ACTIVATION: "#1f4e8c",
    Kind.ERROR: "#b22222",
    Kind.STASH: "#9a9a9a",
    Kind.WEIGHT: "#2e7d32",
    Kind.GRADIENT: "#8e5bb5",
    Kind.REPLAY: "#4d7c0f",
    Kind.SUMS: "#6d28d9",
    Kind.STATE: "#7c5a1e",
}
# the same in the dark
DARK_COLOURS = {
    Kind.ACTIVATION: "#7fb0e6",
    Kind.ERROR: "#f08080",
    Kind.STASH: "#8a8a8a",
    Kind.WEIGHT: "#7ccf80",
    Kind.GRADIENT: "#c79be8",
    Kind.REPLAY: "#a3cc5b",
    Kind.SUMS: "#b197fc",
    Kind.STATE: "#d0ab6a",
}
STYLE = (
    """<style>
.picture-paper { fill: #ffffff; } .picture-ink { fill: #22262c; }
@media (prefers-color-scheme: dark) {
.picture-paper { fill: #16191d; } .picture-ink { fill: #d5dae1; }
"""
    + "\n".join(f".edge-{kind.value} {{ stroke: {colour}; }}" for kind, colour in DARK_COLOURS.items())
    + "\n}\n</style>"
)
COLUMNS = ("forward", "error", "gradient", "update")
# drawn as a dot
COPIES = (Role.FORK, Role.RELAY, Role.DEAL)


@dataclass(frozen=True)
class _Place:
    """Where a node is drawn."""

    x: float
    y: float
    width: float
    row: int

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


@dataclass(frozen=True)
class _Layout:
    places: Mapping[str, _Place]
    # forward layer -> y of its row
    rows: Mapping[str, float]
    # name -> x of the column
    columns: Mapping[str, float]
    width: float
    height: float


def draw(graph: Graph, placed: Mapping[str, str] | None = None) -> str:
    """The SVG text of a training graph; ``placed`` maps nodes to devices (all one colour if None)."""
    on = placed or {}
    devices = sorted(set(on.values()))
    colours = {device: DEVICE_COLOURS[index % len(DEVICE_COLOURS)] for index, device in enumerate(devices)}
    layout = _layout(graph)
    size = f"{layout.width:.0f}", f"{layout.height:.0f}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" width="{size[0]}" '
        f'height="{size[1]}" font-family="sans-serif" font-size="10">',
        f"<title>{escape(graph.name)}: placed training graph</title>",
        STYLE,
        f'<rect class="picture-paper" width="{size[0]}" height="{size[1]}"/>',
        *_legend(colours, layout),
        *_edges(graph, layout.places, on),
        *_nodes(graph, layout.places, on, colours),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def column(node: Node) -> str:
    """The column that a node stands in, told by the kinds it produces: a fork of errors stands with what makes them."""
    kinds = {port.tensor.kind for port in node.layer.sources}
    if Kind.ERROR in kinds:
        return "error"
    if kinds & {Kind.WEIGHT, Kind.REPLAY, Kind.STATE}:
        return "update"
    if kinds & {Kind.GRADIENT, Kind.SUMS}:
        return "gradient"
    return "forward"


def _layout(graph: Graph) -> _Layout:
    layers = list(dict.fromkeys(node.layer_of for node in graph.nodes))
    cells: dict[tuple[str, str], list[Node]] = {}
    for node in graph.nodes:
        cells.setdefault((column(node), node.layer_of), []).append(node)
    x = MARGIN + max((len(layer) for layer in layers), default=0) * CHARACTER_WIDTH + MOST_BOW
    columns: dict[str, float] = {}
    for name in COLUMNS:
        columns[name] = x
        widths = [sum(_width(node) + GAP for node in nodes) for (of, _), nodes in cells.items() if of == name]
        x += max(widths, default=NODE_WIDTH + GAP) - GAP + COLUMN_GAP
    rows = {layer: float(MARGIN + LEGEND_HEIGHT + index * ROW_HEIGHT) for index, layer in enumerate(layers)}
    places: dict[str, _Place] = {}
    for (name, layer), nodes in cells.items():
        left = columns[name]
        for node in nodes:
            places[node.name] = _Place(left, rows[layer], _width(node), layers.index(layer))
            left += _width(node) + GAP
    return _Layout(places, rows, columns, x - COLUMN_GAP + MARGIN, MARGIN + LEGEND_HEIGHT + len(rows) * ROW_HEIGHT)


def _width(node: Node) -> float:
    return FORK_WIDTH if node.role in COPIES else NODE_WIDTH


def _legend(colours: Mapping[str, str], layout: _Layout) -> Iterator[str]:
    x = float(MARGIN)
    for device, colour in colours.items():
        yield f'<rect x="{x:.0f}" y="10" width="12" height="12" rx="2" fill="{colour}"/>'
        yield f'<text class="picture-ink" x="{x + 16:.0f}" y="20">{escape(device)}</text>'
        x += 34 + CHARACTER_WIDTH * len(device)
    x = float(MARGIN)
    for kind, colour in KIND_COLOURS.items():
        yield (
            f'<line class="edge-{kind.value}" x1="{x:.0f}" y1="38" x2="{x + 22:.0f}" y2="38" stroke="{colour}" '
            f'stroke-width="2"/>'
        )
        yield f'<text class="picture-ink" x="{x + 26:.0f}" y="42">{kind.value}</text>'
        x += 46 + CHARACTER_WIDTH * len(kind.value)
    for name, left in layout.columns.items():
        yield f'<text class="picture-ink" x="{left:.0f}" y="{LEGEND_HEIGHT + 6}" font-weight="bold">{name}</text>'
    for layer, top in layout.rows.items():
        yield f'<text class="picture-ink" x="{MARGIN}" y="{top + 13:.0f}">{escape(layer)}</text>'


def _edges(graph: Graph, places: Mapping[str, _Place], on: Mapping[str, str]) -> Iterator[str]:
    for edge, producer, source, consumer, _sink in graph.edges:
        crosses = on.get(producer.name) != on.get(consumer.name)
        colour, weight = KIND_COLOURS[source.tensor.kind], 2.6 if crosses else 1.0
        yield (
            f'<path class="edge-{source.tensor.kind.value}" '
            f'd="{_path(places[producer.name], places[consumer.name])}" fill="none" stroke="{colour}" '
            f'stroke-width="{weight}" stroke-opacity="{0.9 if crosses else 0.55}"><title>{escape(edge)}: '
            f"{source.tensor.kind.value} {source.tensor.shape}{' over the network' if crosses else ''}</title></path>"
        )


def _path(start: _Place, stop: _Place) -> str:
    """From the side of one node that faces the other: across within a row, else down or up, bowed over long ways."""
    if start.row == stop.row:
        rightwards = stop.x > start.x
        x1 = start.x + start.width if rightwards else start.x
        x2 = stop.x if rightwards else stop.x + stop.width
        y = start.y + NODE_HEIGHT / 2
        # neighbours by a straight line, others by an arc below the nodes between
        dip = 0 if abs(x2 - x1) <= COLUMN_GAP else ROW_HEIGHT / 2
        return f"M{x1:.0f},{y:.0f} C{x1:.0f},{y + dip:.0f} {x2:.0f},{y + dip:.0f} {x2:.0f},{y:.0f}"
    downwards = stop.row > start.row
    y1 = start.y + NODE_HEIGHT if downwards else start.y
    y2 = stop.y if downwards else stop.y + NODE_HEIGHT
    rows = abs(stop.row - start.row)
    # a long way within a column goes around the nodes between, on the left
    around = rows > 1 and abs(stop.x - start.x) < NODE_WIDTH + 2 * FORK_WIDTH
    if around:
        side = min(start.x, stop.x) - min(MOST_BOW, 8 + 4 * rows)
        mid = (y1 + y2) / 2
        return (
            f"M{start.middle:.0f},{y1:.0f} C{side:.0f},{y1:.0f} {side:.0f},{y1:.0f} {side:.0f},{mid:.0f} "
            f"S{side:.0f},{y2:.0f} {stop.middle:.0f},{y2:.0f}"
        )
    bend = (y2 - y1) / 2
    return (
        f"M{start.middle:.0f},{y1:.0f} C{start.middle:.0f},{y1 + bend:.0f} {stop.middle:.0f},{y2 - bend:.0f} "
        f"{stop.middle:.0f},{y2:.0f}"
    )


def _nodes(
    graph: Graph, places: Mapping[str, _Place], on: Mapping[str, str], colours: Mapping[str, str]
) -> Iterator[str]:
    for node in graph.nodes:
        place, device = places[node.name], on.get(node.name, "")
        colour = colours.get(device, "#666666")
        title = f"{escape(node.name)}: {escape(type(node.layer).__name__)} on {escape(device or 'no device')}"
        if node.role in COPIES:
            yield (
                f'<circle data-node="{escape(node.name)}" '
                f'cx="{place.middle:.0f}" cy="{place.y + NODE_HEIGHT / 2:.0f}" r="{FORK_WIDTH / 2:.0f}" '
                f'fill="{colour}"><title>{title}</title></circle>'
            )
            continue
        yield (
            f'<g data-node="{escape(node.name)}">'
            f'<rect x="{place.x:.0f}" y="{place.y:.0f}" width="{place.width:.0f}" height="{NODE_HEIGHT}" rx="4" '
            f'fill="{colour}"/><text x="{place.middle:.0f}" y="{place.y + 13:.0f}" text-anchor="middle" '
            f'fill="white">{escape(_label(node))}</text><title>{title}</title></g>'
        )


def _label(node: Node) -> str:
    """What a node is beside its layer's name, which stands at the row."""
    text = type(node.layer).__name__ if node.is_layer else node.name.removeprefix(f"{node.layer_of}.")
    return text if len(text) <= 15 else f"{text[:6]}…{text[-7:]}"
