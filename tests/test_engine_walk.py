"""The geometry of engines: tables of moves, rows needed and freed, size of the ring."""

import itertools

import numpy as np
import pytest

from hdl.engine.window.walk import Axis, Walk


def random_axis(rng: np.random.Generator, transposed: bool) -> Axis:
    """An axis of a layer that exists: kernel no larger than the padded map."""
    while True:
        size, kernel, stride, dilation = (int(n) for n in rng.integers(1, [9, 6, 5, 5]))
        dilation = dilation if rng.random() < 0.5 else 1
        extent = (kernel - 1) * dilation + 1
        before, after = (int(n) for n in rng.integers(0, extent + 1, 2))
        outputs = (size + before + after - extent) // stride + 1
        if size + before + after >= extent:
            break
    parallel = kernel if rng.random() < 0.3 and (not transposed or stride == 1) else 1
    if transposed:
        return Axis(outputs, size, kernel, stride, before, parallel, True, dilation)
    return Axis(size, outputs, kernel, stride, before, parallel, dilation=dilation)


def random_walk(seed: int) -> Walk:
    """A forward or error walk with random groups."""
    rng = np.random.default_rng(seed)
    transposed = bool(rng.integers(2))
    steps = ((1, 0), (0, 1))[int(rng.integers(2))]
    reduce, repeat = (int(n) for n in rng.integers(1, 4, 2))
    if steps == (0, 1):
        reduce = 1
    return Walk(random_axis(rng, transposed), random_axis(rng, transposed), reduce, repeat, steps)


def operations(walk: Walk, frames: int) -> list[tuple[int, int, tuple[int, ...]]]:
    """(level that ticks after it, phase, indices) of every operation, by plain loops."""
    found = []
    for frame, row, column in itertools.product(range(frames), range(walk.rows.outputs), range(walk.columns.outputs)):
        phase = walk.rows.phase(row) * walk.columns.phases + walk.columns.phase(column)
        taps_w, taps_h, reduces, _ = walk.limits(phase)
        for repeat, reduce, tap_h, tap_w in itertools.product(
            range(walk.repeat), range(reduces), range(taps_h), range(taps_w)
        ):
            ends = (
                tap_w == taps_w - 1,
                tap_h == taps_h - 1,
                reduce == reduces - 1,
                repeat == walk.repeat - 1,
                column == walk.columns.outputs - 1,
                row == walk.rows.outputs - 1,
                False,
            )
            found.append((ends.index(False), phase, (row, column, repeat, reduce, tap_h, tap_w, frame)))
    return found


@pytest.mark.parametrize("seed", range(40))
def test_tables_of_moves_lead_from_every_operation_to_the_next(seed: int) -> None:
    walk = random_walk(seed)
    ops = operations(walk, 2)
    assert len(ops) == 2 * walk.cycles
    for value in (
        walk.address,
        lambda *indices: walk.rows.position(indices[0], indices[4]),
        lambda *indices: walk.columns.position(indices[1], indices[5]),
    ):
        table = walk.deltas(value)
        for (level, phase, before), (_, _, after) in itertools.pairwise(ops):
            assert value(*before) + table[level * walk.phases + phase] == value(*after), (seed, before, after)


@pytest.mark.parametrize("seed", range(40))
def test_rows_are_needed_before_they_are_read_and_freed_after(seed: int) -> None:
    walk = random_walk(seed)
    axis = walk.rows
    needs, freed = axis.needs, axis.freed()
    assert freed[-1] == axis.stored
    assert list(freed) == sorted(freed)
    before = 0
    for output in range(axis.outputs):
        for step in range(axis.count(axis.phase(output))):
            for tap in range(axis.parallel):
                row = axis.position(output, step) + axis.tap_distance * tap
                if 0 <= row < axis.stored:
                    assert before <= row < needs[output], (seed, output, row)
        before = freed[output]


def test_a_transposed_axis_visits_exactly_the_taps_that_exist() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        axis = random_axis(rng, True)
        for output in range(axis.outputs):
            visited = {
                axis.tap_group(axis.phase(output), step) * axis.parallel + tap
                for step in range(axis.count(axis.phase(output)))
                for tap in range(axis.parallel)
            }
            places = {k: output + axis.before - k * axis.dilation for k in range(axis.kernel)}
            assert visited == {k for k, place in places.items() if place % axis.stride == 0}, axis
            first = next((places[k] // axis.stride for k in sorted(visited)), None)
            assert first in (None, axis.position(output, 0)), axis


def test_a_kernel_of_three_rows_needs_five_rows_at_most() -> None:
    axis = Axis(32, 32, 3, 1, 1)
    walk = Walk(axis, axis, 4, 4)
    assert 4 <= walk.ring_rows(32 * 4, walk.cycles, tuple(walk.strip_cycles)) <= 5


def test_a_kernel_over_the_whole_map_needs_two_maps() -> None:
    axis = Axis(7, 1, 7, 1, 0)
    walk = Walk(axis, axis, 1, 1)
    assert 13 <= walk.ring_rows(7, 49, tuple(walk.strip_cycles)) <= 17
