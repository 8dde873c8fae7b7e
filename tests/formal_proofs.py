"""Proofs that the circuits on which all others stand keep the stream contract, and the faults that they must find.

    .venv/bin/python -m tests.formal_proofs

proves every circuit, puts every fault into the emitted Verilog, and prints a table: circuit, what was proved, cycles
that the proof looks ahead, seconds, faults found and in which cycle at the latest.

Yosys makes one sequential circuit (AIGER) of the emitted Verilog and a module of `tests/formal/`, with its assumptions
and assertions.  ABC, which is a part of Yosys, either finds a run in which an assertion fails or shows that there is
none, of any length (`pdr`, property-directed reachability).
"""

from __future__ import annotations

import re
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hdl.convert.tools import run_tool
from hdl.convert.verilog import convert
from hdl.dram.deal import Collect, Deal
from hdl.link.egress import Egress
from hdl.link.format import LinkFormat, credit_batch
from hdl.link.ingress import Ingress
from hdl.signals import ClockReset
from hdl.stream import Stream
from hdl.streams import Policy, fork, join, pipe, queue, queue_latency, width_adapter
from hdl.unit import Unit

HARNESSES = Path(__file__).with_name("formal")
FAULTS = HARNESSES / "faults.toml"
# seconds that one proof may take
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Proof:
    """A module of `tests/formal/` around a circuit."""

    module: str
    parameters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """A change of the emitted Verilog."""

    name: str
    # stands once in the text
    old: str
    new: str


@dataclass(frozen=True)
class Circuit:
    """A circuit with what is proved of it."""

    name: str
    # the file in `tests/formal/`
    harness: str
    build: Callable[[], Any]
    proofs: tuple[Proof, ...]

    @property
    def faults(self) -> list[Fault]:
        """What its proofs must find."""
        return [Fault(**fault) for fault in tomllib.loads(FAULTS.read_text())[self.name]]

    @cached_property
    def text(self) -> str:
        """The emitted Verilog."""
        return convert(self.build(), self.name).text

    def with_fault(self, fault: Fault) -> str:
        """The emitted Verilog with a fault in it."""
        count = self.text.count(fault.old)
        assert count == 1, f"{self.name}: {fault.old!r} is {count} times in the Verilog, not once:\n{self.text}"
        return self.text.replace(fault.old, fault.new)


@dataclass(frozen=True)
class Verdict:
    """What ABC says of a circuit and a proof."""

    # the assertion that fails first, "" if none does in any run
    failing: str
    # the cycle in which it fails; where none does, cycles in which the invariant was found that keeps all
    cycle: int


def check(circuit: Circuit, proof: Proof, text: str) -> Verdict:
    """Prove ``text``, the Verilog of a circuit.

    Raises `ToolError` if Yosys or ABC fails, AssertionError if ABC neither proves nor refutes it."""
    with tempfile.TemporaryDirectory(prefix="dagtrain-") as name:
        folder = Path(name)
        (folder / "circuit.v").write_text(text)
        sources = " ".join(f'"{HARNESSES / file}.sv"' for file in ("contract", circuit.harness))
        values = "".join(f" -set {key} {value}" for key, value in proof.parameters.items())
        script = [
            f"read_verilog -formal -sv -DCIRCUIT={circuit.name} {sources}",
            "read_verilog circuit.v",
            *([f"chparam{values} {proof.module}"] if values else []),
            f"prep -top {proof.module} -flatten",
            "memory_map; opt -full; async2sync; dffunmap; setundef -undriven -anyseq",
            "techmap; opt -fast; dffunmap; aigmap; opt_clean",
            # the assertions in the order in which they become outputs
            "tee -q -o asserts.txt select -list t:$assert",
            "write_aiger -I -B -zinit -no-startoffset circuit.aig",
        ]
        run_tool(["yosys", "-q", "-p", "; ".join(script)], folder, timeout=TIMEOUT_S)
        asserts = (folder / "asserts.txt").read_text().split()
        printed = run_tool(
            ["yosys-abc", "-c", "read_aiger circuit.aig; fold; strash; scorr; dc2; pdr"], folder, timeout=TIMEOUT_S
        )
    refuted = re.search(r"Output (\d+) of miter .* was asserted in frame (\d+)", printed)
    if refuted:
        return Verdict(asserts[int(refuted[1])].partition("/")[2], int(refuted[2]))
    assert "Property proved" in printed, printed
    invariant = re.search(r"Invariant F\[(\d+)\]", printed)
    return Verdict("", int(invariant[1]) if invariant else 0)


def find(circuit: Circuit, fault: Fault) -> Verdict:
    """What a circuit's proofs say of a fault."""
    text = circuit.with_fault(fault)
    verdicts = (check(circuit, proof, text) for proof in circuit.proofs)
    return next((verdict for verdict in verdicts if verdict.failing), Verdict("", 0))


# -------------------------------------------------------------------------------------------- circuits

# bits of a payload: it is only moved, so more bits would take the same way
WIDTH = 2
FORMAT = LinkFormat(word_bits=8, streams=2, devices=2, sequence_bits=2)
SENDER = Egress(format=FORMAT, element_bits=8, lanes=1, elements=3, credits=3)
QUEUED_SENDER = replace(SENDER, queued=2)
RECEIVER = Ingress(format=FORMAT, element_bits=8, lanes=1, elements=3, depth=4)


def _one_to_one(
    name: str, build: Callable[..., Any], capacity: int, latency: int, *, ready_cut: bool, valid_cut: bool
) -> Circuit:
    """A queue or a stage.  ``ready_cut``: x_ready does not follow y_ready; ``valid_cut``: y_valid not x_valid."""
    beats = {"WIDTH": WIDTH, "CAPACITY": capacity, "LATENCY": latency}
    settles = {"X_WIDTH": WIDTH, "Y_WIDTH": WIDTH, "READY_CUT": int(ready_cut), "VALID_CUT": int(valid_cut)}
    return Circuit(
        name,
        "one_to_one",
        lambda: build(ClockReset(), Stream(WIDTH), Stream(WIDTH)),
        (Proof("beats", beats), Proof("settles", settles)),
    )


def _stage(name: str, policy: Policy, capacity: int, *, ready_cut: bool, valid_cut: bool) -> Circuit:
    def build(*ports: Any) -> Any:
        return pipe(*ports, policy=policy)

    return _one_to_one(name, build, capacity, 1, ready_cut=ready_cut, valid_cut=valid_cut)


def _queue(depth: int) -> Circuit:
    def build(*ports: Any) -> Any:
        return queue(*ports, depth=depth)

    return _one_to_one(f"queue_of_{depth}", build, depth, queue_latency(depth), ready_cut=True, valid_cut=True)


def _adapter(a: int, b: int, frame: int) -> Circuit:
    name, x, y = f"adapter_{a}_to_{b}", a * WIDTH, b * WIDTH
    return Circuit(
        name,
        "one_to_one",
        lambda: width_adapter(ClockReset(), Stream(x), Stream(y), element_bits=WIDTH, flush_every=frame),
        (
            Proof("elements", {"BITS": WIDTH, "A": a, "B": b, "FRAME": frame}),
            Proof("settles", {"X_WIDTH": x, "Y_WIDTH": y, "VALID_CUT": 1}),
        ),
    )


def _in_turns(name: str, kind: Callable[..., Unit], module: str) -> Circuit:
    unit = kind(payload_bits=WIDTH, parts=3, turn=2)
    proofs = Proof(module, {"WIDTH": WIDTH, "TURN": 2}), Proof(f"{module}_settles", {"WIDTH": WIDTH})
    return _unit(name, unit, proofs, "deal")


def _unit(name: str, unit: Unit, proofs: tuple[Proof, ...], harness: str = "credit") -> Circuit:
    def build() -> Any:
        return unit.build(ClockReset(), {name: Stream(width) for name, width in unit.streams.items()})

    return Circuit(name, harness, build, proofs)


CIRCUITS = (
    _stage("m2s_pipe", Policy.M2S, 1, ready_cut=False, valid_cut=True),
    _stage("skid_buffer", Policy.S2M, 1, ready_cut=True, valid_cut=False),
    _stage("full_pipe", Policy.FULL, 2, ready_cut=True, valid_cut=True),
    _stage("half_pipe", Policy.HALF, 1, ready_cut=True, valid_cut=True),
    _queue(3),
    _queue(5),
    Circuit(
        "fork_of_3",
        "fork",
        lambda: fork(ClockReset(), Stream(WIDTH), [Stream(WIDTH) for _ in range(3)]),
        (Proof("branches", {"WIDTH": WIDTH}), Proof("settles", {"WIDTH": WIDTH})),
    ),
    Circuit(
        "join_of_3",
        "join",
        lambda: join(ClockReset(), [Stream(1), Stream(2), Stream(3)], Stream(6)),
        (Proof("together"), Proof("settles")),
    ),
    _in_turns("deal_to_3", Deal, "dealt"),
    _in_turns("collect_of_3", Collect, "collected"),
    _adapter(1, 3, 4),
    _adapter(3, 1, 4),
    _adapter(3, 2, 8),
    _adapter(2, 3, 8),
    _unit(
        "credit_sender",
        SENDER,
        (
            Proof("sender", {"CREDITS": SENDER.credits, "WORDS": SENDER.elements}),
            Proof("sender_settles"),
        ),
    ),
    _unit(
        "queued_sender",
        QUEUED_SENDER,
        (
            Proof(
                "sender",
                {
                    "CREDITS": QUEUED_SENDER.credits,
                    "WORDS": QUEUED_SENDER.elements,
                    # one at the door, one that leaves
                    "HOLDS": QUEUED_SENDER.queued + 2,
                },
            ),
            Proof("sender_settles"),
        ),
    ),
    _unit(
        "credit_receiver",
        RECEIVER,
        (
            Proof(
                "receiver",
                {
                    "DEPTH": RECEIVER.depth,
                    "BATCH": credit_batch(RECEIVER.depth),
                    "WORDS": RECEIVER.elements,
                    "LATENCY": queue_latency(RECEIVER.depth),
                },
            ),
            Proof("receiver_settles"),
        ),
    ),
)


# ---------------------------------------------------------------------------------------------- table


def rows() -> Iterator[tuple[str, ...]]:
    """The table, line by line."""
    yield "circuit", "proof", "cycles ahead", "s", "faults found"
    for circuit in CIRCUITS:
        for proof in circuit.proofs:
            start = time.monotonic()
            verdict = check(circuit, proof, circuit.text)
            seconds = f"{time.monotonic() - start:.1f}"
            yield circuit.name, proof.module, verdict.failing or str(verdict.cycle), seconds, ""
        start = time.monotonic()
        verdicts = [find(circuit, fault) for fault in circuit.faults]
        seconds = f"{time.monotonic() - start:.1f}"
        caught = [verdict for verdict in verdicts if verdict.failing]
        latest = max(verdict.cycle for verdict in verdicts)
        yield circuit.name, "faults", str(latest), seconds, f"{len(caught)} of {len(verdicts)}"


def main() -> None:
    """Print the table."""
    for circuit, proof, cycles, seconds, faults in rows():
        print(f"{circuit:16} {proof:17} {cycles:>12} {seconds:>6}  {faults}", flush=True)


if __name__ == "__main__":
    main()
