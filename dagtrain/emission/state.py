"""State of a cluster between an executor, as a checkpoint has it, and the words that devices load and dump.

What the words are stands in `hdl.engine.weights.records`, how they are used in docs/state.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dagtrain.graph.executor import Executor
from dagtrain.graph.ir import Graph, Node, is_delayed
from hdl.engine.weights.records import Kind, Record, StateError, records_of, start
from hdl.fixed import FloatArray
from hdl.layers.capabilities import going_on
from hdl.layers.meaning import State
from hdl.tensor import Kind as Edges

LOAD_AGAIN = "reset the devices and load a checkpoint"


@dataclass(frozen=True, kw_only=True)
class StateLink:
    """A node in the chain of a device."""

    node: str
    # of its LOAD and its STATE; 0: it has counters alone
    words: int


@dataclass(frozen=True)
class Dumped:
    """The state of some devices behind so many batches."""

    batches: int
    # node -> words
    words: Mapping[str, tuple[int, ...]]

    def __or__(self, other: Dumped) -> Dumped:
        """With that of other devices, behind as many batches."""
        if self.batches != other.batches:
            raise StateError(f"states behind {self.batches} and {other.batches} batches are no checkpoint", LOAD_AGAIN)
        return Dumped(self.batches, {**self.words, **other.words})


def links_of(nodes: Sequence[Node], graph: Graph) -> tuple[StateLink, ...]:
    """Of the nodes of a folded graph that are links of a chain, in its order; stores are none."""
    return tuple(
        StateLink(node=node.name, words=len(node.layer.state_words(node.layer.start(graph.initial(node)))))
        for node in nodes
        if not node.layer.is_store
    )


def rounds(staleness: int) -> int:
    """How often START and LOADs are sent."""
    return 2 if staleness else 1


def load_records(executor: Executor, links: Sequence[StateLink]) -> list[Record]:
    """What a device with this chain is sent behind its reset to go on as ``executor``, of the folded graph, does."""
    graph = executor.graph
    states = [executor.states]
    if rounds(graph.recipe.staleness) > 1:
        states.insert(0, executor.states | _earlier(executor))
    found: list[Record] = []
    for each in states:
        found.append(start(executor.batches, graph.recipe.batch))
        found += [
            Record(Kind.LOAD, tuple(graph.by_name[link.node].layer.state_words(each[link.node])))
            for link in links
            if link.words
        ]
    return found


def _earlier(executor: Executor) -> dict[str, State]:
    """States of updates that show the weights before the newest ones, which the first frames read; before the first
    batch these are the newest ones too."""
    values = executor.parameters()
    for node in executor.graph.computing.nodes:
        for sink, codes in node.layer.stale(executor.states[node.name]).items():
            values[node.parameters[sink]] = node.layer.port(sink).tensor.fixed.decode(codes)
    return {
        node.name: node.layer.start({port.name: values[node.parameters[port.name]] for port in node.layer.sources})
        for node in executor.graph.computing.nodes
        if _sends_weights(node)
    }


def held(executor: Executor) -> Dumped:
    """What devices hold that stand where an executor of the folded graph does."""
    nodes = executor.graph.by_name
    return Dumped(
        executor.batches,
        {
            link.node: tuple(nodes[link.node].layer.state_words(executor.states[link.node]))
            for link in links_of(executor.graph.nodes, executor.graph)
            if link.words
        },
    )


def differences(found: Dumped, wanted: Dumped, elsewhere: str) -> list[str]:
    """What differs in states behind as many batches, a node each; ``elsewhere``: whose the wanted one is."""
    told = []
    for node, own in wanted.words.items():
        other = found.words.get(node, ())
        wrong = [at for at, (a, b) in enumerate(zip(own, other, strict=False)) if a != b]
        where = f"behind batch {wanted.batches}"
        if len(own) != len(other):
            told.append(f"{where}: {len(other)} words of {node} where {elsewhere} has {len(own)}")
        elif wrong:
            told.append(
                f"{where}: {len(wrong)} of {len(own)} words of {node}, the first at {wrong[0]}: "
                f"{other[wrong[0]]:#x} where {elsewhere} has {own[wrong[0]]:#x}"
            )
    return told


def dumped(words: Sequence[int], links: Sequence[StateLink], batches: int) -> Dumped:
    """The state in what came out of a device's chain, from a DUMP's first STATE to the DUMP itself, behind ``batches``
    batches.  Raises `StateError` where it is not that of this chain."""
    *states, last = [*records_of(words)] or [Record(Kind.DUMP)]
    wanted = [link for link in links if link.words]
    came = [(record.kind, len(record.words)) for record in states]
    if last != Record(Kind.DUMP) or came != [(Kind.STATE, link.words) for link in wanted]:
        said = ", ".join(f"{record.kind.name} of {len(record.words)} words" for record in (*states, last))
        raise StateError(f"a device dumped {said}, not the state of {len(wanted)} nodes and a DUMP", LOAD_AGAIN)
    return Dumped(batches, {link.node: record.words for link, record in zip(wanted, states, strict=True)})


def restored(graph: Graph, newest: Dumped, earlier: Dumped | None = None) -> Executor:
    """An executor of the folded graph that goes on as the devices do.

    ``earlier`` was dumped a batch before.  Without it, at staleness above 0, the first batch reads the newest weights
    alone, as that of a training does.  Raises `StateError` where nodes are missing or copies differ."""
    nodes = [node for node in graph.nodes if node.name in newest.words]
    missing = [link.node for link in links_of(graph.nodes, graph) if link.words and link.node not in newest.words]
    if missing:
        raise StateError(f"a checkpoint lacks the state of {', '.join(missing)}", "dump it from all devices")
    if earlier is not None and (newest.batches - earlier.batches, {*earlier.words}) != (1, {*newest.words}):
        raise StateError(
            f"a state behind {earlier.batches} batches is not that before one behind {newest.batches}",
            "dump behind two batches in succession",
        )
    states = {node.name: _state(graph, node, newest) for node in nodes}
    _check_copies(nodes, newest)
    begun = replace(
        graph,
        nodes=tuple(replace(node, layer=going_on(node.layer, newest.batches)) for node in graph.nodes),
        parameters={**graph.parameters, **_weights(nodes, states)},
        carried={node.name: node.layer.carried(states[node.name]) for node in nodes},
    )
    executor = Executor(begun)
    for node in nodes:
        # to the bit, with what `carried` has not
        node.layer.with_state_words(executor.states[node.name], newest.words[node.name])
    if earlier is not None and graph.recipe.staleness:
        before = _weights(nodes, {node.name: _state(graph, node, earlier) for node in nodes})
        for node in graph.computing.nodes:
            sinks = [port for port in node.layer.sinks if is_delayed(node.layer, port)]
            codes = {p.name: p.tensor.fixed.encode(before[node.parameters[p.name]]) for p in sinks}
            if codes:
                node.layer.keep_stale(executor.states[node.name], codes)
    return executor


def _sends_weights(node: Node) -> bool:
    return any(port.tensor.kind is Edges.WEIGHT and port.name in node.parameters for port in node.layer.sources)


def _state(graph: Graph, node: Node, found: Dumped) -> State:
    state = node.layer.start(graph.initial(node))
    node.layer.with_state_words(state, found.words[node.name])
    return state


def _check_copies(nodes: Sequence[Node], found: Dumped) -> None:
    """Copies that learn apart have equal weights and momenta behind every batch."""
    first: dict[str, str] = {}
    for node in nodes:
        keys = [node.parameters[port.name] for port in node.layer.sources] if _sends_weights(node) else []
        for key in keys:
            other = first.setdefault(key, node.name)
            if found.words[node.name] != found.words[other]:
                raise StateError(
                    f"copies of {key} differ behind {found.batches} batches: {other} and {node.name}", LOAD_AGAIN
                )


def _weights(nodes: Sequence[Node], states: Mapping[str, State]) -> dict[str, FloatArray]:
    """By key, what engines see of states."""
    return {
        node.parameters[port]: node.layer.port(port).tensor.fixed.decode(codes)
        for node in nodes
        for port, codes in node.layer.shown(states[node.name]).items()
    }
