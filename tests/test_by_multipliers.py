"""Chains on boards by their multipliers: what holds of each, and what was simulated of FPDeep's networks."""

from __future__ import annotations

import random
import re
from collections import defaultdict

import pytest

from benchmarks import by_multipliers, long_chains, simulate_fast
from benchmarks.by_multipliers import Board, fastest, in_parts, in_row, packed, placed
from benchmarks.fpdeep import CLOCK_HZ, DSP, NETS, PART, Bare, chain, forward
from dagtrain.graph.ir import Graph, Role
from dagtrain.passes.autodiff import differentiate
from dagtrain.planning.choices import cluster_dram
from dagtrain.planning.rate import wired_graph
from dagtrain.progress import Silent
from dagtrain.simulate.fast import simulate_fast as simulate
from hdl.errors import DagtrainError
from hdl.layers.conv.roles import GradientEngine
from hdl.recipe import Recipe
from tests.suites import quick

BATCH = 16
SMALL = Board(PART, 100, 1024.0)
DEVICES = tuple(f"fpga-{index}" for index in range(4))


def small_net(staleness: int = BATCH) -> Graph:
    """Three convolutions and a dense layer."""
    build = Bare("small", Recipe(batch=BATCH, staleness=staleness))
    x = build.max_pool(build.relu(build.conv(build.input(12, 12, 2), 8, 3, padding=1)), 2, 2)
    x = build.relu(build.conv(build.relu(build.conv(x, 8, 3, padding=1)), 16, 3, padding=1))
    return build.classify(build.gemm(x, 4, bias=False))


@pytest.mark.slow
def test_all_engines_stand_on_their_boards_and_the_pace_is_that_of_the_slowest() -> None:
    training = differentiate(small_net())
    chosen = fastest(training, 4, SMALL)
    folded = in_parts(small_net(), chosen)
    macs = sum(node.layer.macs for node in training.nodes)
    assert chosen.cycles >= macs / (4 * SMALL.dsp)
    # some layer is in parts
    assert any(one.way.how.count > 1 for one in chosen.chosen.values())
    where = placed(folded, chosen, DEVICES)
    assert where.keys() == folded.by_name.keys()
    built: dict[str, int] = defaultdict(int)
    for node in folded.nodes:
        assert node.layer.cycles_per_frame <= chosen.cycles
        if not node.layer.pinned_to_host:
            built[where[node.name]] += node.layer.multipliers
    assert max(built.values()) <= SMALL.dsp
    cluster = simulate_fast.cluster_of(4)
    wired = wired_graph(folded, where, cluster, chosen.cycles, cluster_dram(cluster, chosen.cycles), link_words=64)
    assert wired.hops
    simulated = simulate(wired, 3, 200.0, Silent())
    assert simulated.batch_interval is not None
    assert simulated.batch_interval / BATCH >= 0.999 * chosen.cycles
    port, both = simulate_fast.ports(simulated)
    assert 0 < port < both <= 2 * port


@pytest.mark.parametrize("update_frames", quick(1, [0.25, None]))
def test_every_part_has_the_multipliers_that_are_planned(update_frames: float | None) -> None:
    unlike = 0
    for boards, dsp in [(3, 60), (4, 60), (5, 60), (6, 60), (7, 60)]:
        chosen = fastest(differentiate(small_net()), boards, Board(PART, dsp, 1024.0), update_frames=update_frames)
        built: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for node in in_parts(small_net(), chosen).nodes:
            if node.layer.multipliers and not node.layer.pinned_to_host:
                built[node.whole][node.layer_of].append(node.layer.multipliers)
        for whole, one in chosen.chosen.items():
            if one.way.how.by_rows:
                assert all(max(sizes) <= one.fits[0].multipliers for sizes in built[whole].values())
                continue
            assert [*map(set, built[whole].values())] == [{fit.multipliers} for fit in one.fits]
            unlike += len({fit.multipliers for fit in one.fits}) > 1
    assert unlike, "no layer is in parts of unlike sizes"


def test_layers_are_in_more_parts_where_as_many_multipliers_in_fewer_find_no_room() -> None:
    training, boards, board = differentiate(small_net()), 6, Board(PART, 60, 1024.0)
    chosen = fastest(training, boards, board)
    few = by_multipliers.choose(by_multipliers.ways(training), chosen.cycles, board.dsp, board)
    assert few is not None
    assert {whole: one.total for whole, one in few.items()} == {w: one.total for w, one in chosen.chosen.items()}
    assert sum(one.way.how.count for one in few.values()) < sum(one.way.how.count for one in chosen.chosen.values())
    assert packed([group for one in few.values() for group in one.groups], boards, board.dsp) is None
    assert packed([group for one in chosen.chosen.values() for group in one.groups], boards, board.dsp) is not None


@pytest.mark.slow
def test_rests_once_a_batch_are_in_the_pace_that_is_planned_where_it_is_said_how_long_sums_take() -> None:
    training = differentiate(small_net())
    inside, counted = fastest(training, 4, SMALL), fastest(training, 4, SMALL, update_frames=0.25)
    paces = []
    for chosen in (inside, counted):
        folded = in_parts(small_net(), chosen)
        where, cluster = placed(folded, chosen, DEVICES), simulate_fast.cluster_of(4)
        wired = wired_graph(folded, where, cluster, chosen.cycles, cluster_dram(cluster, chosen.cycles), link_words=64)
        simulated = simulate(wired, 3, 200.0, Silent())
        assert simulated.batch_interval is not None
        paces.append(simulated.batch_interval / BATCH)
        engines = [node.layer for node in folded.nodes if isinstance(node.layer, GradientEngine)]
        slowest = max(engine.cycles_per_frame + engine.drain_cycles / BATCH for engine in engines)
        # of whole cycles a frame each
        assert (slowest <= chosen.cycles) == (chosen is counted)
        assert (paces[-1] <= chosen.cycles * 1.01) == (chosen is counted)
    assert paces[1] < paces[0]


def test_an_engine_of_every_part_finds_room_and_none_finds_it_twice() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(200):
        boards, dsp = draw.randint(1, 6), draw.randint(5, 30)
        groups = [[draw.randint(1, dsp)] * draw.randint(1, 3) for _ in range(draw.randint(1, 8))]
        found = packed(groups, boards, dsp)
        if found is None:
            # there is no room for a largest engine more on each board
            assert sum(map(sum, groups)) + boards * max(map(max, groups)) > boards * dsp
            continue
        filled = [0] * boards
        for group, row in zip(groups, found, strict=True):
            for size, board in zip(group, row, strict=True):
                filled[board] += size
        assert max(filled) <= dsp
    assert packed([[3, 3], [2]], 1, 7) is None
    assert packed([[3, 3], [2, 2]], 2, 6) == [[0, 0], [1, 1]]


def test_engines_in_a_row_stand_beside_the_one_before_them_or_on_the_next_board() -> None:
    assert in_row([[3, 3], [2]], 1, 7) is None
    assert in_row([[8]], 2, 7) is None
    # room that is left on a board before is not gone back to
    assert in_row([[3, 3], [2, 2], [1]], 2, 7) == [[0, 0], [1, 1], [1]]
    assert in_row([[4], [4], [3]], 2, 7) == [[0], [1], [1]]


@pytest.mark.slow
def test_words_in_a_row_go_over_as_many_cables_as_the_chain_has_between_their_boards() -> None:
    training = differentiate(small_net())
    cluster = simulate_fast.cluster_of(4, topology=simulate_fast.CHAIN)
    routing = cluster.routing
    assert routing is not None
    chosen = fastest(training, 4, SMALL, in_row)
    folded = in_parts(small_net(), chosen)
    where = placed(folded, chosen, DEVICES)
    at = {name: index for index, name in enumerate(DEVICES)}
    # what the host has is on the first board; engines follow one another
    forward = [node for node in folded.nodes if node.layer.multipliers and node.role is Role.FORWARD]
    order = [at[where[node.name]] for node in forward if not node.layer.pinned_to_host]
    assert order == sorted(order)
    assert order[-1] == 3
    wired = wired_graph(folded, where, cluster, chosen.cycles, cluster_dram(cluster, chosen.cycles), link_words=64)
    mean, most = long_chains.walked(wired, routing)
    assert 1 < mean < most <= 3
    loads: dict[tuple[str, str], float] = defaultdict(float)
    total = passed = 0.0
    for _edge, producer, source, consumer, _sink in folded.streams:
        bits = source.tensor.bits / (BATCH if source.tensor.kind.per_batch else 1)
        a, b = at[where[producer.name]], at[where[consumer.name]]
        total += bits * (a != b)
        for step in range(min(a, b), max(a, b)):
            ends = (DEVICES[step], DEVICES[step + 1]) if a < b else (DEVICES[step + 1], DEVICES[step])
            loads[ends] += bits
            passed += bits
    assert mean == pytest.approx(passed / total)
    # the same cable is the fullest one of a simulation, whose words have headers and are filled up
    simulated = simulate(wired, 3, 200.0, Silent())
    gbps, name = long_chains.fullest(simulated, simulate_fast.CHAIN)
    most_loaded = max(loads, key=loads.__getitem__)
    assert name == " -> ".join(most_loaded)
    assert gbps >= loads[most_loaded] / chosen.cycles * 0.2 * 0.98
    assert long_chains.fullest(simulated, simulate_fast.SWITCH)[1] == "a port"


def test_too_few_multipliers_are_told() -> None:
    with pytest.raises(DagtrainError, match="small on 1 boards of 2 DSP blocks: no interval was found"):
        fastest(differentiate(small_net()), 1, Board(PART, 2, 1024.0))


def test_copies_of_an_input_stay_within_the_link() -> None:
    training = differentiate(small_net())
    slow = Board(PART, SMALL.dsp, 1e-3)
    for one in fastest(training, 4, slow).chosen.values():
        assert one.way.copied_bits <= by_multipliers.COPIES * slow.link_bits * fastest(training, 4, slow).cycles


def test_engines_of_weights_that_take_longer_than_a_frame_to_pass_a_link_stand_together() -> None:
    training = differentiate(small_net())
    slow = Board(PART, SMALL.dsp, 1.0)
    chosen = fastest(training, 4, slow)
    heavy = {whole for whole, one in chosen.chosen.items() if one.together}
    assert heavy
    for whole in heavy:
        one = chosen.chosen[whole]
        assert max(engines[0].port("w").tensor.bits for engines in one.way.parts) > chosen.cycles
        assert max(map(sum, one.groups)) <= slow.dsp
    folded = in_parts(small_net(), chosen)
    where = placed(folded, chosen, DEVICES)
    boards: dict[str, set[str]] = defaultdict(set)
    for node in folded.nodes:
        if node.whole in heavy and node.layer.multipliers:
            boards[node.layer_of].add(where[node.name])
    assert boards
    assert all(len(found) == 1 for found in boards.values())
    # on a fast link no layer need
    assert not any(one.together for one in fastest(training, 4, SMALL).chosen.values())


# ---- what was simulated


def test_results_are_of_fpdeeps_networks_and_none_is_faster_than_multipliers_allow() -> None:
    points = simulate_fast.known()
    assert {net for net, _ in points} == set(NETS)
    for (net, boards), one in points.items():
        # without the first layer's error engine, which no network of ours has
        assert one.bound_cycles == pytest.approx(chain(net).operations / 2 / (boards * DSP), rel=0.04)
        assert one.simulated_cycles >= 0.9999 * one.planned_cycles >= 0.9999 * one.bound_cycles
        assert one.empty >= one.idle_mean - 0.02
        assert one.dsp_share <= 1 + 1e-3
        assert one.staleness <= one.batch


@pytest.mark.slow
def test_training_is_as_fast_as_the_recurrence_over_frames_says() -> None:
    """Two ways to the same number: events one by one, and when each frame passes each node (`Wired.batch_time`)."""
    point = simulate_fast.known()["AlexNet", 10]
    cluster = simulate_fast.cluster_of(point.boards)
    board = Board(PART, cluster.devices[0].board.dsp, simulate_fast.LINK_GBPS * 1e9 / CLOCK_HZ)
    training = differentiate(forward(point.net, recipe=Recipe(batch=point.batch)))
    chosen = fastest(training, point.boards, board, update_frames=simulate_fast.UPDATE_FRAMES)
    wired = simulate_fast.laid(point.net, chosen, cluster, batch=point.batch)
    assert wired.graph.recipe.batch == point.batch
    assert wired.batch_time.cycles / point.batch == pytest.approx(point.simulated_cycles, rel=1e-4)


def test_the_page_has_the_table() -> None:
    page = simulate_fast.DOCS.read_text()
    assert simulate_fast.with_table(page, simulate_fast.known().values()) == page
    with pytest.raises(DagtrainError, match=r"fpdeep\.md has no table"):
        simulate_fast.with_table("no marks", [])


# ---- long chains


def test_a_chain_is_no_faster_than_a_switch_and_the_page_has_both() -> None:
    points = long_chains.known()
    found = {(one.net, one.boards, one.way): one for one in points}
    chains = [one for one in points if one.way == "in row, chain"]
    assert chains
    for one in chains:
        switch = found[one.net, one.boards, "packed, switch"]
        assert one.program == switch.program
        assert one.simulated_cycles >= 0.9999 * one.planned_cycles >= 0.9999 * one.bound_cycles
        assert one.simulated_cycles >= 0.999 * switch.simulated_cycles
        assert one.fullest_gbps <= simulate_fast.LINK_GBPS
        assert 1 < one.cables_mean < one.cables_most <= one.boards - 1
    page = long_chains.DOCS.read_text()
    assert long_chains.with_table(page, points) == page


@pytest.mark.slow
def test_what_a_chain_is_planned_for_is_told_beside_a_switch() -> None:
    found = re.fullmatch(
        r"AlexNet on 5 boards in a chain, planned: ([\d,]+) cycles a frame, [\d,.]+ frames/s, ([\d.]+)% of bound; "
        r"fullest cable fpga-(\d) -> fpga-(\d): ([\d.]+) of 150 Gbit/s\n"
        r"over a switch, packed: ([\d,]+) cycles a frame, [\d,.]+ frames/s, ([\d.]+)% of bound",
        long_chains.planned("AlexNet", 5),
    )
    assert found
    row, row_share, a, b, gbps, switch, switch_share = found.groups()
    # of equals, the first cable
    assert abs(int(a) - int(b)) == 1
    assert 0 < float(gbps) < simulate_fast.LINK_GBPS
    for cycles, share in ((row, row_share), (switch, switch_share)):
        bound = chain("AlexNet").operations / 2 / (5 * DSP)
        assert bound / int(cycles.replace(",", "")) == pytest.approx(float(share) / 100, rel=0.04)
