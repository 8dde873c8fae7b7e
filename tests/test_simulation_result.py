"""What a simulation reports follows from what it counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagtrain.flow.simulate_step import FEW_FRAMES, STEADY_DRIFT, _full, _unsteady
from dagtrain.simulate.result import (
    BatchWork,
    Binding,
    Bound,
    CableWork,
    FullWork,
    Idle,
    Level,
    NodeWork,
    Simulation,
    Span,
    binding,
    full_work,
)

ENGINE = NodeWork(
    node="c",
    device="a",
    per_batch=False,
    spans=(Span(10, 100), Span(60, 150), Span(210, 300), Span(260, 350)),
    multipliers=4,
    busy_multiplier_cycles=800,
)
UPDATE = NodeWork(
    node="u",
    device="a",
    per_batch=True,
    spans=(Span(150, 170), Span(350, 380)),
    multipliers=2,
    busy_multiplier_cycles=40,
)
FORK = NodeWork(node="f", device="b", per_batch=False, spans=ENGINE.spans, multipliers=0, busy_multiplier_cycles=0)
CABLE = CableWork(source="a", target="b", bits=9000, bits_per_cycle=32.0)
RUN = Simulation(
    level=Level.EXACT,
    clock_mhz=200.0,
    batch=2,
    cycles=380,
    worked_cycles=400,
    frame_cycles=(120, 180, 320, 380),
    nodes=(ENGINE, UPDATE, FORK),
    cables=(CABLE,),
    batches=(
        BatchWork(first_cycle=10, first_result=120, last_result=180, last_weights=190),
        BatchWork(first_cycle=210, first_result=320, last_result=380, last_weights=400),
    ),
    binds=binding((ENGINE, UPDATE, FORK), (CABLE,), 400),
)


def test_frames_a_second_count_what_is_between_batches_and_inside_they_do_not() -> None:
    assert RUN.batch_interval == 200
    assert RUN.frames_per_second == 2 * 200e6 / 200
    assert RUN.frame_interval == 60
    assert RUN.frames_per_second_inside == pytest.approx(200e6 / 60)


def test_the_pace_with_every_engine_at_work_is_that_of_the_slowest() -> None:
    results = (100, 200, 300, 400, 500, 600)
    # behind its first frame, and before its last one of all six
    fast = replace(ENGINE, spans=tuple(Span(end - 90, end) for end in (90, 190, 290, 390, 490, 550)))
    slow = replace(fast, node="s", device="b", spans=tuple(Span(end - 90, end) for end in (180, 300, 420, 540)))
    works = {"c": [0, 400, 800, 1200, 1600, 2000], "s": [0, 0, 200, 440, 680, 920]}
    found = full_work([fast, slow, UPDATE, FORK], works, results, {"c": 1.0, "s": 1.0})
    assert found == FullWork(
        first_frame=1,
        last_frame=4,
        cycles_per_frame=120,
        drift=0.0,
        idle=1 - (1200 + 680) / (10 * 300),
        idle_by_device={"a": 1 - 1200 / (6 * 300), "b": 1 - 680 / (4 * 300)},
    )
    # one of two copies
    copy = full_work([fast, slow], works, results, {"c": 1.0, "s": 0.5})
    assert copy is not None
    assert copy.cycles_per_frame == 100
    # which has ended the last of its three of six frames, and waits
    ended = full_work([fast, replace(slow, spans=slow.spans[:3])], works, results, {"c": 1.0, "s": 0.5})
    assert ended is not None
    assert ended.last_frame == 3
    # of an odd count the later half is the larger
    slower = full_work([fast, slow], works, (100, 200, 300, 420, 530, 600), {"c": 1.0, "s": 1.0})
    assert slower is not None
    assert (slower.first_frame, slower.last_frame) == (1, 4)
    assert slower.drift == pytest.approx(0.15)
    # of one interval nothing is told
    one = full_work([fast, slow], works, (100, 200, 400, 560, 600, 700), {"c": 1.0, "s": 1.0})
    assert one is not None
    assert one.drift is None
    idle = replace(slow, spans=())
    assert full_work([fast, idle], works, results, {"c": 1.0, "s": 1.0}) is None
    late = replace(slow, spans=(Span(410, 510),))
    assert full_work([fast, late], works, results, {"c": 1.0, "s": 1.0}) is None


def test_batches_while_fifos_fill_do_not_count() -> None:
    """From the first to the last one of the later half, and of two batches or three between the last two."""
    ends = (180, 380, 680, 990, 1310)
    batches = tuple(replace(RUN.batches[0], last_result=end) for end in ends)
    for count, interval in ((2, 200), (3, 300), (4, 310), (5, 315)):
        assert replace(RUN, batches=batches[:count]).batch_interval == interval


def test_a_pace_that_is_not_steady_yet_is_told_by_the_node_that_shows_it_most() -> None:
    ends = (180, 380, 680, 990)
    batches = tuple(replace(RUN.batches[0], last_result=end) for end in ends)
    assert replace(RUN, batches=batches[:2]).drift is None
    assert replace(RUN, batches=batches[:3]).drift == pytest.approx(0.5)
    assert replace(RUN, batches=batches).drift == pytest.approx(1 / 30)
    # a node whose second batch takes longest, and whose others come as fast as results do
    lasts = (200, 560, 860, 1160)
    late = replace(ENGINE, spans=tuple(Span(end - 50, end) for last in lasts for end in (last - 90, last)))
    run = replace(RUN, batches=batches, nodes=(ENGINE, late, UPDATE))
    assert run.drift == pytest.approx(1 / 30)
    assert run.to_record()["drift"] == pytest.approx(1 / 30, abs=1e-6)
    early = replace(late, spans=late.spans[:6])
    assert replace(run, batches=batches[:3], nodes=(early,)).drift == pytest.approx(-1 / 6)


def test_the_summary_says_that_more_batches_are_wanted() -> None:
    assert [*_unsteady(None, 2), *_unsteady(0.01, 3), *_unsteady(-0.01, 3)] == []
    (told,) = _unsteady(-0.0389, 3)
    assert told == (
        "the pace is not steady yet: the last batch took 3.9% less than the one before, of the node that shows it "
        "most; `--batches 6` tells more"
    )
    assert "took 1.1% more than" in next(_unsteady(0.011, 4))


def test_what_runs_ahead_of_a_slower_node_does_not_tell_the_pace() -> None:
    """Results come every 200 cycles a batch, but an engine behind them is a batch in 230."""
    late = replace(ENGINE, spans=(Span(10, 100), Span(60, 150), Span(240, 330), Span(290, 380)))
    assert replace(RUN, nodes=(ENGINE, late, UPDATE)).batch_interval == 230
    # three frames in two batches: in turns with another
    turns = replace(late, spans=late.spans[:3])
    assert replace(RUN, nodes=(ENGINE, turns, UPDATE)).batch_interval == 200


def test_one_batch_or_batches_of_one_frame_tell_no_interval() -> None:
    one = replace(RUN, batches=RUN.batches[:1])
    assert one.batch_interval is None
    assert one.frames_per_second is None
    assert replace(RUN, batch=1, frame_cycles=RUN.frame_cycles[:2]).frames_per_second_inside is None


def test_idle_is_the_share_of_multiplier_cycles_without_work_by_engine_and_by_board() -> None:
    assert [RUN.idle(node) for node in RUN.nodes] == [0.5, 1 - 40 / 800, None]
    # board b multiplies nothing
    assert RUN.idle_by_device == (Idle("a", 6, 1 - 840 / 2400, 1 - 840 / 2400),)
    # of all cycles less, of the batches as before; of one batch no interval
    longer = replace(RUN, worked_cycles=800)
    assert longer.idle_by_device == (Idle("a", 6, 1 - 840 / 4800, 1 - 840 / 2400),)
    assert replace(RUN, batches=RUN.batches[:1]).idle_by_device[0].in_training is None


def test_batches_fill_before_their_first_result_and_drain_behind_their_last() -> None:
    assert [(batch.fill_cycles, batch.drain_cycles) for batch in RUN.batches] == [(110, 10), (110, 20)]
    assert replace(RUN.batches[0], last_weights=None).drain_cycles == 0


def test_what_works_in_the_greatest_share_of_cycles_binds() -> None:
    assert RUN.binds == Binding(Bound.CABLE, "a -> b", 9000 / (32 * 400))
    assert binding((ENGINE, UPDATE), (), 400) == Binding(Bound.ENGINE, "c", 0.5)


def test_a_node_s_interval_is_that_between_the_ends_of_its_frames() -> None:
    assert ENGINE.interval(range(4)) == pytest.approx(250 / 3)


def test_the_record_has_everything_with_what_follows_from_it() -> None:
    record = RUN.to_record()
    assert record["nodes"][0]["spans"] == [[10, 100], [60, 150], [210, 300], [260, 350]]
    assert record["nodes"][0]["idle"] == 0.5
    assert record["cables"][0]["bits_per_second"] == 9000 / 400 * 200e6
    assert record["batches"][1]["drain_cycles"] == 20
    assert record["binds"] == {"kind": "cable", "name": "a -> b", "share": 0.703125}
    assert record["level"] == "exact"


@pytest.mark.parametrize(
    ("frames", "batch", "drift", "few"),
    [(1, 256, None, True), (FEW_FRAMES - 1, 256, 0.5, True), (FEW_FRAMES, 256, 0.0, False), (3, 14, 0.5, False)],
)
def test_a_pace_of_few_frames_is_told_as_what_it_is(frames: int, batch: int, drift: float | None, few: bool) -> None:
    full = {"first_frame": 8, "last_frame": 8 + frames, "cycles_per_frame": 100_000, "drift": drift, "idle": 0.25}
    lines = [*_full({"full": full, "clock_mhz": 200.0, "frame_cycles": [0] * 14, "batch": batch})]
    assert lines[0].startswith(f"with every engine at work, {frames} frames behind frame 9: 2,000 frames/s")
    assert len(lines) == 1 + few
    assert not few or lines[1].endswith("`--frames 20` tells more")


@pytest.mark.parametrize(
    ("drift", "told", "said"),
    [
        (0.0637, 64, ": the later half of these frames came 6.4% slower than the earlier; `--frames 128` tells more"),
        (-0.02, 200, ": the later half of these frames came 2.0% faster than the earlier; `--frames 256` tells more"),
        (0.0637, 256, ": the later half of these frames came 6.4% slower than the earlier"),
        (STEADY_DRIFT, 64, None),
        (-STEADY_DRIFT, 64, None),
    ],
)
def test_a_pace_inside_a_batch_that_changes_is_told(drift: float, told: int, said: str | None) -> None:
    full = {"first_frame": 5, "last_frame": 62, "cycles_per_frame": 100_000, "drift": drift, "idle": 0.25}
    lines = [*_full({"full": full, "clock_mhz": 200.0, "frame_cycles": [0] * told, "batch": 256})]
    assert lines[1:] == ([] if said is None else [f"that pace is not steady{said}"])
