"""Layers in parts by rows of their maps: each part is an engine of its own, and all together make the bits of one.

    y[a:b] = f(x[a':b']; w)        dx[c:d] = f'(e[c':d']; w)        g = round(sum of g(x[a':b'], e[a:b]))

A part reads the rows that its own see: where windows overlap those are, beside its own, some of its neighbours' (the
*halo*, kernel - stride rows of a convolution; of parts of few rows, those of several parts on either side).  So
neighbours exchange halos of activations on the way forward, and halos of errors on the way back: an error engine makes
each row of dx as one sum of all errors that reach it, rounded once, and no sums of parts are added up.  Gradients of a
weight leave the parts as exact sums, which are added and rounded once; one update sends new weights to all parts.  So
nothing but the time that things take depends on the number of parts.

Once a batch both go from part to part: each adds its sums to those of the parts before it (`hdl.layers.exchange`,
without a codec), until the last one rounds them; and new weights come back the same way.  So a port carries them once
each way, however many parts there are, and where boards stand in a row so does every cable.

Rows are dealt out by `RowDeal` and put together by `RowGather`, and where two layers in parts follow each other, a part
gets from each part before it no more than it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from dagtrain.graph.ir import Graph, GraphError, Node, Role, Stage
from dagtrain.passes.apply import graph_pass
from dagtrain.passes.replicate import gradients
from dagtrain.passes.widths import near
from hdl.errors import Problem, ShapeError
from hdl.layers.base import Layer
from hdl.layers.capabilities import RoundedApart, rounded_apart
from hdl.layers.exchange.exchange import Exchange
from hdl.layers.shape import RowPart
from hdl.layers.wiring.fork import Fork
from hdl.layers.wiring.gradient_sum import GradientSum
from hdl.layers.wiring.row_deal import RowDeal
from hdl.layers.wiring.row_gather import RowGather
from hdl.tensor import Kind, Port

# between the name of a layer, or an edge, and the number of its part
ROWS = "_rows"
# first row, and the row behind the last
Range = tuple[int, int]


def ranges(rows: int, count: int) -> list[Range]:
    """So many rows in so many parts, as equal as can be."""
    return list(pairwise(rows * part // count for part in range(count + 1)))


def row_parts(layer: Layer, count: int) -> list[RowPart] | None:
    """A layer in so many parts; None where it can't be in any.  Raises `ShapeError` where it can't be in so many."""
    rows = layer.rows_made
    if layer.row_part(0, rows) is None:
        return None
    if not 2 <= count <= rows:
        cure = f"choose 2 to {rows}" if rows > 1 else "leave it whole"
        raise ShapeError(f"{rows} rows in {count} parts are impossible", cure)
    return [part for first, end in ranges(rows, count) if (part := layer.row_part(first, end)) is not None]


@graph_pass(Stage.TRAINING, Stage.TRAINING)
def split_rows(graph: Graph, counts: Mapping[str, int]) -> Graph:
    """The training graph with these layers of the model in so many parts by rows.

    1. Every node that serves a layer becomes ``<layer>_rows0…``, ``<layer>_rows1…``, … but those that work once a
       batch, of which there is one.
    2. Where a part reads what another makes, all of it, it reads that edge.  Elsewhere ``<edge>.deal`` parts rows, and
       ``<edge>.gather`` puts them together.
    3. Gradients become exact sums, to which ``<edge>.exchange1``, … add those of the parts before; the last one rounds.
    4. What comes once a batch is passed on from the last part to the first one by ``<edge>.spread<part>``, each a fork
       to the nodes of its part as well.

    Raises `GraphError` with all that is wrong: layers that can't be in parts, or in so many."""
    problems: dict[str, Problem] = {}
    for node in graph.nodes:
        if node.whole in counts and node.whole not in problems and not node.layer.works_per_batch:
            problem = why_not(node, counts[node.whole])
            problems |= {node.whole: problem} if problem else {}
    known = [*dict.fromkeys(node.whole for node in graph.nodes)]
    problems |= {name: Problem(f"no layer {name}", near(name, known)) for name in counts if name not in known}
    if problems:
        raise GraphError.listing("split", problems.values())
    return _Splitting(graph, counts).run()


def why_not(node: Node, count: int) -> Problem | None:
    """Why a node can't be in so many parts; None if it can."""
    title = f"{node.name} ({type(node.layer).__name__})"
    try:
        parts = row_parts(node.layer, count)
        for part in parts or ():
            rounded_apart(part.layer)
    except ShapeError as error:
        return Problem(f"{title}: {error.what}", error.cure)
    if parts is None:
        return Problem(f"{title} can't be split by rows", "choose layers of windows or of single pixels")
    if gradients(node.layer) and not isinstance(node.layer, RoundedApart):
        return Problem(f"{title} rounds its gradients itself", "leave it whole")
    return None


@dataclass
class _Splitting:
    """The state of one pass."""

    graph: Graph
    counts: Mapping[str, int]
    added: list[Node] = field(default_factory=list)
    # edge of frames -> its rows as they are made, and the edges of these
    made: dict[str, list[tuple[Range, str]]] = field(default_factory=dict)
    # edge, rows that readers want of it -> the edges for them
    routes: dict[tuple[str, tuple[Range, ...]], list[str]] = field(default_factory=dict)
    # edge of what comes once a batch, parts that read it -> what it is to each node that each of them has of it
    spread: dict[tuple[str, int], list[Kind]] = field(default_factory=dict)

    def run(self) -> Graph:
        """The graph with all parts."""
        for node in self.graph.nodes:
            count = self.counts.get(node.whole, 1)
            if node.layer.works_per_batch or count == 1:
                self.added.append(self._whole(node))
            else:
                self._split(node, count)
        for edge, count in self.spread:
            self._spread(edge, count)
        return self.graph.with_nodes(tuple(self.added))

    def _whole(self, node: Node) -> Node:
        """A node as it is, reading all rows of what is in parts."""
        inputs = {}
        for sink, edge in node.inputs.items():
            tensor = node.layer.port(sink).tensor
            inputs[sink] = edge if tensor.kind.per_batch else self._route(edge, ((0, tensor.shape[0]),))[0]
        return replace(node, inputs=inputs, layer_of=self.serving(node, 0))

    def _split(self, node: Node, count: int) -> None:
        """The parts of a node, and what adds their gradients."""
        parts = row_parts(node.layer, count)
        assert parts is not None
        rows = ranges(node.layer.rows_made, count)
        reads = {
            sink: self._route(edge, tuple(part.needs[sink] for part in parts))
            if sink in parts[0].needs
            else self._of_batch(edge, node.layer.port(sink).tensor.kind, count)
            for sink, edge in node.inputs.items()
        }
        nodes = [
            replace(
                node,
                name=_part_name(node, node.name, index),
                layer=rounded_apart(part.layer),
                inputs={sink: edges[index] for sink, edges in reads.items()},
                outputs={source: _part_name(node, edge, index) for source, edge in node.outputs.items()},
                layer_of=self.serving(node, index),
            )
            for index, part in enumerate(parts)
        ]
        for source, edge in node.outputs.items():
            if not node.layer.port(source).tensor.kind.per_batch:
                self.made[edge] = [(rows[index], one.outputs[source]) for index, one in enumerate(nodes)]
        self.added += [*nodes, *_summed(node, nodes)]

    def _of_batch(self, edge: str, kind: Kind, count: int) -> list[str]:
        """Edges on which what comes once a batch will come to one more node of each part."""
        readers = self.spread.setdefault((edge, count), [])
        readers.append(kind)
        return [f"{edge}{ROWS}{part}.y{len(readers) - 1}" for part in range(count)]

    def _spread(self, edge: str, count: int) -> None:
        """What passes it on from the last part to the first one."""
        maker, source = self.graph.producers[edge]
        tensor, readers = source.tensor, self.spread[edge, count]
        # what each part has of it; where that is all for one node of the first part, it needs no fork
        given = [[f"{edge}{ROWS}{part}.y{reader}" for reader in range(len(readers))] for part in range(count)]
        alone = given[0] if len(readers) == 1 else []
        comes = [*alone, *(f"{edge}.on{part}" for part in range(len(alone), count - 1)), edge]
        for part in reversed(range(len(alone), count)):
            goes = comes[part - 1 : part] if part > 0 else []
            outputs = {f"y{index}": each for index, each in enumerate([*given[part], *goes])}
            layer = Fork(shape=tensor.shape, x_fixed=tensor.fixed, kinds=(*readers, *[tensor.kind] * len(goes)))
            name, serves = f"{edge}.spread{part}", self.serving(maker, part)
            self.added.append(Node(name, layer, {"x": comes[part]}, outputs, {}, Role.FORK, serves, maker.whole))

    def serving(self, node: Node, part: int) -> str:
        """The forward node that a part of a node serves: a part of its layer."""
        split = self.counts.get(self.graph.by_name[node.layer_of].whole, 1) > 1
        return f"{node.layer_of}{ROWS}{part}" if split else node.layer_of

    # ---- rows on their way

    def _route(self, edge: str, wanted: tuple[Range, ...]) -> list[str]:
        """Edges that carry these rows of an edge.

        What several nodes of a part read of it passes to that part once, and there goes on to those that read less."""
        made = self.made.get(edge, [((0, self.graph.tensor(edge).shape[0]), edge)])
        if wanted == tuple(rows for rows, _ in made):
            return [given for _, given in made]
        if (edge, wanted) not in self.routes:
            every = self._wanted(edge, wanted, tuple(rows for rows, _ in made))
            route = _Route(self, edge, *self.graph.producers[edge], self._mark(edge))
            if every == wanted:
                self.routes[edge, wanted] = route.lay(made, wanted)
            else:
                self.routes[edge, wanted] = route.trim(every, self._route(edge, every), wanted)
        return self.routes[edge, wanted]

    def _wanted(self, edge: str, wanted: tuple[Range, ...], made: tuple[Range, ...]) -> tuple[Range, ...]:
        """What all nodes in as many parts read of an edge, where they don't read what is made as it is."""
        for node, sink in self.graph.consumers[edge]:
            count = 1 if node.layer.works_per_batch else self.counts.get(node.whole, 1)
            if count == len(wanted) > 1:
                parts = row_parts(node.layer, count) or []
                reads = tuple(part.needs[sink.name] for part in parts)
                if reads != made:
                    both = zip(wanted, reads, strict=True)
                    wanted = tuple((min(one[0], other[0]), max(one[1], other[1])) for one, other in both)
        return wanted

    def _mark(self, edge: str) -> str:
        """Tells several routes of one edge apart."""
        number = sum(other == edge for other, _ in self.routes)
        return str(number) if number else ""


@dataclass(frozen=True)
class _Route:
    """An edge's rows on their way from those who make some to those who read some."""

    splitting: _Splitting
    edge: str
    maker: Node
    source: Port
    # tells several of one edge apart
    mark: str

    def lay(self, made: list[tuple[Range, str]], wanted: tuple[Range, ...]) -> list[str]:
        """The edges for those who want these rows of what is made so."""
        # reader -> (rows, edge, whether its maker is the one of the reader's number)
        pieces: dict[int, list[tuple[int, str, bool]]] = {reader: [] for reader in range(len(wanted))}
        for part, ((first, end), edge) in enumerate(made):
            shares = {
                reader: (max(first, low), min(end, high))
                for reader, (low, high) in enumerate(wanted)
                if max(first, low) < min(end, high)
            }
            if any(share != (first, end) for share in shares.values()):
                edges = self._deal(part if len(made) > 1 else None, edge, (first, end), list(shares.values()))
            else:
                edges = [edge] * len(shares)
            for (reader, (low, high)), given in zip(shares.items(), edges, strict=True):
                pieces[reader].append((high - low, given, part == reader))
        return [self._gather(reader, len(wanted), found) for reader, found in pieces.items()]

    def trim(self, given: tuple[Range, ...], edges: list[str], wanted: tuple[Range, ...]) -> list[str]:
        """The edges for those who want these rows, of edges that carry more."""
        found = []
        for part, (edge, rows, want) in enumerate(zip(edges, given, wanted, strict=True)):
            found += [edge] if rows == want else self._deal(part, edge, rows, [want])
        return found

    @property
    def _kind(self) -> Kind:
        """That of readers that move in step, if there are any."""
        kinds = [sink.tensor.kind for _, sink in self.splitting.graph.consumers[self.edge]]
        return next((kind for kind in kinds if kind.hops_must_match), kinds[0])

    def _fields(self, rows: int) -> dict[str, int]:
        _, width, channels = self.source.tensor.shape
        return {"height": rows, "width": width, "channels": channels}

    def _node(self, name: str, layer: Layer, inputs: Mapping[str, str], outputs: Mapping[str, str], part: int) -> None:
        makers = self.splitting.counts.get(self.maker.whole, 1)
        serves = self.splitting.serving(self.maker, min(part, makers - 1))
        node = Node(name, layer, inputs, outputs, {}, Role.DEAL, serves, self.maker.whole)
        self.splitting.added.append(node)

    def _deal(self, part: int | None, edge: str, rows: Range, shares: list[Range]) -> list[str]:
        """Edges for some rows each of what one makes."""
        name = f"{edge}.deal{self.mark}"
        layer = RowDeal(
            **self._fields(rows[1] - rows[0]),
            starts=tuple(first - rows[0] for first, _ in shares),
            ends=tuple(end - rows[0] for _, end in shares),
            kind=self._kind,
            x_fixed=self.source.tensor.fixed,
        )
        outputs = {f"y{index}": f"{name}.y{index}" for index in range(len(shares))}
        self._node(name, layer, {"x": edge}, outputs, part or 0)
        return list(outputs.values())

    def _gather(self, reader: int, readers: int, pieces: list[tuple[int, str, bool]]) -> str:
        """The edge for all rows of one reader."""
        if len(pieces) == 1:
            return pieces[0][1]
        whole = readers == 1
        made = self.edge if whole else f"{self.edge}.gather{self.mark}.y{reader}"
        own = next((index for index, (_, _, same) in enumerate(pieces) if same), 0)
        layer = RowGather(
            **self._fields(sum(rows for rows, _, _ in pieces)),
            rows=tuple(rows for rows, _, _ in pieces),
            in_step=own,
            kind=self._kind,
            x_fixed=self.source.tensor.fixed,
        )
        inputs = {f"x{index}": edge for index, (_, edge, _) in enumerate(pieces)}
        name = f"{self.edge}.gather{self.mark}" + ("" if whole else f".{reader}")
        self._node(name, layer, inputs, {"y": made}, 0 if whole else reader)
        return made


def _summed(node: Node, parts: Sequence[Node]) -> Iterator[Node]:
    """What hands the gradients that parts of a node sum on from each to the next one, and rounds them at the last."""
    for port in gradients(node.layer):
        assert isinstance(node.layer, RoundedApart)
        edge, rounded = node.outputs[port.name], node.layer.roundings[port.name]
        assert isinstance(rounded, GradientSum)
        widths = [part.layer.port(port.name).tensor.fixed.width for part in parts]
        comes = parts[0].outputs[port.name]
        for index, part in enumerate(parts[1:], start=1):
            layer = Exchange.of(rounded, widths, index)
            inputs = {"g": part.outputs[port.name], "ring_in": comes}
            comes = edge if layer.is_last else f"{edge}.ring{index}"
            outputs = {layer.sources[0].name: comes}
            yield Node(f"{edge}.exchange{index}", layer, inputs, outputs, {}, Role.SUM, part.layer_of, node.whole)


def _part_name(node: Node, name: str, part: int) -> str:
    """Of a part of a node, or of what it makes: that of the layer's part in place of the layer's."""
    if name.startswith(node.layer_of):
        return f"{node.layer_of}{ROWS}{part}{name.removeprefix(node.layer_of)}"
    return f"{name}{ROWS}{part}"
