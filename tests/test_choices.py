"""What a plan says of a node travels as text and comes back as it was."""

from __future__ import annotations

import pytest

from dagtrain.planning.choices import Choice, relayed
from hdl.errors import DagtrainError
from hdl.layers.storage import Home

PLAIN = Choice(cycles=300)
CHOICES = [
    PLAIN,
    Choice(cycles=7, memory=Home.PARKED),
    Choice(cycles=7, memory=Home.DRAM, fifos=("x", "w")),
    Choice(cycles=7, relay_on="relu1.y.fork.y1"),
    Choice(cycles=7, multiplied=True),
    Choice(cycles=7, queued=(("y", 512), ("dx", 64))),
    Choice(cycles=7, fifos=("x", "mask"), dealt=(3, 1)),
]


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.label)
def test_a_choice_comes_back_from_its_text(choice: Choice) -> None:
    assert Choice.from_payload(choice.to_payload()) == choice


def test_a_label_names_the_streams_that_are_dealt_out() -> None:
    assert len({choice.label for choice in CHOICES}) == len(CHOICES)
    assert CHOICES[-1].label == "T7 DRAM: x dealt to 3, mask"
    assert CHOICES[-1].parts == {"x": 3, "mask": 1}
    assert CHOICES[2].parts == {"x": 1, "w": 1}


def test_only_a_relay_names_an_edge() -> None:
    assert PLAIN.to_payload() == '{"cycles": 300, "memory": "on_chip", "fifos": []}'
    assert relayed({f"node {index}": choice for index, choice in enumerate(CHOICES)}) == ("relu1.y.fork.y1",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        '{"cycles": "300", "memory": "on_chip", "fifos": []}',
        '{"cycles": 300, "memory": "the attic", "fifos": []}',
        '{"cycles": 300, "memory": "on_chip", "fifos": [3]}',
        '{"cycles": 300, "memory": "on_chip", "fifos": [], "relay_on": 3}',
        '{"cycles": 300, "memory": "on_chip", "fifos": [], "colour": "red"}',
        '{"cycles": 300, "memory": "on_chip", "fifos": ["x"], "dealt": [2, 2]}',
        '{"cycles": 300, "memory": "on_chip", "fifos": ["x"], "dealt": [0]}',
        '{"cycles": 300, "memory": "on_chip", "fifos": [], "queued": ["y"]}',
        '{"cycles": 300, "memory": "on_chip", "fifos": [], "queued": [["y", "512"]]}',
    ],
)
def test_a_text_that_is_no_choice_is_refused(text: str) -> None:
    with pytest.raises(DagtrainError, match="does not say what to build of a node; run `dagtrain place` again"):
        Choice.from_payload(text)
