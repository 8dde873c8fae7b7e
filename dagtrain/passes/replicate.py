"""Copies of layers: each gets some of a batch's frames, and all together give the bits of one layer that gets them all.

All copies of a layer get equally many frames, or shares of unlike size, for boards of unlike size.

Frames are dealt out where they come in and collected where they leave (`hdl.layers.wiring.deal`).  The gradients of a
weight leave its copies as exact sums, which are added and rounded once (`GradientSum`); one update sends new weights to
all copies.  So nothing but the time that things take depends on the number of copies.

Instead gradients may go from copy to copy (`dagtrain.passes.exchange`), each of which has an update of its own then.

Layers whose statistics run from frame to frame (online normalisation) either stay single among copies of others, and
see all frames (`NormSync.TOGETHER`), or have copies with statistics of their own, whose bits depend on how many there
are (`NormSync.APART`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TypeAlias

from dagtrain.graph.ir import Graph, GraphError, Node, Role, Stage
from dagtrain.passes.apply import graph_pass
from dagtrain.passes.exchange import CENTRAL, COPY, Exchanging, named
from dagtrain.passes.widths import near
from hdl.errors import DagtrainError, Problem, ShapeError
from hdl.layers.base import Layer
from hdl.layers.capabilities import Advancing, RoundedApart, of_copy, recipe_of, rounded_apart
from hdl.layers.wiring.deal import Collect, Deal
from hdl.layers.wiring.gradient_sum import GradientSum
from hdl.recipe import Recipe, turns_of
from hdl.tensor import Kind, Port

# the shares of a layer without copies
SINGLE = (1,)
# layers that a line names
NAMED = 3
# the number of a copy in the name of a node
NUMBER = re.compile(rf"{COPY}(\d+)")


# how many copies, of equal shares; or of as many frames as they add up to, those of each copy
Copies: TypeAlias = int | tuple[int, ...]


def shares_of(copies: Copies) -> tuple[int, ...]:
    """Of as many frames as they add up to, those of each copy."""
    return (1,) * copies if isinstance(copies, int) else copies


def dealt_shares(shares: tuple[int, ...]) -> tuple[int, ...]:
    """As `hdl.recipe.Dealt` has them: none where all are equal."""
    return shares if len({*shares}) > 1 else ()


def copies_text(copies: Copies) -> str:
    """As `parse_copies` reads them."""
    return str(copies) if isinstance(copies, int) else ":".join(map(str, copies))


def copies_to_json(copies: Mapping[str, Copies]) -> dict[str, int | str]:
    """Shares of unlike size as a text."""
    return {layer: each if isinstance(each, int) else copies_text(each) for layer, each in copies.items()}


def copies_from_json(record: Mapping[str, int | str]) -> dict[str, Copies]:
    """The inverse of `copies_to_json`."""
    return {layer: each if isinstance(each, int) else copies_of_text(each) for layer, each in record.items()}


def copies_of_text(text: str) -> Copies:
    """A number of copies, or their shares.  Raises `ValueError` for what is neither."""
    parts = text.split(":")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise ValueError(text)
    if len(parts) == 1:
        return int(text)
    shares = tuple(map(int, parts))
    return len(shares) if len({*shares}) == 1 else tuple(share // math.gcd(*shares) for share in shares)


class NormSync(StrEnum):
    """What becomes of statistics that run from frame to frame, where other layers have copies."""

    # there is one of each norm: frames are collected before it and dealt behind it, and all has the bits of one
    TOGETHER = "together"
    # each copy has its own, over the frames that it gets
    APART = "apart"


def parse_norm_sync(text: str) -> NormSync:
    """Of ``--norm-sync``; `DagtrainError` for what is none."""
    try:
        return NormSync(text)
    except ValueError:
        raise DagtrainError(f"--norm-sync {text} is unknown", f"choose {' or '.join(NormSync)}") from None


def parse_copies(texts: tuple[str, ...]) -> dict[str, Copies]:
    """Pattern of layers -> copies, of ``layer=copies`` options.  Raises `DagtrainError` with all that is wrong."""
    found: dict[str, Copies] = {}
    problems: list[Problem] = []
    for text in texts:
        layer, _, copies = text.rpartition("=")
        if not layer:
            problems.append(Problem(f"--copy {text!r} is not LAYER=COPIES: no layer is named"))
            continue
        try:
            how = copies_of_text(copies)
        except ValueError:
            what = f"--copy {text!r} is not LAYER=COPIES: {copies!r} is no number of copies"
            problems.append(Problem(what, "write e.g. 2, or 3:2 for two copies of which one gets 3 of 5 frames"))
            continue
        if layer in found:
            problems.append(Problem(f"--copy names {layer} twice"))
        found[layer] = how
    if problems:
        raise DagtrainError.listing("", problems)
    return found


@graph_pass(Stage.TRAINING, Stage.TRAINING)
def replicate(
    graph: Graph,
    copies: Mapping[str, Copies],
    exchange: Exchanging = CENTRAL,
    norm_sync: NormSync = NormSync.TOGETHER,
) -> Graph:
    """The training graph with so many copies of the layers whose names match these patterns (``*``, ``?``, ``[ab]``).

    1. All nodes that serve a layer become ``<node>@0``, ``<node>@1``, … with a recipe of their frames, but updates, of
       which there is one.
    2. What one node makes for the other passes from copy to copy where both have as many copies, of the same shares.
       Elsewhere it is collected by ``<edge>.collect`` and dealt out by ``<edge>.deal<copies>``.
    3. Gradients become exact sums, which ``<edge>.sum`` adds and rounds.  Weights go to all copies.  Where ``exchange``
       has a codec each copy's sum passes ``<edge>.exchange@0``, ``@1``, … first.  Where it is a chain or a ring, sums
       go from one of these to the next, and there is an update for each copy.
    4. Patterns pass over what the host's streams need: inputs, labels and losses.  One copy is the layer itself.
    5. Where statistics run from frame to frame and are taken ``together``, patterns pass over these layers, too.
       ``apart``, each copy begins with what is carried over, and goes on by its own frames.

    Raises `GraphError` with all that is wrong: a pattern that no layer matches, layers that can't have copies, or not
    so many, a layer of two numbers of copies."""
    chosen, problems = _chosen(graph, copies, norm_sync)
    several = exchange.apart
    shares = {
        node.name: shares_of(chosen[node.whole])
        for node in graph.nodes
        if node.whole in chosen and (several or not node.layer.works_per_batch)
    }
    problems += [
        problem
        for name, each in shares.items()
        if not graph.by_name[name].layer.works_per_batch and (problem := _problem(graph.by_name[name], each))
    ]
    problems += exchange.problems(graph, shares)
    if problems:
        raise GraphError.listing("copies", problems)
    return _Copying(graph, shares, exchange).run()


def most_copies(graph: Graph, norm_sync: NormSync = NormSync.TOGETHER) -> dict[str, int]:
    """Layer of the model -> copies that it can have; 1 where it has to be a single one.

    ``graph``: with copies already or without."""
    found: dict[str, int] = {}
    for node in graph.nodes:
        if node.layer.works_per_batch:
            continue
        most = graph.recipe.batch
        single = node.is_layer and _why_single(node, norm_sync) is not None
        if single or (node.name not in graph.dealt and _problem(node, (1, 1))):
            most = 1
        found[node.whole] = min(found.get(node.whole, most), most)
    return found


def copies_of(graph: Graph) -> dict[str, Copies]:
    """Layer of the model -> copies of it in a graph, of those that have several."""
    layers = ((graph.by_name[name], dealt) for name, dealt in graph.dealt.items())
    return {node.whole: dealt.shares or dealt.copies for node, dealt in layers if node.is_layer}


def copies_of_nodes(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """The copies of each node, "" for those that a copy has not, where all layers that can have copies have equally
    many, of equal shares; else none."""
    copies = copies_of(graph)
    able = {layer for layer, most in most_copies(graph).items() if most > 1}
    if not able <= copies.keys() or len({*copies.values()}) != 1:
        return ()
    (count,) = {*copies.values()}
    if not isinstance(count, int):
        return ()
    alike: dict[str, list[str]] = {}
    for node in graph.nodes:
        number = NUMBER.search(node.name)
        if number:
            alike.setdefault(NUMBER.sub("", node.name), [""] * count)[int(number.group(1))] = node.name
    return tuple(tuple(names) for names in alike.values())


def advancing(graph: Graph) -> dict[str, int]:
    """Layer of the model -> copies, 1 where it is single, of those whose statistics run from frame to frame."""
    layers = [node for node in graph.nodes if node.is_layer and isinstance(node.layer, Advancing)]
    return {node.whole: graph.dealt[node.name].copies if node.name in graph.dealt else 1 for node in layers}


def told(graph: Graph, norm_sync: NormSync) -> list[str]:
    """What users should know of statistics that run from frame to frame, in a graph with copies or without."""
    found = advancing(graph)
    copied, norms = {name: count for name, count in found.items() if count > 1}, "layers with statistics of frames"
    if norm_sync is NormSync.APART:
        if not found:
            return [f"--norm-sync {norm_sync} changes nothing: no layer has statistics that run from frame to frame"]
        if not copied:
            return [f"--norm-sync {norm_sync} changes nothing yet: none of {len(found)} {norms} has copies"]
        return [
            f"statistics apart: each copy of {_some([f'{name}={count}' for name, count in copied.items()])} keeps its "
            "own, over its frames; bits, and what is learnt, depend on the number of copies"
        ]
    if not found or not graph.dealt:
        return []
    return [f"statistics together: one each of {_some([*found])} for the frames of all copies; the bits of one"]


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _chosen(
    graph: Graph, copies: Mapping[str, Copies], norm_sync: NormSync
) -> tuple[dict[str, Copies], list[Problem | str]]:
    """Layer -> copies, where there are several, and what is wrong with patterns."""
    layers = {node.whole: node for node in graph.nodes if node.is_layer}
    single = {name: why for name, node in layers.items() if (why := _why_single(node, norm_sync))}
    able = [name for name in layers if name not in single]
    problems: list[Problem | str] = []
    chosen: dict[str, Copies] = {}
    for pattern, count in copies.items():
        found = [name for name in able if fnmatchcase(name, pattern)]
        if not found and (met := [name for name in single if fnmatchcase(name, pattern)]):
            problems += [single[name] for name in met[:NAMED]]
        elif not found:
            problems.append(Problem(f"no layer matches {pattern!r}", near(pattern, able)))
        for name in found:
            if chosen.setdefault(name, count) != count:
                both = copies_text(chosen[name]), copies_text(count)
                problems.append(Problem(f"{name} is to have {both[0]} copies, and {both[1]}", "choose one number"))
        shares, batch = shares_of(count), graph.recipe.batch
        if len(shares) > batch:
            what = f"{count} copies of {pattern}: a batch has {batch} frames, and each copy needs one"
            problems.append(Problem(what, f"choose {batch} or fewer"))
        elif len({*turns_of(shares)[:batch]}) < len(shares):
            what = f"{copies_text(count)} copies of {pattern}: of {batch} frames a batch some copy gets none"
            problems.append(Problem(what, "choose shares that are nearer to one another"))
    return {name: count for name, count in chosen.items() if count != 1}, problems


def _serves_the_host(node: Node) -> bool:
    """Whether a layer is an end of the host's streams, or a loss, whose results the host reads frame by frame."""
    makes_errors = any(port.tensor.kind is Kind.ERROR for port in node.layer.sources)
    return node.layer.pinned_to_host or not node.layer.sinks or makes_errors


def _why_single(node: Node, norm_sync: NormSync) -> Problem | None:
    """Why there is one of a layer, whatever else has copies; None if it can have some."""
    title = f"{node.whole} ({type(node.layer).__name__})"
    if _serves_the_host(node):
        return Problem(f"{title} serves the host's streams, of which there is one", "leave it")
    if norm_sync is NormSync.TOGETHER and isinstance(node.layer, Advancing):
        what = f"{title} runs statistics from frame to frame, of which there is one for all frames"
        return Problem(what, f"leave it, or import with --norm-sync {NormSync.APART} for statistics of each copy")
    return None


def _problem(node: Node, shares: tuple[int, ...]) -> Problem | None:
    """Why a node can't have copies of these shares; None if it can."""
    title = f"{node.name} ({type(node.layer).__name__})"
    if len(shares) > 1 and gradients(node.layer):
        if isinstance(node.layer, RoundedApart) and node.layer.exact:
            return Problem(f"{title} is one of the parts by rows that sum a gradient together", "leave it a single one")
        if not isinstance(node.layer, RoundedApart):
            return Problem(f"{title} rounds its gradients itself", "leave it a single one")
        try:
            # of no more copies than there can be, which is another problem
            batch = recipe_of(node.layer, Recipe()).batch
            some = {*turns_of(shares)[:batch]} == {*range(len(shares))}
            copy, shares = (shares.index(max(shares)), shares) if some else (0, (1,) * min(len(shares), batch))
            rounded_apart(of_copy(node.layer, copy, len(shares), dealt_shares(shares)))
        except ShapeError as error:
            return Problem(error.what, error.cure)
    return None


def gradients(layer: Layer) -> list[Port]:
    """Sources of gradients."""
    return [port for port in layer.sources if port.tensor.kind is Kind.GRADIENT]


def summed(node: Node, engines: Sequence[Node]) -> Iterator[Node]:
    """What adds the gradients that several engines sum in place of a node, and rounds them once."""
    for port in gradients(node.layer):
        assert isinstance(node.layer, RoundedApart)
        edge, one = node.outputs[port.name], node.layer.roundings[port.name]
        formats = [engine.layer.port(port.name).tensor.fixed for engine in engines]
        assert isinstance(one, GradientSum)
        widest, widths = max(formats, key=lambda fixed: fixed.width), tuple(fixed.width for fixed in formats)
        layer = replace(one, copies=len(engines), s_fixed=widest, widths=widths if len({*widths}) > 1 else ())
        inputs = {f"s{index}": engine.outputs[port.name] for index, engine in enumerate(engines)}
        yield Node(f"{edge}.sum", layer, inputs, {"g": edge}, {}, Role.SUM, engines[0].layer_of, node.whole)


def _deal_name(edge: str, shares: tuple[int, ...]) -> str:
    """Of what deals out an edge to copies of these shares."""
    unlike = dealt_shares(shares)
    return f"{edge}.deal{'_'.join(map(str, unlike)) if unlike else len(shares)}"


@dataclass
class _Copying:
    """The state of one pass."""

    graph: Graph
    # node -> shares of its copies, of those that have any
    shares: Mapping[str, tuple[int, ...]]
    exchange: Exchanging
    added: list[Node] = field(default_factory=list)
    # (edge, shares) that were dealt out; edges that were collected
    dealt: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)
    collected: set[str] = field(default_factory=set)

    def run(self) -> Graph:
        """The graph with all copies."""
        for node in self.graph.nodes:
            shares = self.shares.get(node.name, SINGLE)
            count = len(shares)
            self.added += [self._copy(node, copy, shares) for copy in range(count)]
            if count > 1 and not node.layer.works_per_batch:
                self.added += self._exchanged(node, self.added[-count:])
        carried = {name: kept for whole, kept in self.graph.carried.items() for name in self._names(whole)}
        return replace(self.graph.with_nodes(tuple(self.added)), carried=carried)

    def _names(self, node: str) -> list[str]:
        """Of all copies of a node, or its own."""
        count = len(self.shares.get(node, SINGLE))
        return [named(node, copy) for copy in range(count)] if count > 1 else [node]

    def _copy(self, node: Node, copy: int, shares: tuple[int, ...]) -> Node:
        """A node, reading what is there for a copy of it."""
        inputs = {sink: self._read(node, sink, edge, copy, shares) for sink, edge in node.inputs.items()}
        layer_of, count = node.layer_of, len(shares)
        if layer_of in self.shares:
            # what serves all copies is of the first
            layer_of = named(layer_of, copy)
        if count == 1:
            return replace(node, inputs=inputs, layer_of=layer_of)
        # what works once a batch knows no frames
        layer = node.layer
        if not layer.works_per_batch:
            layer = rounded_apart(of_copy(layer, copy, count, dealt_shares(shares)))
        return replace(
            node,
            name=named(node.name, copy),
            layer=layer,
            inputs=inputs,
            outputs={source: self._made(node, source, edge, copy) for source, edge in node.outputs.items()},
            layer_of=layer_of,
        )

    def _made(self, node: Node, source: str, edge: str, copy: int) -> str:
        """The edge that a copy of a node makes: what is to be exchanged has another name than what becomes of it."""
        gradient = any(port.name == source for port in gradients(node.layer)) and not node.layer.works_per_batch
        return named(f"{edge}.own" if gradient and not self.exchange.exact else edge, copy)

    def _read(self, node: Node, sink: str, edge: str, copy: int, shares: tuple[int, ...]) -> str:
        """The edge that a copy of a node reads in place of one."""
        maker, source = self.graph.producers[edge]
        made, count = self.shares.get(maker.name, SINGLE), len(shares)
        there = len(made)
        if node.layer.port(sink).tensor.kind.per_batch:
            # what is made once a batch is equal at all copies, where each has its own
            own = self.exchange.apart and there > 1
            return named(edge, copy % there) if own else edge
        if made == shares:
            return named(edge, copy) if count > 1 else edge
        if there > 1 and edge not in self.collected:
            self.collected.add(edge)
            self.added.append(self._collect(maker, source, edge, made))
        if count == 1:
            return edge
        if (edge, shares) not in self.dealt:
            self.dealt.add((edge, shares))
            self.added.append(self._deal(maker, source, edge, shares))
        return named(_deal_name(edge, shares), copy)

    def _exchanged(self, node: Node, engines: Sequence[Node]) -> Iterator[Node]:
        """What makes gradients of those of a node's copies."""
        if self.exchange.exact:
            yield from summed(node, engines)
            return
        for port in gradients(node.layer):
            assert isinstance(node.layer, RoundedApart)
            rounded = node.layer.roundings[port.name]
            assert isinstance(rounded, GradientSum)
            widths = tuple(engine.layer.port(port.name).tensor.fixed.width for engine in engines)
            edge = node.outputs[port.name]
            yield from self.exchange.nodes(node, edge, rounded, widths, self._firsts[edge])

    @cached_property
    def _firsts(self) -> dict[str, int]:
        """Edge of gradients that copies exchange -> the copy with which the sum begins."""
        sizes = {
            node.outputs[port.name]: (port.tensor.elements, len(self.shares[node.name]))
            for node in self.graph.nodes
            if node.name in self.shares and not node.layer.works_per_batch
            for port in gradients(node.layer)
        }
        return self.exchange.firsts(sizes)

    def _collect(self, maker: Node, source: Port, edge: str, shares: tuple[int, ...]) -> Node:
        inputs = {f"x{copy}": named(edge, copy) for copy in range(len(shares))}
        layer = self._in_turns(Collect, source, edge, shares)
        first = named(maker.layer_of, 0)
        return Node(f"{edge}.collect", layer, inputs, {"y": edge}, {}, Role.DEAL, first, maker.whole)

    def _deal(self, maker: Node, source: Port, edge: str, shares: tuple[int, ...]) -> Node:
        name = _deal_name(edge, shares)
        layer = self._in_turns(Deal, source, edge, shares)
        outputs = {f"y{copy}": named(name, copy) for copy in range(len(shares))}
        first = named(maker.layer_of, 0) if maker.layer_of in self.shares else maker.layer_of
        return Node(name, layer, {"x": edge}, outputs, {}, Role.DEAL, first, maker.whole)

    def _in_turns(self, end: type[Deal | Collect], source: Port, edge: str, shares: tuple[int, ...]) -> Layer:
        """An end of copies; its kind is that of users that move in step, if there are any."""
        kinds = [sink.tensor.kind for _, sink in self.graph.consumers[edge]]
        return end(
            shape=source.tensor.shape,
            copies=len(shares),
            shares=dealt_shares(shares),
            kind=next((kind for kind in kinds if kind.hops_must_match), kinds[0]),
            recipe=self.graph.recipe,
            x_fixed=source.tensor.fixed,
        )
