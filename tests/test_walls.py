"""`dagtrain place --walls`: the linear program against programs solved by hand, against proven bounds and optima;
levers change what they say they do, and never make anything worse."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dagtrain.flow import walls_step
from dagtrain.graph.ir import Role
from dagtrain.passes.ragged_tiles import ragged_tiles
from dagtrain.passes.recompute import kept_edges, recompute
from dagtrain.passes.share_weights import share_weights, sharing_nodes
from dagtrain.planning.levers import LEVERS
from dagtrain.planning.menus import Lever, Menu, Situation
from dagtrain.planning.offers import Offer, Piece, Use
from dagtrain.planning.prices import Prices
from dagtrain.planning.problem import Problem
from dagtrain.planning.walls import Outlook, Outlooker
from dagtrain.progress import Silent
from hdl.costs.estimate import Estimator
from hdl.layers.capabilities import is_engine, with_sums_of
from hdl.layers.storage import Home
from hdl.layers.wiring.update import Update
from hdl.recipe import Recipe
from hdl.tensor import Tile
from placement.bounds.aggregate import Aggregate
from placement.bounds.bound import aggregate_bound, single_bound
from placement.diagnosis import walls as wall_module
from placement.diagnosis.walls import PACE, WALLS, Walls
from placement.problem.deadline import Deadline
from placement.problem.flat import flatten
from placement.problem.instance import Configuration, Device, Instance, Item
from placement.search.search import SearchOptions
from tests.bound_instances import Known, stored
from tests.bound_mutants import restricted
from tests.cosim_support import residual_net
from tests.flow_support import QuickEstimator, new_case, quick_costs
from tests.test_relays import small_cluster

# cycles a frame at which the rules are looked at
CYCLES = 400
# the program's relative error
CLOSE = 1e-4


def _instance(items: Sequence[Item], **capacities: int) -> Instance:
    """Items on one device of 1 kHz, with nothing but these."""
    has = {"dsp": 0, "m20k": 0, "alm": 0, "dram_bytes_per_s": 0, "link_bits_per_s": 0, **capacities}
    return Instance(
        name="by hand", clock_hz=1000, items=tuple(items), links=(), devices=(Device(name="d", part="P", **has),)
    )


def _item(name: str, *menu: tuple[int, dict[str, Any]]) -> Item:
    found = tuple(
        Configuration(label=str(number), cycles_per_frame=cycles, **costs)
        for number, (cycles, costs) in enumerate(menu)
    )
    group = "g" if found[0].tile is not None else None
    return Item(name=name, configurations={"P": found}, tile_group=group)


def _by_hand() -> list[tuple[Instance, float | None, str]]:
    """Instances, the least cycles a frame worked out by hand, and what binds."""
    slow_or_fast = _item("i", (100, {"dsp": 10}), (50, {"dsp": 20}))
    inside_or_outside = _item("i", (10, {"dram_bytes_per_frame": 30}), (10, {"m20k": 4}))
    one = (10, {"dsp": 1, "tile": "a"}), (10, {"dsp": 3, "tile": "b"})
    other = (10, {"dsp": 3, "tile": "a"}), (10, {"dsp": 1, "tile": "b"})
    return [
        # half of each: (1 / 100 + 1 / 50) / 2 frames a cycle
        (_instance([slow_or_fast], dsp=15), 200 / 3, "dsp"),
        (_instance([slow_or_fast], dsp=20), 50, PACE),
        (_instance([slow_or_fast], dsp=9), None, ""),
        # 30 bytes a frame, 200 a second: 6.67 frames a second
        (_instance([_item("i", (10, {"dram_bytes_per_frame": 30}))], dram_bytes_per_s=200), 150, "dram"),
        # a share x outside moves 30 x bytes, the rest of 4 blocks stays: x = 1/2, 15 bytes, 75 cycles
        (_instance([inside_or_outside], dram_bytes_per_s=200, m20k=2), 75, "m20k"),
        # one tile for both: 4 blocks, whichever; each its own would be 2
        (_instance([_item("i", *one), _item("j", *other)], dsp=4), 10, PACE),
        (_instance([_item("i", *one), _item("j", *other)], dsp=3), None, ""),
        # 3 000 ALMs make each of two half fast: (1 / 80 + 1 / 20) / 2 frames a cycle
        (_instance([_item(name, (80, {"alm": 1000}), (20, {"alm": 2000})) for name in "ij"], alm=3000), 32, "alm"),
    ]


def _wrong_by_hand(module: ModuleType) -> list[str]:
    """Where the program of a module differs from what was worked out by hand."""
    wrong = []
    for number, (instance, cycles, binds) in enumerate(_by_hand()):
        found = module.Walls(instance).standing()
        if cycles is None or found is None:
            same = found is None and cycles is None
        else:
            same = abs(found.cycles_per_frame / cycles - 1) < CLOSE and found.binding == binds
        if not same:
            wrong.append(f"case {number}: {found}, not {cycles} by {binds}")
    return wrong


def test_the_program_finds_what_is_worked_out_by_hand() -> None:
    assert _wrong_by_hand(wall_module) == []


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("sums.SetCoefficient(share, -1.0)", "sums.SetCoefficient(share, -2.0)"),
        ('self._room("dram") / max(frames, 1e-9)', 'self._room("dram")'),
        ("pace.SetCoefficient(self.rate, -1.0)", "pace.SetCoefficient(self.rate, -2.0)"),
        ("return 1.0 if self.walls.capacities[wall] else 0.0", "return 1.05 if self.walls.capacities[wall] else 0.0"),
        ("return 1.0 if self.walls.capacities[wall] else 0.0", "return 0.95 if self.walls.capacities[wall] else 0.0"),
        ("self.solver.Constraint(0.0, 0.0) if tile", "self.solver.Constraint(-1.0, 1.0) if tile"),
    ],
)
def test_a_fault_in_the_program_is_found(text: str, instead: str) -> None:
    assert _wrong_by_hand(_mutant(wall_module, text, instead)) != []


def test_no_wall_is_above_a_proven_bound_or_an_optimum_and_each_alone_is_below_all() -> None:
    tight = 0
    for known in _some(4):
        instance = restricted(known)
        walls = Walls(instance)
        found = walls.standing()
        assert found is not None, f"seed {known.problem.seed} has a placement"
        ceiling = 1 << 30
        proven = aggregate_bound(Aggregate(instance, flatten(instance)), single_bound(instance, ceiling), ceiling)
        cycles = found.cycles_per_frame
        assert cycles <= proven.cycles_per_frame * (1 + CLOSE) <= known.optimum * (1 + CLOSE), known.problem.seed
        for wall in WALLS:
            alone = walls.standing([wall])
            assert alone is not None
            assert alone.cycles_per_frame <= cycles * (1 + CLOSE), (known.problem.seed, wall)
        falling = [fallen.cycles_per_frame for fallen in walls.falling()]
        assert falling == sorted(falling, reverse=True), known.problem.seed
        tight += found.binding != PACE and cycles * 1.1 > proven.cycles_per_frame
    # it is of no use if it is always far below
    assert tight >= 4


def _some(step: int) -> tuple[Known, ...]:
    return stored()[::step]


# ---- levers


@cache
def _prices() -> Prices:
    return Prices(residual_net(1), small_cluster(1, 40), Estimator(), {}, Silent())


@cache
def _menu() -> Menu:
    return Menu.of(_prices().costs(CYCLES), LEVERS)


def _totals(levers: Sequence[Lever], menu: Menu, role: Role | None = None) -> dict[str, tuple[int, int]]:
    """Node -> ALMs and bits of memories of its first offer, all on chip."""
    part, found = menu.parts[0], dict[str, tuple[int, int]]()
    for node, offer in menu.with_levers(levers):
        if role in (None, node.role) and node.name not in found:
            assert offer.choice.memory is Home.ON_CHIP
            memories = [shape for piece in offer.pieces for shape in _shapes(piece.contents.memories)]
            found[node.name] = menu.costs(offer, part)[2], sum(words * bits for words, bits in memories)
    return found


def _shapes(memories: Any) -> list[tuple[int, int]]:
    return [shape for shape, count in memories.items() for _ in range(count)]


def _lever(name: str) -> Lever:
    return next(lever for lever in LEVERS if lever.name == name)


# lever -> nodes of the residual network that it makes cheaper
TOUCHED: dict[str, Callable[[Any], bool]] = {
    "32-bit sums": lambda node: node.role is Role.GRADIENT and is_engine(node.layer),
    "one copy of weights": lambda node: is_engine(node.layer) and node.role in (Role.FORWARD, Role.ERROR),
}


@pytest.mark.parametrize("name", TOUCHED)
def test_a_lever_changes_what_it_says_and_nothing_else(name: str) -> None:
    menu = _menu()
    graph = menu.situation.graph
    before, after = _totals((), menu), _totals([_lever(name)], menu)
    changed = {node for node in before if after[node] != before[node]}
    wanted = {node.name for node in graph.nodes if TOUCHED[name](node)}
    if name == "one copy of weights":
        # the first layer has no error engine
        wanted = {node for node in wanted if graph.by_name[node].layer_of in menu.situation.twice_weighted}
        assert len(menu.situation.twice_weighted) < len({n.layer_of for n in graph.nodes if is_engine(n.layer)})
    assert changed == wanted != set()
    for node in changed:
        assert all(new <= old for new, old in zip(after[node], before[node], strict=True)), node


def test_sums_are_cut_to_the_bits_that_the_rule_says() -> None:
    menu = _menu()
    before, after = _totals((), menu, Role.GRADIENT), _totals([_lever("32-bit sums")], menu, Role.GRADIENT)
    for node in menu.situation.graph.nodes:
        if node.role is Role.GRADIENT and is_engine(node.layer):
            cut: Any = node.layer
            # two versions: one is summed while the other leaves, or one of all
            less = before[node.name][1] - after[node.name][1]
            assert less > 0
            assert less % (cut.weight_count * (cut.sum_bits - 32)) == 0


def test_an_update_with_fewer_lanes_costs_about_what_its_circuit_does() -> None:
    update = Update(shape=(64, 16), recipe=Recipe(batch=16), tile=Tile(8, 4), w_lanes=4)
    menu = _menu()
    node = replace(next(node for node in menu.situation.graph.nodes if node.role is Role.UPDATE), layer=update)
    (offer, *_), part = menu.offers[node.name], menu.parts[0]
    estimator = Estimator()

    def whole(layer: Update) -> Offer:
        return replace(offer, layer=layer, pieces=(Piece(Use.ENGINE, estimator.layer(layer)),))

    rule = _lever("one-lane updates").rule
    assert rule is not None
    ruled, built = rule(menu.situation, node, whole(update)), whole(replace(update, w_lanes=1))
    assert ruled is not None
    assert rule(menu.situation, node, built) is None
    before, said, found = (menu.costs(offer, part)[2] for offer in (whole(update), ruled, built))
    assert said < before / 2
    assert abs(said - found) < 0.3 * (before - found)


def test_what_follows_from_a_stash_is_that_behind_a_norm_up_to_where_branches_meet() -> None:
    situation = Situation(_prices().costs(CYCLES))
    graph = situation.graph
    layers = {(graph.by_name[node].layer_of, sink) for node, sink in situation.made_again}
    norm = next(node for node in graph.nodes if hasattr(node.layer, "epsilon") and node.role is Role.FORWARD)
    (relu,) = (consumer.name for consumer, _ in graph.consumers[norm.outputs["y"]])
    # the mask of the relu behind the norm; the inputs of both convolutions that read it
    assert (relu, "mask") in layers
    readers = {node.layer_of for node in graph.nodes if node.role is Role.GRADIENT and (node.layer_of, "x") in layers}
    assert len(readers) == 2
    # what the norm itself keeps stays
    assert not any(layer == norm.name for layer, _ in layers)


# ---- the whole


@cache
def _outlook(levers: tuple[Lever, ...] = LEVERS) -> Outlook:
    """Of a network on a device with few memories and ALMs."""
    cluster = small_cluster(1, 200)
    board = replace(cluster.devices[0].board, alm=50_000)
    tight = replace(cluster, devices=tuple(replace(device, board=board) for device in cluster.devices))
    prices = Prices(residual_net(1), tight, Estimator(), {}, Silent(), multiply=True)
    return Outlooker(Problem(prices.graph, tight, SearchOptions(), {}), prices, levers).look(Deadline())


def _worse(outlook: Outlook) -> list[str]:
    """Levers that make anything worse, or together less than alone."""
    today, together = outlook.today.cycles_per_frame, outlook.together.cycles_per_frame
    cycles = {row.levers[0].name: row.cycles_per_frame for row in outlook.rows}
    return [name for name, found in cycles.items() if not together / (1 + CLOSE) <= found <= today * (1 + CLOSE)]


def _blown_up(_: Situation, _node: Any, offer: Any) -> Any:
    """Ten times the registers, and a tenth of what it moves."""
    engine, *rest = offer.pieces
    contents = replace(engine.contents, registers=10 * engine.contents.registers)
    moved = [replace(piece, dram_bytes_per_frame=piece.dram_bytes_per_frame * Fraction(1, 10)) for piece in rest]
    return replace(offer, pieces=(replace(engine, contents=contents), *moved))


BAD = Lever("bad", "ten times the registers", _blown_up)


@pytest.mark.slow
def test_levers_help_together_and_none_makes_it_worse() -> None:
    outlook = _outlook()
    assert _worse(outlook) == []
    assert outlook.together.cycles_per_frame < outlook.today.cycles_per_frame / 1.02


def test_a_lever_that_costs_more_is_not_taken_unless_levers_could_not_be_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _worse(_outlook((BAD, *LEVERS[:1]))) == []
    # the fault that the check above is there for
    monkeypatch.setattr(Menu, "_changed", lambda self, rule, node, offer: [rule(self.situation, node, offer) or offer])
    assert "bad" in _worse(_outlook.__wrapped__((BAD, *LEVERS[:1])))


def test_a_lever_that_is_offered_is_told_by_its_offers() -> None:
    offered = Lever("memories outside", "", taken=lambda offer: offer.choice.memory is not Home.ON_CHIP)
    menu = Menu.of(_prices().costs(CYCLES), (offered,))
    everything = [offer for offers in menu.offers.values() for offer in offers]
    without = [offer for _, offer in menu.with_levers(())]
    taken = [offer for offer in everything if offer.choice.memory is not Home.ON_CHIP]
    assert [offer for _, offer in menu.with_levers((offered,))] == everything
    assert len(without) == len(everything) - len(taken)
    assert all(offer.choice.memory is Home.ON_CHIP for offer in without)


def test_constants_on_multipliers_are_offered_and_cost_fewer_alms() -> None:
    prices = Prices(residual_net(1), small_cluster(1, 40), Estimator(), {}, Silent(), multiply=True)
    menu, lever = Menu.of(prices.costs(CYCLES), LEVERS), _lever("constants on multipliers")
    assert lever.taken is not None
    found = {}
    for node, offer in menu.with_levers([lever]):
        found.setdefault(node.name, {}).setdefault(lever.taken(offer), menu.costs(offer, menu.parts[0]))
    both = [ways for ways in found.values() if len(ways) == 2]
    assert len(both) == 10
    assert all(ways[True][2] < ways[False][2] and ways[True][0] > ways[False][0] for ways in both)
    assert not any(lever.taken(offer) for _, offer in menu.with_levers(()))


def test_walls_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    monkeypatch.setattr(walls_step, "Estimator", QuickEstimator)
    case = new_case(tmp_path / "case")
    assert case.step("import").code == 0
    outcome = case.step("place", "--walls")
    assert outcome.code == 0, outcome.error
    assert "binds first: " in outcome.out
    assert "ratios, not promises" in outcome.out
    found = json.loads((case.out / "walls" / "walls.json").read_text())
    assert [row["lever"] for row in found["levers"]] == [*(lever.name for lever in LEVERS), "all together"]
    for row in found["levers"]:
        assert row["ratio"] == pytest.approx(
            found["today"][0]["cycles_per_frame"] / row["falling"][0]["cycles_per_frame"]
        )
        assert row["lever"] in outcome.out
        assert row["rule"] in outcome.out
    assert not any(row["taken"] for row in found["levers"])
    told = json.loads(case.step("place", "--walls", "--json").out)
    assert [result["step"] for result in told] == ["walls", "place"]
    assert told[0]["levers"] == found["levers"]
    assert not told[0]["done"]


def test_levers_that_are_in_force_are_told() -> None:
    imported, cluster = residual_net(1), small_cluster(1, 40)
    shared = share_weights(imported, [name for name, _ in sharing_nodes(imported)])
    narrow = replace(cluster, dram_unit_bits=32, dram_word_bits=128)
    sums = {node.name: with_sums_of(node.layer, 40) for node in imported.nodes}
    short = replace(imported, nodes=tuple(replace(node, layer=sums[node.name]) for node in imported.nodes))
    again, padded = recompute(imported, tuple(kept_edges(imported))), ragged_tiles(imported)
    for graph, where, name in (
        (imported, cluster, None),
        (shared, cluster, "one copy of weights"),
        (imported, narrow, "narrow DRAM units"),
        (short, cluster, "32-bit sums"),
        (padded, cluster, "ragged tiles"),
        (again, cluster, "recompute, no stash"),
    ):
        situation = Situation(Prices(graph, where, Estimator(), {}, Silent()).costs(CYCLES))
        assert [lever.name for lever in LEVERS if lever.in_force(situation)] == ([name] if name else [])
    # and there is nothing left to make again
    assert situation.made_again == frozenset()


def _mutant(module: ModuleType, text: str, instead: str) -> ModuleType:
    """A module with one piece of its text changed."""
    source = inspect.getsource(module)
    assert source.count(text) == 1, text
    found = ModuleType(module.__name__)
    found.__dict__.update({"__name__": module.__name__, "__file__": module.__file__})
    # dataclasses look their module up
    exec(compile(source.replace(text, instead), str(module.__file__), "exec"), found.__dict__)
    return found
