"""`place --copy` and `--replicas`: the planner makes copies of layers, of those of which they make a faster plan."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagtrain.flow.import_step import load_training_graph
from dagtrain.flow.placed import load_placed_graph, load_plan
from dagtrain.graph.ir import Role
from dagtrain.passes.replicate import copies_of
from dagtrain.planning import copying
from dagtrain.planning.copying import slow_layers
from dagtrain.planning.foldings import Foldings
from dagtrain.planning.former import Former
from dagtrain.planning.levels import LEAST_RATIO
from dagtrain.planning.planner import Planner
from placement.problem.deadline import Deadline
from placement.problem.plan import Bound
from placement.search.search import SearchOptions
from tests.flow_support import CLUSTER, Case, new_case, quick_costs, with_few_dsp

AUTO = ("place", "--no-split", "--replicas", "auto")


def small_devices(count: int) -> str:
    """A cluster of devices of four DSP blocks, which a layer's update and its engines fill."""
    more = "".join(f'[[device]]\nname = "f{n}"\nboard = "agilex"\n' for n in range(count - 2))
    return with_few_dsp(0.001, CLUSTER) + more


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    quick_costs(monkeypatch)
    return new_case(tmp_path, small_devices(6)).must("import")


def done(case: Case, *words: str) -> Case:
    """A command, which must succeed."""
    outcome = case.step(*words)
    assert outcome.code == 0, outcome.error
    return case


def told(case: Case, *words: str) -> dict[str, Any]:
    """The plan that a command leaves, and what it took."""
    done(case, *words)
    found: dict[str, Any] = json.loads((case.out / "place" / "plan.json").read_text())
    return found | json.loads((case.out / "place" / "place.json").read_text())


def same_graphs(case: Case, *copies: str) -> bool:
    """Whether the plan's graph is what `import` makes with these copies."""
    placed = load_placed_graph(case.workspace)
    done(case, "import", *(word for copy in copies for word in ("--copy", copy)))
    chosen = load_training_graph(case.workspace)
    equal = (np.array_equal(placed.parameters[key], values) for key, values in chosen.parameters.items())
    return placed.nodes == chosen.nodes and all(equal)


@pytest.mark.slow
def test_copies_of_what_is_too_slow_alone_are_chosen_where_that_is_faster(case: Case) -> None:
    one = told(case, "place", "--no-split")
    assert one["copies"] == {}
    # proven: no plan of single layers is faster
    assert one["cycles_per_frame"] == one["any_bound_cycles_per_frame"]
    several = told(case, *AUTO)
    assert 2 * several["cycles_per_frame"] <= one["cycles_per_frame"]
    assert several["copies"]["c_node"] > 1
    again = case.step(*AUTO)
    assert again.out.startswith("place: unchanged")
    text = ", ".join(f"{layer}={count}" for layer, count in several["copies"].items() if count > 1)
    assert f"copies: {text} (as --copy makes)" in again.out
    assert same_graphs(case, *(f"{layer}={count}" for layer, count in several["copies"].items()))


def unlike_clocks() -> str:
    """A board at 300 MHz and one at 200, of few DSP blocks."""
    head, board, devices = CLUSTER.partition("[[board]]")
    board, device, devices = (board + devices).partition("[[device]]")
    slow = board.replace('"agilex"', '"slow"')
    fast = board.replace('"agilex"', '"agilex"\nclock_mhz = 300')
    placed = device + devices.replace('"worker"\nboard = "agilex"', '"worker"\nboard = "slow"')
    return with_few_dsp(0.0012, head + fast + slow + placed)


@pytest.mark.slow
def test_boards_of_unlike_clocks_are_faster_with_shares_of_unlike_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy on the slow board takes two of five frames in place of one of two; where one layer binds that is a
    fifth less time."""
    quick_costs(monkeypatch)
    found: dict[str, int] = {}
    for how in ("2", "3:2"):
        case = new_case(tmp_path / how.replace(":", "_"), unlike_clocks())
        done(case, "import", "--copy", f"c*={how}", "--copy", f"r*={how}")
        pins = [
            f"c_node{role}@{copy}={device}"
            for role in ("", ".gradient")
            for copy, device in ((0, "head"), (1, "worker"))
        ]
        words = "place", "--no-split", *(word for pin in pins for word in ("--pin", pin))
        plan = told(case, *words)
        assert {str(copies) for copies in plan["copies"].values()} == {how}
        again = case.step(*words).out
        assert again.startswith("place: unchanged")
        assert f"copies: c*={how}, r*={how} (as --copy makes)" in again
        found[how] = plan["cycles_per_frame"]
    assert 5 * found["2"] == 6 * found["3:2"]


@pytest.mark.slow
def test_shares_are_chosen_by_the_clocks_of_boards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two boards at 300 MHz and two at 200: three of five frames for the copy on the fast ones.  Copies of equal shares
    bring nothing there."""
    quick_costs(monkeypatch)
    fast, slow = '"worker"\nboard = "agilex"', '"worker"\nboard = "slow"'
    more = "".join(f'[[device]]\nname = "f{n}"\nboard = "slow"\n' for n in range(2))
    cluster = unlike_clocks().replace(slow, fast).replace("0.0012", "0.002") + more
    found: dict[str, int] = {}
    for how in ("unlike", "equal"):
        if how == "equal":
            monkeypatch.setattr(copying, "unlike_shares", lambda *_: None)
            monkeypatch.setattr(copying, "shares_of_groups", lambda *_: None)
        case = new_case(tmp_path / how, cluster).must("import")
        plan = told(case, *AUTO)
        found[how] = plan["cycles_per_frame"]
        if how == "unlike":
            assert plan["copies"]["c_node"] == "3:2", plan["copies"]
            assert same_graphs(case, *(f"{layer}={copies}" for layer, copies in plan["copies"].items()))
    assert found == {"unlike": 90, "equal": 144}


@pytest.mark.slow
def test_a_layer_that_the_user_names_stays_single(case: Case) -> None:
    kept = told(case, *AUTO, "--pin", "c_node=head")
    assert "c_node" not in kept["copies"]


@pytest.mark.slow
@pytest.mark.parametrize(("more", "searched"), [(1, False), (0, True)])
def test_where_a_bound_tells_that_copies_are_no_faster_none_is_searched(
    more: int, searched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound of any graph with copies is told to be so many cycles more than what is just worth a search."""
    quick_costs(monkeypatch)
    case = new_case(tmp_path, small_devices(2)).must("import")
    cycles = told(case, "place", "--no-split")["cycles_per_frame"]
    bound, proven = math.floor(cycles / LEAST_RATIO) + more, Foldings.bound
    assert bound < cycles

    def pretended(foldings: Foldings, search: SearchOptions, deadline: Deadline) -> Bound:
        told = proven(foldings, search, deadline)
        return Bound(bound, "as the test has it") if foldings.prices.graph.dealt else told

    monkeypatch.setattr(Foldings, "bound", pretended)
    forms, searches = counted(monkeypatch, Former, "better"), counted(monkeypatch, Planner, "run")
    several = told(case, *AUTO)
    assert several["finished"]
    # copies of all are offered at least
    assert forms
    assert (len(searches) > 1) == searched
    # never slower than without
    assert several["cycles_per_frame"] <= cycles


def counted(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> list[object]:
    """Calls of a method from now on."""
    calls: list[object] = []
    method: Callable[..., object] = getattr(kind, name)

    def counting(self: object, *arguments: object) -> object:
        calls.append(arguments)
        return method(self, *arguments)

    monkeypatch.setattr(kind, name, counting)
    return calls


@pytest.mark.slow
def test_copies_that_the_user_wants_are_those_of_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path).must("import")
    found = told(case, "place", "--no-split", "--copy", "c*=2")
    assert found["copies"] == {"c*": 2}
    assert {"c_node@0", "c_node@1"} <= {item.item for item in load_plan(case.workspace).items}
    assert same_graphs(case, "c*=2")
    # on top of those of import
    found = told(case, "place", "--no-split", "--copy", "y_node=3")
    assert copies_of(load_placed_graph(case.workspace)) == {"c_node": 2, "y_node": 3}
    assert same_graphs(case, "c*=2", "y_node=3")
    for how in ("2", "3:2"):
        case.must("import")
        found = told(case, "place", "--no-split", "--replicas", how)
        assert {layer: str(copies) for layer, copies in found["copies"].items()} == {"*": how}
        assert same_graphs(case, f"*={how}")


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (("--replicas", "0"), ["--replicas 0 is no number of copies; write auto, or e.g. 2, or 3:2"]),
        (("--replicas", "3:0"), ["--replicas 3:0 is no number of copies"]),
        (("--replicas", "40:1"), ["40:1 copies of *: of 16 frames a batch some copy gets none"]),
        (("--replicas", "3:2", "--copy", "c_node=2"), ["--replicas 3:2 and --copy: both say how many copies"]),
        (("--replicas", "some"), ["--replicas some is no number of copies"]),
        (("--replicas", "2", "--copy", "c_node=2"), ["--replicas 2 and --copy: both say how many copies there are"]),
        (("--replicas", "auto", "--solver", "literal"), ["only the fast search chooses copies"]),
        (("--replicas", "99"), ["99 copies of *: a batch has 16 frames"]),
        (("--copy", "q=2", "--copy", "c_node=99"), ["no layer matches 'q'", "99 copies of c_node"]),
        (("--copy", "c_node"), ["is not LAYER=COPIES"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_copies_that_cannot_be_are_refused_before_anything_is_done(
    words: Sequence[str], messages: Sequence[str], tmp_path: Path
) -> None:
    case = new_case(tmp_path).must("import")
    outcome = case.step("place", *words)
    assert outcome.code == 1
    for message in messages:
        assert message in outcome.error
    assert not (case.out / "place").exists()


@pytest.mark.slow
def test_a_search_that_is_ended_while_copies_are_tried_goes_on(case: Case) -> None:
    def interrupted(former: Former, *_: object) -> tuple[None, bool]:
        former.deadline.interrupt()
        return None, True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Former, "better", interrupted)
        ended = case.step(*AUTO)
    assert ended.code == 0
    assert "the same command goes on from this plan" in ended.out
    assert not (case.out / "place" / "graph.json").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Former, "better", only_once(Former.better))
        second = case.step(*AUTO)
    assert "copies: " in second.out
    assert "the same command goes on from this plan" in second.out
    third = case.step(*AUTO)
    assert "copies: " in third.out
    assert "goes on" not in third.out


def only_once(better: Callable[..., Any]) -> Callable[..., Any]:
    """A method that works when it is called first, and is interrupted then."""
    calls: list[object] = []

    def method(former: Former, *arguments: object) -> Any:
        calls.append(arguments)
        return better(former, *arguments) if len(calls) == 1 else (None, True)

    return method


@pytest.mark.slow
def test_a_plan_is_kept_if_the_model_of_which_there_could_be_copies_is_gone(case: Case) -> None:
    case.model.unlink()
    outcome = case.step(*AUTO)
    assert outcome.code == 0, outcome.error
    assert "warning: copies were not tried" in outcome.out


def test_layers_are_slow_by_their_slowest_node_and_ends_of_copies_are_not_helped(tmp_path: Path) -> None:
    case = done(new_case(tmp_path), "import", "--copy", "c_node=2")
    graph = load_training_graph(case.workspace)
    dealing = next(node for node in graph.nodes if node.role is Role.DEAL)
    updates = [node.name for node in graph.nodes if node.layer.works_per_batch and node.whole == "y_node"]
    found = slow_layers(graph, {"y_node": 90, "c_node@0": 130, "c_node@1": 110, "relay": 500}, 100)
    assert {name: (one.cycles_per_frame, one.copies) for name, one in found.items()} == {"c_node": (130, 3)}
    assert slow_layers(graph, {"y_node": 101}, 100)["y_node"].copies == 2
    assert slow_layers(graph, {"y_node": 200}, 100)["y_node"].copies == 2
    assert slow_layers(graph, {"y_node": 200, updates[0]: 101}, 100)["y_node"].copies is None
    assert slow_layers(graph, {dealing.name: 101}, 100)[dealing.whole].copies is None
    # more than a batch has frames
    assert slow_layers(graph, {"y_node": 100 * graph.recipe.batch + 1}, 100)["y_node"].copies is None
