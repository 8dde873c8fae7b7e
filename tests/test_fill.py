"""`benchmarks/fill.py`: how full a cluster must be, against programs solved by hand and what its parts add up to."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import fill
from benchmarks.fill import RESOURCES, Filler, Way
from tests.cosim_support import tiny_net
from tests.flow_support import QuickEstimator, with_few_dsp

CLOSE = 1e-6


@dataclass(frozen=True)
class Stated(Way):
    """A way whose costs are stated."""

    def pieces(self) -> Iterator[tuple[str, tuple[float, ...]]]:
        """One."""
        yield "stated", tuple(map(float, self.costs))


def _way(cycles: int, tile: str | None = None, **costs: int) -> Way:
    nothing: Any = None
    offer: Any = SimpleNamespace(cycles_per_frame=cycles, tile=tile)
    dsp, m20k, alm, dram = (costs.get(name, 0) for name in RESOURCES)
    return Stated(nothing, nothing, offer, nothing, (dsp, m20k, alm, dram))


def _by_hand(ways: dict[str, Sequence[Way]], groups: dict[str, str] | None = None, **has: float) -> Filler:
    return Filler(1000, {**dict.fromkeys(RESOURCES, 0.0), **has}, groups or {}, ways)


def test_resources_that_replace_one_another_are_filled_alike() -> None:
    filler = _by_hand({"a": [_way(10, dsp=10), _way(10, m20k=10)]}, dsp=20, m20k=10)
    found = filler.at(100)
    assert found is not None
    # two thirds of it in DSP blocks, of which there are twice as many
    assert found.share == pytest.approx(1 / 3)
    assert found.prices == pytest.approx({"dsp": 2 / 3, "m20k": 1 / 3, "alm": 0, "dram": 0}, abs=CLOSE)
    assert found.kinds["stated"] == pytest.approx([1 / 3, 1 / 3, 0, 0])


def test_members_of_a_weight_group_have_one_tile() -> None:
    ways = {
        "a": [_way(10, "x", dsp=1), _way(10, "y", dsp=3)],
        "b": [_way(10, "x", dsp=3), _way(10, "y", dsp=1)],
    }
    for groups, share in (({}, 2 / 8), ({"a": "a", "b": "a"}, 4 / 8)):
        found = _by_hand(ways, groups, dsp=8).at(100)
        assert found is not None
        assert found.share == pytest.approx(share)


def test_slow_circuits_are_of_no_use_to_a_fast_rate() -> None:
    filler = _by_hand({"a": [_way(10, dsp=4), _way(20, dsp=1)]}, dsp=8)
    shares = [found.share if found else None for found in map(filler.at, (50, 51, 100, 101))]
    assert shares == [pytest.approx(1 / 8), pytest.approx(4 / 8), pytest.approx(4 / 8), None]


def test_dram_is_bytes_a_second() -> None:
    filler = _by_hand({"a": [_way(10, dram=30)]}, dram=6000)
    assert [found.share for fps in (50, 100) if (found := filler.at(fps))] == pytest.approx([0.25, 0.5])


def test_a_network_fills_what_its_circuits_add_up_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints a table a rate; kinds add up to the share of what binds, and to no more."""
    monkeypatch.setattr(fill, "Estimator", QuickEstimator)
    monkeypatch.setattr(fill, "load_training_graph", lambda _: tiny_net())
    cluster, made, of = tmp_path / "cluster.toml", list[Filler](), Filler.of
    cluster.write_text(with_few_dsp(0.01))
    monkeypatch.setattr(Filler, "of", lambda *asked: made.append(of(*asked)) or made[-1])
    words = [str(tmp_path), str(cluster), "--fps", "50000", "3000000", "1e8", "--levels", "60", "4000"]
    monkeypatch.setattr(sys, "argv", ["fill", *words, "--ragged-tiles", "auto"])
    fill.main()
    lines, (filler,) = capsys.readouterr().out.splitlines(), made
    # a hundredth of two AGFB014
    assert filler.capacities["dsp"] == 2 * 45
    slow, fast = filler.at(50_000), filler.at(3_000_000)
    assert slow is not None
    assert fast is not None
    assert 0 < slow.share < fast.share
    for found in (slow, fast):
        assert sum(found.prices.values()) == pytest.approx(1)
        for name, sums in zip(RESOURCES, zip(*found.kinds.values(), strict=True), strict=True):
            assert sum(sums) <= found.share + CLOSE, name
            if found.prices[name] > CLOSE:
                assert sum(sums) == pytest.approx(found.share), name
    (first,) = (line for line in lines if line.startswith("50,000 frames/s: "))
    assert first.startswith(f"50,000 frames/s: {slow.share:.1%} full; binds: ")
    assert lines.count("| circuits | dsp | m20k | alm | dram |") == 2
    assert lines[-1] == "100,000,000 frames/s: a node has no circuit for it at these levels"
