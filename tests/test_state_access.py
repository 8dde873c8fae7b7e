"""State by streams: what is loaded trains on as an uninterrupted training does, and what is dumped is a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from myhdl import Signal, always, always_comb, block, intbv

from dagtrain.cosim.cluster import Feeds
from dagtrain.cosim.compare import state_differences
from dagtrain.cosim.emitted import EmittedModule
from dagtrain.cosim.parts import StateLog
from dagtrain.cosim.simulator import Simulator
from dagtrain.cosim.testbench import emitted_cluster, simulate_under_myhdl, state_port
from dagtrain.emission.delivered import Delivered
from dagtrain.emission.design import ClusterDesign, design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.manifest import StateRecord, read_manifest
from dagtrain.emission.memory import MemoryModel
from dagtrain.emission.modules import ModuleLibrary, verilog_name
from dagtrain.emission.state import Dumped, StateLink, dumped, load_records, restored
from dagtrain.flow.emit_step import EmitOptions
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Executor
from dagtrain.graph.ir import Graph
from dagtrain.passes.access_state import access_state
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.exchange import Exchanging
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.freeze_layers import freeze_layers
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.remote_memory import remote_memory
from dagtrain.passes.replicate import NormSync, replicate
from dagtrain.progress import Silent
from dagtrain.training.emulator import Emulator
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.convert.netlist import Direction
from hdl.engine.codec import feedback, residuals_access
from hdl.engine.codec.collective import Collective
from hdl.engine.codec.integer_codec import Cut
from hdl.engine.weights import access, update, update_access, update_outside_access
from hdl.engine.weights.records import Kind, Record, StateError, records_of, start, words_of
from hdl.errors import DagtrainError, DeadlockError
from hdl.layers.base import Layer
from hdl.layers.beats import to_beats
from hdl.layers.capabilities import of_copy, with_loaded_state
from hdl.layers.exchange.exchange import Exchange
from hdl.layers.pointwise import dropout
from hdl.layers.pointwise.bias import BiasGradient
from hdl.layers.registry import load_layers
from hdl.layers.storage import Home
from hdl.layers.wiring.update import Update
from hdl.recipe import LoadedRecipe, Recipe
from hdl.simulate import Backend, Run, check_no_x, run_streams
from hdl.simulate.cosimulation import CosimulationProgram, Engine
from tests.cosim_support import DEVICES, TINY_CYCLES, deliver, placement, simulate_design
from tests.flow_support import new_case, quick_costs
from tests.layer_support import assert_equal_bits, design_of, make_case, traffic
from tests.suites import quick

LIBRARY = ModuleLibrary(cache_folder() / "modules")
BATCH = 2
# batches behind the first load
BEHIND = 3


def plain_net(staleness: int) -> Graph:
    """A streaming graph of all kinds of state: weights, statistics, random bits of frames, a rate that changes."""
    recipe = Recipe(batch=BATCH, staleness=staleness, weight_decay=1e-3, learning_rate=0.1, warm_up=20)
    training = differentiate(forward_net(recipe))
    return insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(2)]))


def forward_net(recipe: Recipe) -> Graph:
    """It before it was differentiated."""
    builder = GraphBuilder("plain", recipe, seed=3)
    x = builder.relu(builder.norm(builder.conv(builder.input(4, 4, 1), 2, 3, padding=1)))
    x = builder.dropout(x, 0.3)
    return builder.classify(builder.gemm(builder.global_average_pool(x), 3))


def copied_net(staleness: int) -> Graph:
    """A norm whose scale stays as it is, and copies of layers with exchanges that keep residuals, and with random bits
    of frames."""
    builder = GraphBuilder("copied", Recipe(batch=BATCH, staleness=staleness, learning_rate=0.1), seed=3)
    x = builder.relu(builder.norm(builder.conv(builder.input(4, 4, 1), 2, 3, padding=1)))
    x = builder.dropout(builder.conv(x, 2, 1), 0.3)
    forward = builder.classify(builder.gemm(builder.global_average_pool(x), 3))
    training = differentiate(freeze_layers(forward, ["norm1"]))
    graph = calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(2)])
    way = Exchanging(Collective.CHAIN, (4, 7, Cut.STOCHASTIC), feedback=True)
    return insert_forks(replicate(graph, {"conv2": 2, "dropout*": 2, "gemm1": 2}, way))


def remote_net(staleness: int) -> Graph:
    """The same, with residuals in stores."""
    graph = copied_net(staleness)
    return remote_memory(graph, [node.name for node in graph.nodes if isinstance(node.layer, Exchange)])


def apart_net(staleness: int) -> Graph:
    """Copies of all layers, of which each norm has statistics of its own frames."""
    builder = GraphBuilder("apart", Recipe(batch=BATCH, staleness=staleness, learning_rate=0.1), seed=3)
    x = builder.relu(builder.norm(builder.conv(builder.input(4, 4, 1), 2, 3, padding=1)))
    training = differentiate(builder.classify(builder.gemm(builder.global_average_pool(x), 3)))
    graph = calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(2)])
    return insert_forks(replicate(graph, {"*": 2}, norm_sync=NormSync.APART))


def feeds_of(graph: Graph, batch: int) -> Feeds:
    return synthetic_feeds(graph, BATCH, 100 + batch)


def state_of(executor: Executor) -> Dumped:
    """What devices that do as the executor does would dump."""
    nodes = executor.graph.computing.nodes
    found = {node.name: tuple(node.layer.state_words(executor.states[node.name])) for node in nodes}
    return Dumped(executor.batches, {name: words for name, words in found.items() if words})


# ---- records


def test_records_are_read_back_from_their_words() -> None:
    records = [start(3, 4), Record(Kind.LOAD, (5, 1 << 63, 0)), Record(Kind.RUN, (2,)), Record(Kind.DUMP)]
    assert list(records_of(words_of(records))) == records
    assert start((1 << 32) + 3, 1 << 31).words == (3 | (1 << 31) << 32,)


@pytest.mark.parametrize(
    "words", [[9], [0], [1 << 32 | 2], [2 << 32 | 2, 1], [1 << 8 | 4], [4, 1 << 40 | 2]], ids=lambda words: f"{words}"
)
def test_words_that_are_no_records_are_refused(words: list[int]) -> None:
    with pytest.raises(StateError, match=r"^a stream of state is damaged: word \d of \d, 0x[0-9a-f]+, is no header"):
        list(records_of(words))


# ---- what a co-simulation finds at the end of a chain


def test_what_leaves_a_chain_otherwise_than_in_the_emulator_is_a_mismatch() -> None:
    golden = Executor(plain_net(1))
    golden.step(feeds_of(golden.graph, 0))
    states = state_of(golden).words
    links = tuple(StateLink(node=node, words=len(words)) for node, words in states.items())
    record = StateRecord(
        load="load", dump="dump", batch=BATCH, rounds=2, links=(*links, StateLink(node="counts", words=0))
    )
    begun = [start(0, BATCH)] * 2 + [Record(Kind.RUN, (1,))]
    came = [*begun, *(Record(Kind.STATE, words) for words in states.values()), Record(Kind.DUMP)]
    log = StateLog("words.txt", "fpga0", record, len(words_of(came)), "dut.fpga0_state_dump")
    total = sum(map(len, states.values()))
    assert state_differences(golden, log, words_of(came)) == (total, [])
    node, words = next(iter(states.items()))
    for at in (0, len(words) - 1):
        wrong = [*words[:at], words[at] ^ 1 << 63, *words[at + 1 :]]
        changed = [*begun, Record(Kind.STATE, tuple(wrong)), *came[4:]]
        _, (what,) = state_differences(golden, log, words_of(changed))
        assert what.startswith(f"fpga0: dumped behind batch 1: 1 of {len(words)} words of {node}, the first at {at}: ")
    # a state less, two in another order, a run that was lost, half a record
    for found in (came[:3] + came[4:], [*begun, came[4], came[3], *came[5:]], came[1:], came[:2] + came[3:]):
        counted, (what,) = state_differences(golden, log, words_of(found))
        assert counted == 0
        assert what.startswith("fpga0: ")
    assert "is no header of a record" in state_differences(golden, log, words_of(came)[:-2])[1][0]


# ---- checkpoints of the emulator and of devices


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_an_executor_restored_from_words_goes_on_as_if_nothing_had_been(staleness: int, tmp_path: Path) -> None:
    graph = plain_net(staleness)
    emulator = Emulator(graph)
    golden = emulator.executor
    states = [state_of(golden)]
    for batch in range(BEHIND):
        golden.step(feeds_of(graph, batch))
        states.append(state_of(golden))
    # by way of a checkpoint's file
    kept = Emulator(graph)
    kept.executor = restored(graph, states[-1], states[-2])
    kept.save(tmp_path / "state.npz")
    anew = Emulator(graph)
    anew.load(tmp_path / "state.npz")
    begun = restored(graph, states[-1])
    same = [found.executor for found in (kept, anew)]
    for batch in range(BEHIND, BEHIND + 2):
        wanted = golden.step(feeds_of(graph, batch))
        begun.step(feeds_of(graph, batch))
        for executor in same:
            for name, codes in executor.step(feeds_of(graph, batch)).items():
                np.testing.assert_array_equal(codes, wanted[name])
            assert state_of(executor) == state_of(golden)
    # without the weights of the batch before, the first frames read newer ones
    assert (state_of(begun) == state_of(golden)) == (staleness == 0)


def test_states_of_other_devices_or_batches_are_refused() -> None:
    graph = plain_net(1)
    golden = Executor(graph)
    first = state_of(golden)
    golden.step(feeds_of(graph, 0))
    newest = state_of(golden)
    some = dict(list(newest.words.items())[1:])
    (missing,) = newest.words.keys() - some.keys()
    with pytest.raises(StateError, match=f"lacks the state of {missing}; dump it from all devices"):
        restored(graph, Dumped(1, some))
    with pytest.raises(StateError, match="behind 1 batches is not that before one behind 1"):
        restored(graph, newest, newest)
    with pytest.raises(StateError, match="behind 1 and 0 batches are no checkpoint"):
        newest | first
    links = StateRecord(load="load", dump="dump", batch=2, rounds=1, links=()).links
    assert dumped(words_of([Record(Kind.DUMP)]), links, 4) == Dumped(4, {})
    with pytest.raises(StateError, match="dumped LOAD of 1 words, DUMP of 0 words, not the state of 0 nodes"):
        dumped(words_of([Record(Kind.LOAD, (1,)), Record(Kind.DUMP)]), links, 4)


def test_copies_whose_weights_drift_apart_are_no_checkpoint() -> None:
    graph = access_state(fold_graph(copied_net(0), TINY_CYCLES))
    golden = Executor(graph)
    golden.step(feeds_of(graph, 0))
    found = state_of(golden)
    assert restored(graph, found).batches == 1
    wrong = {**found.words, "gemm1.w.update@1": tuple(word ^ 1 for word in found.words["gemm1.w.update@1"])}
    with pytest.raises(
        StateError, match=r"copies of gemm1\.w differ behind 1 batches: gemm1.w.update@0 and gemm1.w.upd"
    ):
        restored(graph, Dumped(1, wrong))


def test_state_that_cannot_be_loaded_is_named_with_its_reason() -> None:
    with pytest.raises(DagtrainError) as caught:
        access_state(fold_graph(copied_net(1), TINY_CYCLES))
    message = str(caught.value)
    assert "conv2@1: is one of 2 copies, some of which get none of a batch's 1 stale frames; give the recipe" in message
    assert {problem.where.split(".")[0] for problem in caught.value.problems} >= {"conv2@0", "conv2@1", "gemm1@1"}
    assert access_state(fold_graph(copied_net(0), TINY_CYCLES))
    assert access_state(fold_graph(copied_net(2), TINY_CYCLES))


# ---- devices


@dataclass
class Cluster:
    """Updates on another FPGA than engines, both with streams of state, compiled once."""

    design: ClusterDesign
    delivered: Delivered
    folder: Path
    program: CosimulationProgram | None = None

    @cached_property
    def module(self) -> EmittedModule:
        return emitted_cluster(self.folder / "emit", self.folder / "bench", NetworkModel(latency_cycles=20))

    @property
    def graph(self) -> Graph:
        return self.design.graph

    @property
    def states(self) -> dict[str, StateRecord]:
        """By top."""
        found = {device.manifest.top: device.manifest.state for device in self.delivered.devices}
        return {top: state for top, state in found.items() if state is not None}

    def train(self, begin: Executor, batches: Sequence[int], seed: int, patch: pytest.MonkeyPatch) -> Trained:
        """Load a state, train these batches, and dump behind each."""
        build = EmittedModule.build

        def build_once(module: EmittedModule, *arguments: Any, **options: Any) -> CosimulationProgram:
            self.program = self.program or build(module, *arguments, **{**options, "optimise": False})
            return self.program

        patch.setattr(EmittedModule, "build", build_once)
        inputs: dict[str, list[int]] = {}
        counts: dict[str, int] = {}
        said = [record for _ in batches for record in (Record(Kind.RUN, (1,)), Record(Kind.DUMP))]
        for top, state in self.states.items():
            inputs[state_port(top, state.load)] = words_of([*load_records(begin, state.links), *said])
            dump_words = 1 + sum(1 + link.words for link in state.links if link.words)
            counts[state_port(top, state.dump)] = 2 * state.rounds + len(batches) * (2 + dump_words)
        for device in self.delivered.devices:
            for host in device.manifest.host_ports:
                if host.direction is Direction.IN:
                    layer = self.graph.by_name[host.node].layer
                    inputs[verilog_name(host.node)] = host_beats(
                        layer, [feeds_of(self.graph, b)[host.node] for b in batches]
                    )
                else:
                    counts[verilog_name(host.node)] = host.beats_per_frame * BATCH * len(batches)
        run = self.module.run(
            inputs, counts, self.folder / "bench", engine=Engine.VERILATOR, seed=seed, max_cycles=6_000
        )
        return Trained(self, run, begin.batches, len(batches))


def host_beats(layer: Layer, values: Sequence[Any]) -> list[int]:
    port = layer.sources[0]
    return [beat for value in values for beat in to_beats(layer, port.name, port.tensor.fixed.encode(value))]


@dataclass(frozen=True)
class Trained:
    """What came out of a cluster."""

    cluster: Cluster
    run: Run
    behind: int
    batches: int

    @property
    def states(self) -> list[Dumped]:
        """Behind each batch, of all devices; what stands around it in the chains is what was sent."""
        found = [Dumped(self.behind + 1 + batch, {}) for batch in range(self.batches)]
        for top, state in self.cluster.states.items():
            records = list(records_of(self.run.outputs[state_port(top, state.dump)]))
            assert records[: state.rounds] == [start(self.behind, BATCH)] * state.rounds
            rest = records[state.rounds :]
            size = len(rest) // self.batches
            for batch in range(self.batches):
                run, *given = rest[batch * size : (batch + 1) * size]
                assert run == Record(Kind.RUN, (1,))
                found[batch] |= dumped(words_of(given), state.links, found[batch].batches)
        return found

    def results(self) -> Mapping[str, list[int]]:
        return {
            verilog_name(host.node): self.run.outputs[verilog_name(host.node)]
            for device in self.cluster.delivered.devices
            for host in device.manifest.host_ports
            if host.direction is Direction.OUT
        }


NETS: Mapping[str, Callable[[], Graph]] = {
    "plain": lambda: plain_net(1),
    "copies": lambda: copied_net(2),
    "residuals in stores": lambda: remote_net(2),
    "norms apart": lambda: apart_net(2),
}


@pytest.fixture(scope="module", params=quick(1, NETS))
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    graph = NETS[request.param]()
    folder = tmp_path_factory.mktemp("state")
    design = design_cluster(
        graph, placement(graph, "updates apart"), DEVICES, TINY_CYCLES, LIBRARY, word_bits=64, state_access=True
    )
    return Cluster(design, deliver(design, LIBRARY, folder / "emit"), folder)


@pytest.mark.xdist_group("state access")
def test_devices_load_train_and_dump_as_an_uninterrupted_training(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    graph = cluster.graph
    emulator = Emulator(graph)
    golden, behind = emulator.executor, []
    for batch in range(BEHIND):
        golden.step(feeds_of(graph, batch))
    emulator.save(tmp_path / "state.npz")
    checkpoint = Emulator(graph)
    checkpoint.load(tmp_path / "state.npz")
    results: dict[str, list[int]] = {}
    for batch in range(BEHIND, BEHIND + 3):
        for name, codes in golden.step(feeds_of(graph, batch)).items():
            layer = graph.by_name[name].layer
            results.setdefault(verilog_name(name), []).extend(to_beats(layer, layer.sinks[0].name, codes))
        behind.append(state_of(golden))

    # images have the weights of the model, not of the checkpoint
    first = cluster.train(checkpoint.executor, [BEHIND, BEHIND + 1], 5, monkeypatch)
    assert first.states == behind[:2]
    beats = {name: len(found) // 3 for name, found in results.items()}
    assert first.results() == {name: found[: 2 * beats[name]] for name, found in results.items()}

    # reset, and on from what they dumped
    begin = restored(graph, first.states[1], first.states[0])
    second = cluster.train(begin, [BEHIND + 2], 6, monkeypatch)
    assert second.states == behind[2:]
    assert second.results() == {name: found[2 * beats[name] :] for name, found in results.items()}


@pytest.mark.slow
@pytest.mark.xdist_group("state access")
def test_co_simulation_loads_what_was_emitted(cluster: Cluster, tmp_path: Path) -> None:
    feeds = [feeds_of(cluster.graph, 0)]
    run = simulate_design(
        cluster.design, LIBRARY, feeds, tmp_path, Simulator.ICARUS, NetworkModel(latency_cycles=20), 32, 3, Silent()
    )
    assert run.mismatches == ()
    # beside memories, which have been compared too, all words that left the chains
    files = list(tmp_path.rglob("*.words.txt"))
    assert len(files) == len([device for device in cluster.delivered.devices if device.manifest.state])
    left = sum(len(path.read_text().split()) for path in files)
    held = sum(len(words) for words in state_of(Executor(cluster.graph)).words.values())
    assert left > held > 0
    with pytest.raises(DagtrainError, match="begins with state that a host loads"):
        simulate_under_myhdl(
            cluster.delivered, cluster.graph, LIBRARY, feeds, tmp_path, NetworkModel(), MemoryModel(), 0.0, 1
        )


def test_only_known_ways_to_state_are_taken() -> None:
    with pytest.raises(DagtrainError, match=r"^--state-access port is unknown; choose one of none, ports$"):
        EmitOptions(state_access="port")


@pytest.mark.slow
def test_the_command_emits_ports_where_they_are_asked_for(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        quick_costs(patch)
        case = new_case(tmp_path).must("import", "place")
    assert case.step("emit", "--state-access", "port").code == 1
    assert case.step("emit", "--state-access", "ports").code == 0
    manifests = [read_manifest(path) for path in sorted((case.out / "emit").glob("*/manifest.json"))]
    links = [link for found in manifests for link in (found.state.links if found.state else ())]
    assert sorted(link.node for link in links if link.words) == ["c_node.w.update", "y_node.w.update"]
    assert sorted(link.node for link in links if not link.words) == ["c_node.gradient", "y_node.gradient"]
    assert "unchanged" in case.step("emit", "--state-access", "ports").out
    outcome = case.step("cosim", "--batches", 1, "--simulator", "icarus", "--no-efficiency")
    assert outcome.code == 0, outcome.error
    assert "every bit equal" in outcome.out
    assert "emit: done" in case.step("emit").out
    assert '"state"' not in next((case.out / "emit").glob("*/manifest.json")).read_text()


# ---- layers

# of two versions of weights at the beginning, in one place as well; hops of all kinds, with and without residuals;
# statistics of some lanes after others, of frames of lag, with and without errors for what is upstream, beside frozen
# scales; rates of a schedule, a momentum that looks ahead; dropped frames
LOADED = {
    "Bias": (0,),
    "Conv": (3,),
    "ConvPair": (2,),
    "DropoutError": (0,),
    "Exchange": (0, 9, 1, 2, 3, 4, 5, 6, 7, 8),
    "OnlineNorm": (0, 9, 13),
    "OnlineNormBackward": (6, 9, 10, 15),
    "StochasticDepth": (0,),
    "Update": (6, 7, 9, 10),
}


@pytest.mark.parametrize(
    ("kind", "example"),
    [
        pytest.param(kind, example, marks=[pytest.mark.slow] * (at > 1))
        for kind, found in LOADED.items()
        for at, example in enumerate(found)
    ],
)
def test_a_layer_whose_state_is_loaded_goes_on_to_the_bit(kind: str, example: int) -> None:
    layer = with_loaded_state(load_layers()[kind].examples()[example])
    case = make_case(layer)
    assert_equal_bits(case, design_of(case), Backend.MYHDL, seed=example)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "example"), [(kind, example) for kind, found in LOADED.items() for example in found])
def test_the_verilog_of_a_layer_whose_state_is_loaded_does_too_and_shows_no_x(kind: str, example: int) -> None:
    case = make_case(with_loaded_state(load_layers()[kind].examples()[example]))
    design = design_of(case)
    assert_equal_bits(case, design, Backend.ICARUS, seed=31)
    inputs, counts = traffic(case, design)
    check_no_x(design, inputs, counts, seed=41)


# ---- seeded faults


@block
def first_momentum_lost(
    clk: Any, fire: Any, place: Any, old: Any, new: Any, loaded: Any, written: Any, port: Any, **options: Any
) -> Any:
    """`shared_memory` that writes no momentum of the first beat when it is loaded."""
    write = access.Signal(bool(0))
    other = replace(port, write=write)
    first = options["public"] == "momentum"

    @always_comb
    def lose() -> None:
        write.next = port.write and not (first and port.write_at == 0)

    return shared_memory(clk, fire, place, old, new, loaded, written, other, **options), lose


shared_memory = update_access.shared_memory


@block
def counters_not_restored(domain: Any, passes: Any, word: Any, begin: Any) -> Any:
    """`begin_counter` that tells of a START, and not of its number."""
    starts = access.Signal(bool(0))
    kind = int(Kind.START)

    @always(domain.clk.posedge)
    def keep() -> None:
        if passes:
            starts.next = word[access.HEADER] and word[access.KIND_BITS :] == kind
            if starts:
                begin.held.next = False

    return keep


@block
def not_sent_again(clk: Any, fire: Any, loaded: Any, made: Any, *, shape: Any) -> Any:
    """`mark_either` that makes weights of gradients alone."""
    del loaded
    return update.delay_line(clk, fire, made, cycles=update.VIEW_AT + shape.later)


@block
def not_taken_back(domain: Any, giving: Any, ring: Any, *, beats: int) -> Any:
    """`ring_state` that never says that state is outside, so that the first round stays there."""
    other = update_outside_access.RingState()
    other.writes, other.copies, other.wanted = ring.writes, ring.copies, ring.wanted
    return ring_state(domain, giving, other, beats=beats)


@block
def taken_back_too_early(domain: Any, giving: Any, ring: Any, *, beats: int) -> Any:
    """`ring_state` that takes state to be outside when the first beat of it is."""
    other = update_outside_access.RingState()
    other.writes, other.copies, other.wanted = ring.writes, ring.copies, ring.wanted

    @always(domain.clk.posedge)
    def early() -> None:
        ring.filled.next = ring.filled or ring.writes
        if domain.rst:
            ring.filled.next = False

    return ring_state(domain, giving, other, beats=beats), early


ring_state = update_outside_access.ring_state


@block
def frames_of_the_first_copy(behind: Any, first: Any, *, first_own: int) -> Any:
    """`_first_frame` of a copy that takes itself for the first one."""
    del first_own
    return _first_frame(behind, first, first_own=0)


_first_frame = dropout._first_frame


@block
def given_while_written(domain: Any, batches: Any, fetch: Any, out: Any, opened: Any, *, beats: int) -> Any:
    """`tensors_left` that takes residuals to be written once they are read."""
    del out
    return tensors_left(domain, batches, fetch, Signal(intbv(0)[4:]), opened, beats=beats)


@block
def never_opened_again(domain: Any, batches: Any, fetch: Any, out: Any, opened: Any, *, beats: int) -> Any:
    """`tensors_left` that counts a batch a beat."""
    return tensors_left(domain, batches, fetch, out, opened, beats=beats // beats)


tensors_left = feedback.tensors_left


# twice those that the traffic takes
FAULT_CYCLES = 1_500
UPDATE, OUTSIDE = (layer for layer in Update.examples() if layer.accessed)
COUNTING = next(layer for layer in BiasGradient.examples() if layer.accessed)
# every second frame of batches of three
DEALT = with_loaded_state(of_copy(dropout.Dropout(height=1, width=2, channels=2, recipe=Recipe(batch=3)), 1, 2))


# fewer residuals than cycles from one that is read to the one that is written
RESIDUALS = with_loaded_state(min((layer for layer in Exchange.examples() if layer.feedback), key=lambda x: x.elements))
# the same in DRAM, loaded twice
FAR = replace(RESIDUALS, residuals=Home.DRAM, recipe=LoadedRecipe(batch=2, staleness=1))
FAULTS: Mapping[str, tuple[Layer, Any, str, Any, type[Exception] | tuple[type[Exception], ...]]] = {
    "a word of momentum is lost": (UPDATE, update_access, "shared_memory", first_momentum_lost, AssertionError),
    "an update's counter is not restored": (UPDATE, access, "begin_counter", counters_not_restored, AssertionError),
    "a gradient's counter is not restored": (COUNTING, access, "begin_counter", counters_not_restored, AssertionError),
    "version 0 is not sent": (UPDATE, update, "mark_either", not_sent_again, DeadlockError),
    "the first round stays outside": (OUTSIDE, update_outside_access, "ring_state", not_taken_back, AssertionError),
    "the first round is taken too early": (
        OUTSIDE,
        update_outside_access,
        "ring_state",
        taken_back_too_early,
        DeadlockError,
    ),
    "a copy draws the bits of the first": (DEALT, dropout, "_first_frame", frames_of_the_first_copy, AssertionError),
    "residuals are given before they are there": (
        RESIDUALS, feedback, "tensors_left", given_while_written, AssertionError
    ),
    "residuals of a beat are a batch's": (RESIDUALS, feedback, "tensors_left", never_opened_again, DeadlockError),
    "residuals outside are dumped while some are under way": (
        FAR, residuals_access, "tensors_left", given_while_written, (AssertionError, DeadlockError)
    ),
    "the first residuals stay outside": (FAR, residuals_access, "ring_state", not_taken_back, AssertionError),
    "the first residuals are taken too early": (
        FAR, residuals_access, "ring_state", taken_back_too_early, DeadlockError
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, module, name, faulty, error = FAULTS[fault]
    case = make_case(layer)
    design = design_of(case)
    inputs, counts = traffic(case, design)

    def run() -> None:
        found = run_streams(
            Backend.MYHDL, design, inputs, counts, seed=1, stall_probability=0.2, max_cycles=FAULT_CYCLES
        )
        assert {design.names[port]: beats for port, beats in case.outputs.items()} == found.outputs

    run()
    monkeypatch.setattr(module, name, faulty)
    with pytest.raises(error):
        run()
