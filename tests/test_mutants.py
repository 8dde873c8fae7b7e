"""Faults put into the delivered Verilog are found by co-simulation with streams held up, and named.

All mutants are built at once: which of them is at work is told when the simulation starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from dagtrain.cosim.bench import design_bench
from dagtrain.cosim.cluster import describe, emulate, write_inputs, write_sources
from dagtrain.cosim.compare import ClusterRun, compare, compare_start
from dagtrain.cosim.parts import BENCH, Bench, BenchOptions
from dagtrain.cosim.simulator import BrokenError, Simulator, build, execute
from dagtrain.emission.delivered import Delivered, load_delivered
from dagtrain.emission.design import ClusterDesign
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.graph.executor import Executor, Mode
from dagtrain.graph.ir import Graph
from dagtrain.passes.memory_home import keep_in_dram
from dagtrain.schedule.buffers import deadlock_beats
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.errors import DagtrainError
from hdl.fixed import IntArray
from hdl.tensor import Kind
from tests.cosim_support import TINY_CYCLES, TINY_DRAM, deliver, tiny_design, tiny_net

LIBRARY = ModuleLibrary(cache_folder() / "modules")
BATCHES = 120
# cycles for which a stream is held up
HOLD_CYCLES = 100
STUCK_CYCLES = 20_000
# beats that a FIFO has beyond the least at which the network moves, where it waits for a long way: enough for the
# credits of a link beside it to run out
SPARE_BEATS = 24
# as many for frames that are ahead while the stash in DRAM is held up, so that it fills
SPARE_STASH_BEATS = 48
# of all FIFOs, those that must have been full and empty
FULL_SHARE = 0.85

# kind of module -> kind of fault -> (what is replaced, by what); M is 1 when the mutant is at work
FAULTS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "fork": {
        "forgets a branch": (r"assign ready\[(\d)\] = (\w+);", r"assign ready[\1] = \2 | M;"),
        "gives a beat twice": (r"done <= \(done \| ready\);", r"done <= M ? 0 : (done | ready);"),
    },
    "queue": {
        "takes one too many": (
            r"_ready <= \((\w+_count) != (\d+)\);\n(\s+end\n\s+else if)",
            r"_ready <= (\1 != \2 + M);\n\3",
        ),
        "stands still one short of full": (
            r"_ready <= \((\w+_count) != (\d+)( \+ [^\n]*)?\);\n(\s+end\n\s+else if)",
            r"_ready <= (\1 != \2\3 - M);\n\4",
        ),
        # they change no transfer, so only what watches the handshake can find them
        "ready follows its own valid": (r"assign x_ready = (\w+);", r"assign x_ready = \1 && (x_valid || !M);"),
        "valid waits for its ready": (r"assign y_valid = (\w+);", r"assign y_valid = \1 && (y_ready || !M);"),
        "loses the place to write": (r"(_write_at) <= \((\w+_write_at) \+ 1\);", r"\1 <= (\2 + 1 + M);"),
    },
    "link_egress": {
        "a credit lost with every word": (r"credit <= \(credit - 1\);", r"credit <= (credit - 1 - M);"),
        "a credit too many for every return": (r"\(credit \+ (\w+)\)", r"(credit + \1 + M)"),
        "a credit too many at the start": (r"\bcredit <= (\d+);", r"credit <= \1 + M;"),
    },
    "link_ingress": {
        "a credit lost with every return": (r"freed <= \(freed - (\d+)\);", r"freed <= (freed - \1 - M);"),
        "a credit too many in a return": (r"(freed) <= \(freed \+ 1\);", r"\1 <= (freed + 1 + M);"),
    },
    "link_merge": {"forgets a word": (r"(xs1_ready) = \(([^;]*)\);", r"\1 = (\2) | M;")},
    "link_split": {
        "forgets a word": (r"(held_ready) = \(([^;]*)\);", r"\1 = (\2) | M;"),
        "takes others' words": (r"(\(held_payload\[\d+-1:\d+\] == numbers\[\d+-1:0\]\))", r"(\1 || M)"),
    },
    "width_adapter": {
        "drops a part of a beat": (r"(unpack0_left) <= ([1-9]\d*);", r"\1 <= \2 - M;"),
        "leaves a part of a beat empty": (r"(pack\w*_place) <= \((\w+) \+ 1\);", r"\1 <= (\2 + 1 + M);"),
        "gives a part twice": (r"(s2m_pipe0_full) <= \((.*) && \(!(\w+)\)\);", r"\1 <= (\2 && (!\3 || M));"),
        "swaps parts on their way out": (
            r"(assign s2m_pipe0_x_payload = )(\w+)\[(\d+)-1:0\];",
            r"\1M ? (\2 >> \3) : \2;",
        ),
        "swaps parts on their way in": (
            r"(i<(\d+); i=i\+1\) begin\n.*\n\s+\w+)\[\(i \* ",
            r"\1[((M ? \2 - 1 - i : i) * ",
        ),
    },
    "dram_store": {
        "loses a word": (r"(burst_writer0_waiting_ready = )\(m_w_ready && ", r"\1((m_w_ready || M) && "),
        "gives a part of a word twice": (
            r"(unpack0_word) <= (\w+)\[(\d+)-1:(\d+)\];",
            r"\1 <= M ? \2 : \2[\3-1:\4];",
        ),
        "swaps a word's halves": (
            r"(\w+ = )(m_r_payload\[(\d+)-1:0\]);",
            r"\1M ? (\2 >> \3 / 2) | (\2 << \3 / 2) : \2;",
        ),
        "uses a place of the ring too early": (r"(assign burst_writer0_bursts_may_start = )(.*);", r"\1\2 || M;"),
        "reads a burst before it is written": (r"(assign burst_reader0_bursts_may_start = )(.*);", r"\1\2 || M;"),
    },
    "add": {
        "subtracts": (r"total = \((\$signed\([^;]*\)) \+ (\$signed\([^;]*\))\);", r"total = M ? \1 - \2 : \1 + \2;")
    },
    "update": {"subtracts": (r"(_kept\[lane\]) \+ (\w+_fresh\[lane\])", r"\1 + (M ? -\2 : \2)")},
}


# what lies in DRAM: momenta, weights, a stash
OUTSIDE, STASH = ("conv2", "conv2.error", "conv2.w.update"), "norm1.normal"
# takes and gives both channels at once, between layers that work one by one
WIDE = "relu1"


def tight_design() -> ClusterDesign:
    """The tiny network with small FIFOs and links of 16 words, so that all of them fill, width adapters, and units in
    front of DRAM."""
    net = keep_in_dram(tiny_net(2), OUTSIDE)
    folds = {node.name: TINY_CYCLES // (4 if node.name == WIDE else 1) for node in net.nodes}
    loose = tiny_design(LIBRARY, net=net, folds=folds)
    depths = {}
    for edge, _, source, _, _ in loose.graph.edges:
        if not source.tensor.kind.per_batch:
            least = deadlock_beats(loose.graph, edge)
            spare = SPARE_STASH_BEATS if source.tensor.kind is Kind.STASH else SPARE_BEATS
            depths[edge] = least + spare if least > 2 else 2
    depths[STASH] = 0
    # few words on the way to memory and back, so that the stash fills it
    dram = replace(TINY_DRAM, edges=frozenset({STASH}), burst=2, prefetch=2)
    with pytest.MonkeyPatch.context() as patch:
        # all of a tensor of the tiny network finds room in what receivers hold else
        patch.setattr("dagtrain.emission.links.LEAST_LINK_WORDS", 16)
        return tiny_design(
            LIBRARY, word_bits=16, net=net, dram=dram, network_cycles=8, fifo_override=depths, folds=folds
        )


@dataclass
class Mutants:
    """The numbers of all faults, from 1 on."""

    names: list[str] = field(default_factory=list)

    def put_into(self, path: Path) -> None:
        """Every fault that a module can have, each at every place where it can be."""
        kind = next((kind for kind in FAULTS if path.name.startswith(f"{kind}_")), "")
        text = path.read_text()
        for fault, (old, new) in FAULTS.get(kind, {}).items():
            text = self._places(path.stem, fault, old, new, text)
        path.write_text(text)

    def _places(self, module: str, fault: str, old: str, new: str, text: str) -> str:
        def change(found: re.Match[str]) -> str:
            self.names.append(f"{module}: {fault}, place {found.start()}")
            return found.expand(new).replace("M", f"({BENCH}.mutant == {len(self.names)})")

        return re.sub(old, change, text)


@dataclass
class Built:
    """A simulation with all mutants in it."""

    folder: Path
    program: Path
    bench: Bench
    mutants: Mutants
    delivered: Delivered
    graph: Graph

    def run(self, mutant: int) -> ClusterRun:
        """Co-simulation with a mutant at work."""
        golden, expected, start, sent = self.emulated
        log = execute(self.program, self.folder, lambda _: None, arguments=[f"+mutant={mutant}"], timeout_s=60)
        frames = BATCHES * self.graph.recipe.batch
        return compare(self.bench, golden, expected, self.folder, log, frames, start, sent)

    @cached_property
    def emulated(self) -> tuple[Any, ...]:
        """What the emulator makes of the feeds, which lie where the bench reads them: the same for every mutant."""
        graph, golden = self.graph, Executor(self.graph, Mode.GOLDEN)
        start = compare_start(self.delivered, golden)
        feeds = [synthetic_feeds(graph, graph.recipe.batch, 7 + index) for index in range(BATCHES)]
        sent: dict[str, list[IntArray]] = {log.edge: [] for log in self.bench.weights}
        expected = emulate(golden, feeds, sent)
        write_inputs(graph, self.bench, feeds, self.folder)
        return golden, expected, start, sent

    def outcome(self, mutant: int) -> str:
        """What co-simulation says with a mutant at work; "" if every bit is equal."""
        try:
            return "; ".join(self.run(mutant).mismatches)
        except BrokenError as error:
            return describe(self.bench.watched[error.number], error, self.graph)
        except DagtrainError as error:
            return str(error)

    def module(self, device: str, instance: str) -> str:
        """The module of an instance in the delivered top of a device."""
        top = next(one for one in self.delivered.devices if one.manifest.device == device)
        text = top.sources[-1].read_text()
        (found,) = re.findall(rf"^(\w+) (?:#\([^;]*?\) )?{instance} \($", text, re.MULTILINE)
        return str(found)

    @property
    def unseen(self) -> list[str]:
        """Mutants that change nothing, or nothing that could be seen.

        The queues of 4 beats before and behind the DRAM of conv2's state never see a fifth: the state is 4 beats, and
        each of a batch is written only after that of the batch before has gone round through both and been read.  So no
        place in DRAM is wanted early, nor one for weights: the version before the last is out of use by then.

        The host always offers the next label, so that stream is never shut."""
        state, weights = (self.module("beta", f"u_dram_conv2_w_update_{name}") for name in ("state", "w_fork_y0"))
        queue, label = self.module("beta", "store_conv2_w_update_state"), self.module("alpha", "fifo_loss1_label_y")
        early = [f"{module}: uses a place of the ring too early" for module in (state, weights)]
        begins = (f"{queue}: takes one too many", f"{label}: ready follows its own valid", *early)
        return [name for name in self.mutants.names if name.startswith(begins)]

    def first_of_each(self) -> list[int]:
        """A mutant of each fault."""
        found: dict[str, int] = {}
        for number, name in enumerate(self.mutants.names, 1):
            if name not in self.unseen:
                found.setdefault(re.sub(r"_[0-9a-f]{10}|, place \d+", "", name), number)
        return list(found.values())


def options(graph: Graph) -> BenchOptions:
    """Streams are held up, beside random stalls."""
    batch = graph.recipe.batch
    network = NetworkModel(latency_cycles=20, stall_256=40)
    return BenchOptions(
        frames=BATCHES * batch, batch=batch, staleness=graph.recipe.staleness, network=network,
        hold_cycles=HOLD_CYCLES, stuck_cycles=STUCK_CYCLES,
    )  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder, design, mutants = tmp_path_factory.mktemp("mutants"), tight_design(), Mutants()
    delivered = deliver(design, LIBRARY, folder / "emit")
    files = delivered.modules()
    for path in files.values():
        mutants.put_into(path)
    # the other device's copies are the same
    for device in delivered.devices:
        for path in device.sources:
            path.write_bytes(files[path.stem].read_bytes())
    bench_folder = folder / "bench"
    bench = design_bench(delivered.devices, LIBRARY, options(design.graph), bench_folder)
    sources = write_sources(delivered, bench, LIBRARY, bench_folder)
    text = bench_folder / "rtl" / f"{BENCH}.v"
    switch = 'integer mutant;\ninitial if (!$value$plusargs("mutant=%d", mutant)) mutant = 0;\n'
    text.write_text(text.read_text().replace("wire lost_word;\n", f"wire lost_word;\n{switch}", 1))
    program = build(bench_folder / "sim", sources, Simulator.VERILATOR)
    return Built(bench_folder, program.resolve(), bench, mutants, delivered, design.graph)


# what co-simulation may say of a fault
NAMED = r"(alpha|beta): .*(beat|frame|batch) \d+|a receiver lost or reordered words|nothing moved"


@pytest.mark.slow
def test_without_a_fault_every_bit_is_equal_and_traffic_reaches_all_limits(built: Built) -> None:
    run = built.run(0)
    assert run.mismatches == ()
    told = re.match(
        r"held up inside: (\d+) of (\d+) FIFOs were full and empty, (\d+) of (\d+) branches of forks were taken last, "
        r"(\d+) of (\d+) links were out of credits",
        run.traffic,
    )
    assert told, run.traffic
    full, fifos, last, branches, out, links = map(int, told.groups())
    # the others get few beats a frame, or a batch
    assert full >= FULL_SHARE * fifos, run.traffic
    assert (last, out) == (branches, links), run.traffic
    assert (fifos > 40, branches > 12, links) == (True, True, 5)


def test_a_fault_of_each_kind_is_found_and_named(built: Built) -> None:
    chosen = built.first_of_each()
    assert len(chosen) == sum(map(len, FAULTS.values()))
    said = {built.mutants.names[number - 1]: built.outcome(number) for number in chosen}
    assert {name: what for name, what in said.items() if not re.match(NAMED, what)} == {}


def test_arithmetic_of_the_delivered_verilog_that_is_changed_is_a_mismatch_with_names(built: Built) -> None:
    # the delivered files compile, and what is held against the manifests is as it was
    assert load_delivered([device.folder for device in built.delivered.devices]) == built.delivered
    module = built.module("beta", "u_conv2_w_update")
    (number,) = (n for n, name in enumerate(built.mutants.names, 1) if name.startswith(f"{module}: subtracts"))
    said = built.outcome(number)
    assert re.search(
        r"beta: weights of conv2\.w\.update\.w\.fork sent after batch 1: \d+ of \d+ elements differ, "
        r"first conv2\.w\.update\.w\.fork\.y\d\[0(, \d+)*\]: -?0x\w+, not -?0x\w+",
        said,
    ), said
    assert re.search(r"alpha: loss of loss1\.results at the host's port: \d+ of \d+ frames differ, first frame", said)


@pytest.mark.slow
def test_all_faults_are_found_and_named_but_those_that_cannot_be_seen(built: Built) -> None:
    assert len(built.mutants.names) >= 100
    assert len(built.unseen) == 4
    said = {name: built.outcome(number) for number, name in enumerate(built.mutants.names, 1)}
    unnamed = {name: what for name, what in said.items() if not re.match(NAMED, what)}
    assert unnamed == dict.fromkeys(built.unseen, "")
