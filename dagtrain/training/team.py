"""One training in several processes: copies of layers each in one of them.

All have the same graph and go through their own nodes in its order; what one makes and another reads is sent as it is
made.  So nothing but the time that it takes depends on how many there are.  The first process has the data, the host's
ends of the network, what deals frames out and collects them, and layers of one copy; through it passes what one of the
others sends another.  Sums of all copies' gradients, and the updates of such sums, are shared out among the others.
"""

from __future__ import annotations

import hashlib
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from urllib.parse import urlsplit

from dagtrain.graph.executor import Action, Array, Executor, Mode, Observer, copied_weights, judging, weight_slots
from dagtrain.graph.ir import Graph, GraphError, Node, is_delayed
from dagtrain.passes.exchange import named
from dagtrain.runs.job import Job
from dagtrain.runs.runner import Runner
from dagtrain.training.emulator import coded_edges
from dagtrain.training.post import Board, Gone, Head, Inbox, Link, Placed
from dagtrain.training.states import pack, unpack
from hdl.errors import DagtrainError, ProcessLost
from hdl.fixed import FloatArray
from hdl.layers.meaning import State
from hdl.recipe import Dealt

# the process that has the data
HOME = 0
# where all processes are on one machine
LOOPBACK = "127.0.0.1"
# until all processes have begun, which import what they need first
BEGIN_SECONDS = 120
# until what a process ended with is known
END_SECONDS = 30
# what a helper is asked for, in its inbox
ASKED = " "
# of a key that processes show each other
KEY_BYTES = 32


def parts_of(graph: Graph, processes: int) -> dict[str, int]:
    """Node -> the process that does it, from 1 on for copies.  Raises `GraphError` where there are fewer copies."""
    most = max((frames.copies for frames in graph.dealt.values()), default=1)
    if most < processes:
        cure = f"`dagtrain import --copy '*={processes}'` makes copies of all layers"
        raise GraphError(f"{processes} processes can't share the layers, which have {most} copies at most", cure)
    parts: dict[str, int] = {}
    summed: Counter[int] = Counter()
    for node in graph.computing.nodes:
        frames = graph.dealt.get(node.name) or _served(graph, node)
        if frames is not None:
            parts[node.name] = 1 + frames.copy % processes
            continue
        # what is no copy is where all is made that it reads, so that a fork is with its update
        read = [edge for sink, edge in node.inputs.items() if not is_delayed(node.layer, node.layer.port(sink))]
        makers = {parts[graph.computing.producers[edge][0].name] for edge in read}
        parts[node.name] = makers.pop() if len(makers) == 1 else HOME
        if node.layer.works_per_batch and len({*makers, HOME}) > 2:
            # sums of several copies' gradients, and so their updates, are shared out as evenly as whole tensors can be
            least = min(range(1, processes + 1), key=lambda part: summed[part])
            summed[least] += sum(port.elements for port in node.layer.sources)
            parts[node.name] = least
    return parts


def _served(graph: Graph, node: Node) -> Dealt | None:
    """The copy whose own exchange or update a node is; None if it is that of all copies, or of none."""
    frames = graph.dealt.get(node.layer_of)
    return frames if frames is not None and node.name.endswith(named("", frames.copy)) else None


class Part(Executor):
    """The nodes of one process, which gets from others what they make and it reads."""

    def __init__(self, graph: Graph, parts: Mapping[str, int], own: int, watched: frozenset[str], shared: bool) -> None:
        # to wait for others' gradients while there are own ones to be made would have all go in step
        late = _behind_sums(graph.computing, parts)
        nodes = sorted((name for name, part in parts.items() if part == own), key=late.__contains__)
        super().__init__(graph, Mode.GOLDEN, nodes)
        self.own = own
        self.inbox = Inbox()
        self.board = Board(shared)
        computing = graph.computing
        self._stepping = _routes(computing, parts, watched, parts)
        self._judging = _routes(computing, parts, watched, judging(computing))
        self._routes = self._stepping
        # weights that engines here read and updates elsewhere make
        self._slots = [
            edge
            for edge, readers in self._stepping.items()
            if own in readers
            and any(is_delayed(node.layer, sink) for node, sink in computing.consumers[edge] if parts[node.name] == own)
        ]
        # parameter -> update -> one of its slots, where copies have updates of their own
        self._updates = _updates(computing)
        self._fixed = {edge: graph.tensor(edge).fixed for edge in self._stepping}
        # edge -> the one whose array it hands on
        self._origins = {edge: _origin(computing, edge) for edge in self._stepping}
        # of the work at hand: origin -> what was sent; what was sent -> what was read
        self._put: dict[str, Array | Placed] = {}
        self._seen: dict[Placed, Array] = {}

    def post(self, to: int, head: Head, arrays: Sequence[Array | Placed]) -> None:
        """Send a message to another process."""
        raise NotImplementedError

    def _step(
        self, given: Mapping[str, Array], observe: Observer | None, instead: Mapping[str, Array] | None, last: bool
    ) -> dict[str, Array]:
        self._begin(self._stepping)
        results = super()._step(given, observe, instead, last)
        for edge in self._slots:
            self.weights[edge] = self._take(edge)
        self._begin(self._stepping)
        return results

    def _evaluate(self, given: Mapping[str, Array], frames: int, observe: Observer | None) -> dict[str, Array]:
        self._begin(self._judging)
        return super()._evaluate(given, frames, observe)

    def digests(self) -> dict[str, dict[str, str]]:
        """Parameter -> update -> digest of the weights that it made, of updates whose readers are here."""
        found: dict[str, dict[str, str]] = {}
        for key, updates in self._updates.items():
            for update, slot in updates.items():
                if slot in self.weights:
                    # as they lie in memory: int64 on every machine
                    found.setdefault(key, {})[update] = hashlib.blake2b(self.weights[slot].tobytes()).hexdigest()
        return found

    def _check_copies(self) -> None:
        """The first process does, once all have their weights."""

    def _fetch(self, action: Action, edges: dict[str, Array]) -> None:
        for _, edge in action.inputs:
            if edge not in edges:
                edges[edge] = self._take(edge)

    def _hand_on(self, edge: str, array: Array) -> None:
        readers = self._routes.get(edge, ())
        if readers:
            # a fork hands on one array
            origin = self._origins[edge]
            if origin not in self._put:
                self._put[origin] = self.board.put(origin, array, self._fixed[edge])
            for to in readers:
                self.post(to, {"edge": edge}, [self._put[origin]])

    def _take(self, edge: str) -> Array:
        _, (sent,) = self.inbox.take(edge)
        if not isinstance(sent, Placed):
            return self.board.codes(sent)
        if sent not in self._seen:
            self._seen[sent] = self.board.codes(sent)
        return self._seen[sent]

    def _begin(self, routes: dict[str, tuple[int, ...]]) -> None:
        self._routes = routes
        self._put.clear()
        self._seen.clear()


class Team(Part):
    """The first process, which has the others work."""

    def __init__(self, graph: Graph, processes: int, runner: Runner, host: str) -> None:
        """Starts ``processes`` others; they find this one at the address ``host``.  Raises `DagtrainError`."""
        self._parts = parts_of(graph, processes)
        self._watched = frozenset(coded_edges(graph))
        super().__init__(graph, self._parts, HOME, self._watched, host == LOOPBACK)
        self._links: dict[int, Link] = {}
        self._observe: Observer | None = None
        self._closed = self._dismissed = False
        # with what the others ended
        self._error: BaseException | None = None
        key = secrets.token_bytes(KEY_BYTES)
        self._listener = Listener((host, 0), authkey=key)
        words = (self._listener.address, key, graph, self._parts, self._watched)
        jobs = [Job(f"copies {part} of {processes}", help_out, (part, *words)) for part in range(1, processes + 1)]
        self._runner = threading.Thread(target=self._run, args=(runner, jobs), daemon=True)
        threading.Thread(target=self._greet, daemon=True).start()
        self._runner.start()
        self._wait(processes)

    def _wait(self, processes: int) -> None:
        """Until all others are there.  Raises `DagtrainError`."""
        end = time.monotonic() + BEGIN_SECONDS
        try:
            with self._all_there():
                for part in range(1, processes + 1):
                    self.inbox.take(f"begun {part}", end - time.monotonic())
        except TimeoutError:
            there = len(self._links)
            self.close()
            raise DagtrainError(
                f"only {there} of {processes} processes have begun within {BEGIN_SECONDS} s",
                "have the scheduler give as many workers, each of a thread, which reach this machine",
            ) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the others."""
        self._closed = True
        self._dismiss()
        # wakes the thread that waits for more of them
        with suppress(OSError), socket.create_connection(self._listener.address, END_SECONDS):
            pass
        self._runner.join(END_SECONDS)
        self.board.close()

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _step(
        self, given: Mapping[str, Array], observe: Observer | None, instead: Mapping[str, Array] | None, last: bool
    ) -> dict[str, Array]:
        assert instead is None
        with self._all_there(observe):
            self._ask({"do": "step", "last": last})
            results = super()._step(given, observe, None, last)
            self._see(self._stepping)
        return results

    def _evaluate(self, given: Mapping[str, Array], frames: int, observe: Observer | None) -> dict[str, Array]:
        with self._all_there(observe):
            self._ask({"do": "evaluate", "frames": frames})
            results = super()._evaluate(given, frames, observe)
            self._see(self._judging)
            self._answers()
        return results

    def snapshot(self) -> tuple[dict[str, State], dict[str, Array]]:
        states, weights = dict(self.states), dict(self.weights)
        with self._all_there():
            self._ask({"do": "tell"})
            for head, arrays in self._answers():
                others = unpack(head["state"], _by_name(arrays))
                states |= others["states"]
                weights |= others["weights"]
        # in the order of a single process
        slots = weight_slots(self.graph)
        return {name: states[name] for name in self._parts}, {slot: weights[slot] for slot in slots}

    def restore(self, states: dict[str, State], weights: dict[str, Array], batches: int) -> None:
        with self._all_there():
            for part in self._links:
                own = {
                    "states": {name: state for name, state in states.items() if self._parts[name] == part},
                    "weights": weights,
                    "batches": batches,
                }
                arrays: dict[str, Array] = {}
                document = pack(own, arrays)
                self.post(part, {"do": "take", "state": document}, [*arrays.values()])
            self._answers()
        own_states = {name: states[name] for name in self.states}
        super().restore(own_states, {slot: weights[slot] for slot in self.weights}, batches)

    def parameters(self) -> dict[str, FloatArray]:
        alone = Executor(self.graph)
        alone.restore(*self.snapshot(), self.batches)
        return alone.parameters()

    def post(self, to: int, head: Head, arrays: Sequence[Array | Placed] = ()) -> None:
        self._links[to].send(head, arrays)

    def _take(self, edge: str) -> Array:
        array = super()._take(edge)
        if edge in self._watched and self._observe is not None:
            self._observe(edge, array)
        return array

    def _see(self, routes: Mapping[str, tuple[int, ...]]) -> None:
        """Show what is watched, made elsewhere and read by nobody here."""
        read = {edge for action in self._actions for _, edge in action.inputs}
        for edge, readers in routes.items():
            if HOME in readers and edge in self._watched and edge not in read:
                self._take(edge)

    @contextmanager
    def _all_there(self, observe: Observer | None = None) -> Iterator[None]:
        """Where others are asked for something: if one is gone, with what it ended says its error."""
        self._observe = observe
        try:
            yield
        except Gone as gone:
            # without the others a runner does not end
            self._dismiss()
            self._runner.join(END_SECONDS)
            raise self._error or ProcessLost(
                "a process of the training was ended from outside, as when memory runs out",
                "give it more memory; the same command goes on from the last checkpoint",
            ) from gone
        finally:
            self._observe = None

    def _dismiss(self) -> None:
        self._dismissed = True
        for link in self._links.values():
            link.end()

    def _ask(self, head: Head) -> None:
        for part in self._links:
            self.post(part, head)

    def _answers(self) -> list[tuple[Head, list[Array | Placed]]]:
        """What each of the others says when it is done."""
        return [self.inbox.take(f"done {part}") for part in self._links]

    def _check_copies(self) -> None:
        with self._all_there():
            digests = [self.digests(), *(head["digests"] for head, _ in self._answers())]
        for key in self._updates:
            found = {update: digest for each in digests for update, digest in each.get(key, {}).items()}
            if len({*found.values()}) > 1:
                raise GraphError(f"copies of {key} differ after batch {self.batches}: {', '.join(sorted(found))}")

    # ---- in threads of their own

    def _run(self, runner: Runner, jobs: Sequence[Job[None]]) -> None:
        """Have the others' jobs done; remember what went wrong."""
        try:
            for outcome in runner.outcomes(jobs):
                self._error = self._error or outcome.error
        except BaseException as fault:  # raised again by who waits for the job
            self._error = self._error or fault
        self.inbox.fail(Gone())

    def _greet(self) -> None:
        """Take up links to the others as they come."""
        with self._listener:
            while not self._closed:
                # who knows no key, or goes away
                with suppress(AuthenticationError, EOFError, OSError):
                    link = Link(self._listener.accept())
                    threading.Thread(target=self._read, args=(link,), daemon=True).start()

    def _read(self, link: Link) -> None:
        """Sort what comes on a link."""
        try:
            head, _ = link.receive()
            self._links[head["part"]] = link
            if self._dismissed:
                # a second try of who was lost
                link.end()
            self.inbox.put(f"begun {head['part']}", head, [])
            while True:
                head, arrays = link.receive()
                if head.get("to", HOME) == HOME:
                    self.inbox.put(head.get("edge") or f"done {head['part']}", head, arrays)
                else:
                    self._links[head["to"]].send(head, arrays)
        except Gone as gone:
            self.inbox.fail(gone)


def help_out(
    part: int, address: tuple[str, int], key: bytes, graph: Graph, parts: Mapping[str, int], watched: frozenset[str]
) -> None:
    """The job of one of the others: what the first process asks for, until it ends the connection."""
    try:
        link = Link(Client(address, authkey=key))
    except OSError:
        # a second try, after all has ended
        return
    helper = _Helper(graph, parts, part, watched, address[0] == LOOPBACK, link)
    try:
        helper.work()
    except Gone:
        pass
    finally:
        link.end()
        helper.board.close()


class _Helper(Part):
    """One of the others."""

    def __init__(
        self, graph: Graph, parts: Mapping[str, int], own: int, watched: frozenset[str], shared: bool, link: Link
    ) -> None:
        super().__init__(graph, parts, own, watched, shared)
        self._link = link

    def work(self) -> None:
        """All that is asked for.  Raises `Gone` at the end."""
        threading.Thread(target=self._read, daemon=True).start()
        self.post(HOME, {"part": self.own})
        while True:
            head, arrays = self.inbox.take(ASKED)
            answer: Head = {"part": self.own}
            told: dict[str, Array] = {}
            match head["do"]:
                case "step":
                    self.step({}, last=head["last"])
                    answer["digests"] = self.digests()
                case "evaluate":
                    self._evaluate({}, head["frames"], None)
                case "tell":
                    states, weights = self.snapshot()
                    answer["state"] = pack({"states": states, "weights": weights}, told)
                case "take":
                    given = unpack(head["state"], _by_name(arrays))
                    weights = {slot: given["weights"][slot] for slot in self.weights}
                    self.restore(given["states"], weights, given["batches"])
            self.post(HOME, answer, [*told.values()])

    def post(self, to: int, head: Head, arrays: Sequence[Array | Placed] = ()) -> None:
        self._link.send({**head, "to": to}, arrays)

    def _read(self) -> None:
        try:
            while True:
                head, arrays = self._link.receive()
                self.inbox.put(head.get("edge", ASKED), head, arrays)
        except Gone as gone:
            self.inbox.fail(gone)


def _by_name(arrays: Sequence[Array | Placed]) -> dict[str, Array]:
    """Arrays as `pack` names them, which are sent as they are."""
    return {f"a{number}": array for number, array in enumerate(arrays) if not isinstance(array, Placed)}


def _routes(
    graph: Graph, parts: Mapping[str, int], watched: Collection[str], names: Collection[str]
) -> dict[str, tuple[int, ...]]:
    """Edge -> processes that get it from the one that makes it, where nodes with these names are at work."""
    found: dict[str, tuple[int, ...]] = {}
    for edge, (maker, _) in graph.producers.items():
        if maker.name in names:
            readers = {parts[node.name] for node, _ in graph.consumers[edge] if node.name in names}
            if edge in watched:
                readers.add(HOME)
            readers.discard(parts[maker.name])
            if readers:
                found[edge] = tuple(sorted(readers))
    return found


def _behind_sums(graph: Graph, parts: Mapping[str, int]) -> set[str]:
    """Nodes whose gradients come from others, as sums of copies' do, and all that wait for them within a batch."""
    found: set[str] = set()
    for node in graph.nodes:
        read = [edge for sink, edge in node.inputs.items() if not is_delayed(node.layer, node.layer.port(sink))]
        makers = {graph.producers[edge][0].name for edge in read}
        from_others = any(parts[maker] != parts[node.name] for maker in makers)
        if (node.layer.works_per_batch and from_others) or not makers.isdisjoint(found):
            found.add(node.name)
    return found


def _origin(graph: Graph, edge: str) -> str:
    maker, source = graph.maker(edge)
    return maker.outputs[source.name]


def _updates(graph: Graph) -> dict[str, dict[str, str]]:
    """Parameter -> update -> one of the slots of the weights that it makes, where there are several updates."""
    found = {}
    for key, slots in copied_weights(graph).items():
        makers = {graph.maker(slot)[0].name: slot for slot in slots}
        if len(makers) > 1:
            found[key] = makers
    return found


def address_towards(scheduler: str | None) -> str:
    """The address of this machine as workers of a scheduler see it, or as processes here do.  Raises `DagtrainError`
    where nothing can be at the scheduler's."""
    if scheduler is None:
        return LOOPBACK
    try:
        there = urlsplit(scheduler if "//" in scheduler else f"//{scheduler}")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # nothing is sent
            probe.connect((there.hostname, there.port or 1))
            name: str = probe.getsockname()[0]
    except (OSError, ValueError, TypeError) as error:
        raise DagtrainError(
            f"--scheduler {scheduler} is no address that this machine reaches ({error})", "write tcp://10.0.0.1:8786"
        ) from error
    return name
