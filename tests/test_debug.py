"""`dagtrain debug` and `dagtrain probe`: from a wrong bit in what was delivered to its name, place and numbers."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pylibfst
import pytest
from vcd.reader import TokenKind, tokenize

from dagtrain.cosim.trace import Traced
from dagtrain.cosim.waves import Wave, WaveKind, change_of, write_waves
from hdl.fixed import Fixed
from hdl.tensor import Kind, Port, Tensor
from tests.flow_support import Case, new_case, quick_costs, relu_beats, spoil, with_few_dsp


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    with pytest.MonkeyPatch.context() as patch:
        quick_costs(patch)
        yield new_case(tmp_path_factory.mktemp("debug"), with_few_dsp(0.002)).must("import", "place", "emit")


@pytest.fixture
def case(emitted: Case, tmp_path: Path) -> Case:
    shutil.copytree(emitted.root, tmp_path / "case")
    return Case(tmp_path / "case")


def document(case: Case, *words: object, code: int = 0) -> dict[str, Any]:
    outcome = case.step(*map(str, words), "--json")
    assert outcome.code == code, (outcome.out, outcome.error)
    found = json.loads(outcome.out)
    assert isinstance(found, dict)
    return found


def test_a_wrong_bit_is_named_shown_and_leads_to_its_circuit(case: Case) -> None:
    clean = document(case, "debug", "--batches", 1)
    assert (clean["equal"], clean["first_wrong"], clean["also_wrong"]) == (True, None, [])
    assert clean["streams"] > 20
    # pixel 7 of frame 2: row 1, column 1
    shape = document(case, "show")["layers"][1]["output_shape"]
    probed = document(case, "probe", "r_node.y", "--frame", 2, "--row", 1, "--column", 1)
    lanes = len(probed["elements"])
    assert lanes == shape[2]
    assert all(one["simulation"] == one["code"] for one in probed["elements"])
    beats_a_frame = relu_beats(case)
    spoil(case, "r_node", "r_node.y", beats_a_frame + 7 * beats_a_frame // 36, 3)
    found = document(case, "debug", "--batches", 1, code=1)
    first = found["first_wrong"]
    assert (first["edge"], first["node"], first["sent"]) == ("r_node.y", "r_node", True)
    assert (first["batch"], first["frame"], first["index"][:2]) == (0, 1, [1, 1])
    assert abs(first["found"] - first["expected"]) == 8
    text = case.step("debug", "--batches", "1")
    assert text.code == 1
    assert "batch 1, frame 2, row 1, column 1, channel" in text.out
    assert re.search(r"its circuit is .*/emit/\w+/rtl/relu\w*\.v", text.out)
    # the wrong number stands in the waveform, in that cycle, as a number
    lane = first["index"][2]
    lanes_of = vcd_values(case.out / "debug" / "waves.vcd", "r_node", "y_sent", f"lane{lane % lanes_a_beat(case)}")
    step = 2.0 ** -int(first["format"].split(".")[1])
    now = first["cycle"] * PERIOD_PS
    assert held(lanes_of, now) == first["found"] * step
    # viewers begin there
    assert f"\n*0.000000 {now} -1 " in (case.out / "debug" / "waves.gtkw").read_text().replace("\n-1", " -1")
    assert f"\ncursor_set {now}\n" in (case.out / "debug" / "waves.sucl").read_text()
    # and inside the circuit is a register that has it right: the bit was turned round behind it
    assert re.search(r"waves.vcd shows \d+ streams around cycle [\d,]+, and \d\d signals inside r_node", text.out)
    register = vcd_values(case.out / "debug" / "waves.vcd", "r_node", "inside", "m2s_pipe0_payload")
    assert int(held(register, now)) >> 16 * (lane % lanes_a_beat(case)) & 0xFFFF == first["expected"]
    wrong = [
        one for one in document(case, "probe", "r_node.y", "--frame", 2)["elements"] if one["simulation"] != one["code"]
    ]
    assert [(one["index"], one["simulation"]) for one in wrong] == [(first["index"], first["found"])]


@pytest.mark.slow
def test_weights_that_are_loaded_pass_before_those_of_batches_and_may_be_wrong_themselves(case: Case) -> None:
    assert case.step("emit", "--state-access", "ports").code == 0
    clean = document(case, "debug", "--batches", 1)
    assert (clean["equal"], clean["first_wrong"], clean["also_wrong"]) == (True, None, [])
    # of new weights, those of the batch
    probed = document(case, "probe", "y_node.w.update.w")["elements"]
    assert probed
    assert all(one["simulation"] == one["code"] for one in probed)
    spoil(case, "y_node.w.update", "y_node.w.update.w", 0, 1)
    found = document(case, "debug", "--batches", 1, code=1)["first_wrong"]
    assert (found["node"], found["batch"], found["frame"]) == ("y_node.w.update", None, None)
    assert "y_node.w.update on head: as loaded, element [0, 0, 0, 0]" in case.step("debug", "--batches", "1").out


def test_probe_needs_no_simulation_but_says_that_there_was_none(case: Case) -> None:
    found = document(case, "probe", "c_node.y")
    assert "run `dagtrain debug` first" in found["note"]
    assert {one["simulation"] for one in found["elements"]} == {None}
    assert max(abs(one["steps"]) for one in found["elements"]) < 64
    said = case.step("probe", "c_node.y", "--limit", "3").out
    assert "steps apart" in said
    assert "the 3 that differ most" in said


def test_a_payload_that_nobody_has_written_is_unknown_and_not_zero(tmp_path: Path) -> None:
    port = Port("y", Tensor((1, 1, 2), Fixed(8, 4), Kind.ACTIVATION), lanes=2)
    one = Traced("edge", "fpga0", "net", "r_node", "y", produced=True, bits=16)
    changes = [change_of(f"0 {line}")[1] for line in ("1 0 1 xxxx", "2 1 1 00x0", "3 1 1 f810")]
    assert [change.payload for change in changes] == [None, None, 0xF810]
    write_waves(tmp_path / "waves", [Wave(one, port, tuple(changes), (2, 3))], WaveKind.VCD, 1000)
    assert "bx " in (tmp_path / "waves.vcd").read_text()
    lanes = [vcd_values(tmp_path / "waves.vcd", "r_node", "y_sent", name) for name in ("lane0", "lane1")]
    assert [(times[3000], math.isnan(times[1000])) for times in lanes] == [(1.0, True), (-0.5, True)]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("c_nod.y",), "near it are c_node.y"),
        (("c_node.y", "--frame", "99", "--row", "6", "--batch", "0"), "--frame .*--row must be one of 0 to 5"),
        (("c_node.y", "--limit", "0"), "--limit must be at least 1"),
    ],
)
def test_a_place_that_is_none_is_told(case: Case, words: tuple[str, ...], wanted: str) -> None:
    outcome = case.step("probe", *words)
    assert outcome.code == 1
    assert re.search(wanted, outcome.error), outcome.error


# of 200 MHz
PERIOD_PS = 5000


def lanes_a_beat(case: Case) -> int:
    return 6 * 6 * 4 // relu_beats(case)


def held(values: dict[int, float], *times: int) -> Any:
    """What a variable shows at each of the times, which rise; one number for one time."""
    before, found = sorted(values), []
    at = 0
    for time in times:
        while at + 1 < len(before) and before[at + 1] <= time:
            at += 1
        found.append(values[before[at]])
    return found[0] if len(found) == 1 else found


def vcd_values(path: Path, *name: str) -> dict[int, float]:
    """Time -> value of a variable of a VCD file, whatever its device; 0 where it is unknown."""
    (values,) = values_of_all(path, name)
    return values


def values_of_all(path: Path, *names: tuple[str, ...]) -> list[dict[int, float]]:
    """The same of several variables, of one pass over the file."""
    found: dict[tuple[str, ...], dict[int, float]] = {name: {} for name in names}
    # id in the file -> values
    wanted: dict[str, dict[int, float]] = {}
    with path.open("rb") as file:
        scopes: list[str] = []
        time = 0
        for token in tokenize(file):
            if token.kind is TokenKind.SCOPE:
                scopes.append(token.scope.ident)
            elif token.kind is TokenKind.UPSCOPE:
                scopes.pop()
            elif token.kind is TokenKind.VAR and (*scopes[1:], token.var.reference) in found:
                wanted[token.var.id_code] = found[*scopes[1:], token.var.reference]
            elif token.kind is TokenKind.CHANGE_TIME:
                time = token.time_change
            elif token.kind is TokenKind.CHANGE_REAL and token.real_change.id_code in wanted:
                wanted[token.real_change.id_code][time] = token.real_change.value
            elif token.kind is TokenKind.CHANGE_VECTOR and token.vector_change.id_code in wanted:
                value = token.vector_change.value
                wanted[token.vector_change.id_code][time] = value if isinstance(value, int) else 0
            elif token.kind is TokenKind.CHANGE_SCALAR and token.scalar_change.id_code in wanted:
                wanted[token.scalar_change.id_code][time] = int(token.scalar_change.value == "1")
    assert all(found.values()), names
    return list(found.values())


@pytest.mark.slow
def test_waveforms_of_both_kinds_hold_what_the_emulator_makes_while_frames_pass(case: Case) -> None:
    chosen = ("--batches", 1, "--no-efficiency", "--wave-nodes", "[cr]_node", "--wave-frames", "2", "--wave-inside")
    assert document(case, "cosim", "--waves", "vcd", *chosen)["equal"]
    save = (case.out / "cosim" / "waves.gtkw").read_text()
    assert '"waves.vcd"' in save
    assert "r_node.y_sent.valid" in save
    assert "r_node.y_sent.lane0" in save
    # signals inside are a group of the node's, arrays aside
    node = save.split("\n-r_node\n")[1]
    assert "\n-inside\n" in node
    shown_by_surfer(case.out / "cosim" / "waves")
    beats, lanes = relu_beats(case), lanes_a_beat(case)
    assert f"r_node.inside.m2s_pipe0_payload[{17 * lanes - 1}:0]\n" in node
    assert "c_node.inside.convolution0" in save
    assert not re.search(r"\.inside\..*\]\[", save)
    document(case, "debug", "--batches", 1)
    frame = [
        one["emulator"] for one in document(case, "probe", "r_node.y", "--frame", 2, "--limit", 6 * 6 * 4)["elements"]
    ]
    path = case.out / "cosim" / "waves.vcd"
    names = (("y_sent", "lane0"), ("y_sent", "valid"), ("y_sent", "ready"), ("inside", "m2s_pipe0_payload"))
    values, valid, ready, payload = values_of_all(path, *(("r_node", *name) for name in names))
    steps = range(min(filter(None, valid)), max(*valid, *payload) + 1, PERIOD_PS)
    passing = [time for time, *both in zip(steps, held(valid, *steps), held(ready, *steps), strict=True) if all(both)]
    assert held(values, *passing)[:beats] == [frame[beat * lanes] for beat in range(beats)]
    # the register in front of that stream, of a mask above the numbers, in every cycle in which a beat passes
    numbers = [round(number * 2**10) for number in frame]
    together = [numbers[at : at + lanes] for at in range(0, len(numbers), lanes)]
    words = [
        sum(code << 16 * lane | (code > 0) << 16 * lanes + lane for lane, code in enumerate(each)) for each in together
    ]
    assert held(payload, *passing)[:beats] == words
    others, inside = fst_values(case, chosen, "y_sent.lane0", "inside.m2s_pipe0_payload")
    # a real variable has no value "unknown" in a VCD file: it is 0 until the stretch begins
    assert sorted(others.items())[1:] == sorted(values.items())[1:]
    assert others[min(others)] == values[min(values)]
    assert {time: value for time, value in inside.items() if time} == {t: v for t, v in payload.items() if t}


def shown_by_surfer(path: Path) -> None:
    """Surfer's commands name scopes and variables that are there, all of the streams and none of an array."""
    scopes, variables = set(), set()
    with path.with_suffix(".vcd").open("rb") as file:
        stack: list[str] = []
        for token in tokenize(file):
            if token.kind is TokenKind.SCOPE:
                stack.append(token.scope.ident)
                assert "." not in token.scope.ident
                scopes.add(".".join(stack))
            elif token.kind is TokenKind.UPSCOPE:
                stack.pop()
            elif token.kind is TokenKind.VAR:
                # "[3]" behind a name is a word of an array
                place = "" if token.var.bit_index is None else "[]"
                variables.add(".".join((*stack, token.var.reference)) + place)
            elif token.kind is TokenKind.ENDDEFINITIONS:
                break
    lines = [line.split(" ", 1) for line in path.with_suffix(".sucl").read_text().splitlines()]
    groups = {line[1] for line in lines if line[0] == "scope_add_as_group"}
    assert groups == {
        name.removesuffix(".payload") for name in variables if name.endswith(("_sent.payload", "_got.payload"))
    }
    assert groups <= scopes
    added = {line[1] for line in lines if line[0] == "variable_add"}
    assert added == {name for name in variables if ".inside." in name and not name.endswith("]")}
    assert [line for line in lines if line[0] not in ("scope_add_as_group", "variable_add")] == [
        ["divider_add", "c_node"],
        ["divider_add", "inside"],
        ["divider_add", "r_node"],
        ["divider_add", "inside"],
        ["zoom_fit"],
    ]


def fst_values(case: Case, chosen: Sequence[object], *names: str) -> list[dict[int, float]]:
    """Time -> value of variables of the relu in an FST file that is written with the same options."""
    assert case.step("cosim", "--waves", "fst", *map(str, chosen)).code == 0
    lib, ffi = pylibfst.lib, pylibfst.ffi
    reader = lib.fstReaderOpen(str(case.out / "cosim" / "waves.fst").encode())
    assert reader != ffi.NULL
    _, signals = pylibfst.get_scopes_signals2(reader)
    found: dict[int, dict[int, float]] = {}
    for wanted in names:
        (handle,) = {signal.handle for name, signal in signals.by_name.items() if name.endswith(f"r_node.{wanted}")}
        found[handle] = {}
    lib.fstReaderSetFacProcessMaskAll(reader)

    bits = 17 * lanes_a_beat(case)

    def keep(_user: object, time: int, facility: int, value: Any) -> None:
        if facility in found:
            text = pylibfst.string(value)
            found[facility][time] = int(text, 2) if set(text) <= {"0", "1"} and len(text) == bits else float(text)

    pylibfst.fstReaderIterBlocks(reader, keep)
    lib.fstReaderClose(reader)
    return list(found.values())


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("--waves", "png"), "--waves must be one of vcd, fst, not png"),
        (("--wave-frames", "2"), "go with --waves vcd"),
        (("--waves", "vcd", "--wave-inside"), "--wave-inside needs --wave-nodes"),
        (("--waves", "fst", "--wave-inside", "--wave-nodes", "c*", "--simulator", "icarus"), "needs --simulator veri"),
        (("--waves", "vcd", "--wave-inside", "--wave-nodes", "nix*"), "no circuit to look into.*there are .*c_node"),
        (("--waves", "vcd", "--wave-frames", "0:2", "--wave-cycles", "9:3"), "--wave-frames 0:2.*--wave-cycles 9:3"),
        (("--waves", "vcd", "--simulator", "myhdl"), "--waves needs --simulator verilator or icarus"),
        (
            ("--waves", "vcd", "--wave-nodes", "nix*", "--batches", "1", "--no-efficiency"),
            "there are the nodes .*c_node",
        ),
    ],
)
@pytest.mark.slow
def test_waves_of_nothing_are_told(case: Case, words: tuple[str, ...], wanted: str) -> None:
    outcome = case.step("cosim", *words)
    assert outcome.code == 1
    assert re.search(wanted, outcome.error), outcome.error
