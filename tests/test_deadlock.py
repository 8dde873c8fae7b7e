"""A deadlock is told as who waits for whom, from the streams' valid and ready."""

from __future__ import annotations

import pytest

from dagtrain.cosim.deadlock import explain
from dagtrain.emission.delivered import Delivered
from dagtrain.emission.modules import ModuleLibrary
from hdl.cache import cache_folder
from tests.cosim_support import deliver, tiny_design

LIBRARY = ModuleLibrary(cache_folder() / "modules")
Nets = dict[tuple[str, str], tuple[bool, bool]]
FULL, EMPTY, QUIET = (True, False), (False, True), (False, False)


@pytest.fixture(scope="module")
def delivered(tmp_path_factory: pytest.TempPathFactory) -> Delivered:
    return deliver(tiny_design(LIBRARY), LIBRARY, tmp_path_factory.mktemp("delivered"))


def quiet(delivered: Delivered) -> Nets:
    """Nothing is offered or wanted anywhere."""
    return {(d.manifest.top, stream.net): QUIET for d in delivered.devices for stream in d.manifest.streams}


def test_every_stream_of_a_top_has_a_writer_and_a_reader(delivered: Delivered) -> None:
    for device in delivered.devices:
        top = (device.folder / "rtl" / f"{device.manifest.top}.v").read_text().splitlines()
        wires = {line.split()[-1].removesuffix("_valid;") for line in top if line.startswith("wire ")}
        streams = {net for net in wires if f"wire {net}_valid;" in top}
        told = {stream.net for stream in device.manifest.streams}
        # what comes and goes over ports of the top has one end inside
        assert {net for net in streams - told if not net.startswith(("arriving", "merged", "rest", "dram_"))} == set()
        assert told <= streams


def test_a_lost_credit_is_a_sender_and_a_receiver_that_wait_for_one_another(delivered: Delivered) -> None:
    crossing = delivered.devices[0].manifest.egress[0]
    nets = quiet(delivered)
    name = crossing.edge.replace(".", "_")
    nets["alpha", f"p_{name}"] = FULL
    nets["beta", f"c_{name}"] = EMPTY
    assert explain(delivered, nets) == (
        "these wait for one another in a circle:\n"
        f"  sender of {crossing.edge} (alpha) waits for receiver of {crossing.edge} (beta): it has no credits left\n"
        f"  receiver of {crossing.edge} (beta) waits for sender of {crossing.edge} (alpha): no word has come"
    )


def test_a_stash_without_room_is_a_circle_through_layers_and_fifos(delivered: Delivered) -> None:
    nets = quiet(delivered)
    # the fork can't feed the convolution before the stash of its gradient has room
    nets |= {("alpha", net): FULL for net in ("p_input1_y_fork_y1", "c_input1_y_fork_y1")}
    way = ("input1_y_fork_y0", "conv1_y", "relu1_mask", "relu1_error_dx")
    nets |= {("alpha", f"{end}_{edge}"): EMPTY for edge in way for end in "pc"}
    assert explain(delivered, nets).splitlines() == [
        "these wait for one another in a circle:",
        "  FIFO of input1.y.fork.y1 (alpha) waits for conv1.gradient: c_input1_y_fork_y1 is offered and not taken",
        "  conv1.gradient (alpha) waits for FIFO of relu1.error.dx: c_relu1_error_dx is empty",
        "  FIFO of relu1.error.dx (alpha) waits for relu1.error: p_relu1_error_dx is empty",
        "  relu1.error (alpha) waits for FIFO of relu1.mask: c_relu1_mask is empty",
        "  FIFO of relu1.mask (alpha) waits for relu1: p_relu1_mask is empty",
        "  relu1 (alpha) waits for FIFO of conv1.y: c_conv1_y is empty",
        "  FIFO of conv1.y (alpha) waits for conv1: p_conv1_y is empty",
        "  conv1 (alpha) waits for FIFO of input1.y.fork.y0: c_input1_y_fork_y0 is empty",
        "  FIFO of input1.y.fork.y0 (alpha) waits for input1.y.fork: p_input1_y_fork_y0 is empty",
        "  input1.y.fork (alpha) waits for FIFO of input1.y.fork.y1: p_input1_y_fork_y1 is offered and not taken",
    ]


def test_a_join_that_takes_neither_input_waits_for_the_one_that_is_not_there(delivered: Delivered) -> None:
    nets = quiet(delivered)
    nets["alpha", "c_relu1_y_fork_y1"] = FULL
    text = explain(delivered, nets)
    assert "these wait, in no circle:" in text
    assert "  FIFO of relu1.y.fork.y1 (alpha) waits for add1: c_relu1_y_fork_y1 is offered and not taken" in text
    assert "  add1 (alpha) waits for receiver of norm1.y: c_norm1_y is empty" in text
