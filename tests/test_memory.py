"""Block memories behave alike in MyHDL and in Verilog, and synthesis sees a memory."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from myhdl import Signal, Simulation, always, always_comb, block, delay, instance, intbv

from hdl.convert.tools import check_yosys, compile_icarus, lint_verilog, run_tool
from hdl.convert.verilog import convert
from hdl.costs.resources import count
from hdl.layers.base import Layer
from hdl.layers.conv.dense import Conv
from hdl.layers.wiring.update import Update
from hdl.memory import address_width, checked_contents, memory_words, read_only, simple_dual_port, unsimulated
from hdl.signals import ClockReset
from hdl.simulate import Backend, Design, Direction, StreamPort, run_streams
from hdl.simulate.myhdl_run import fresh_simulator
from hdl.stream import Stream

WIDTH = 12


@block
def memory_server(domain: ClockReset, x: Any, y: Any, depth: int, contents: Any, extra: bool) -> Any:
    """Each beat of ``x`` is (write enable, write address, read address, data); ``y`` is what was read."""
    bits = address_width(depth)
    write_enable, read_enable = Signal(bool(0)), Signal(bool(0))
    write_address, read_address = Signal(intbv(0)[bits:]), Signal(intbv(0)[bits:])
    data, word = Signal(intbv(0)[WIDTH:]), Signal(intbv(0)[WIDTH:])
    first, second, move = Signal(bool(0)), Signal(bool(0)), Signal(bool(0))
    latency = 2 if extra else 1

    ram = simple_dual_port(
        domain.clk, write_enable, write_address, data, read_enable, read_address, word,
        depth=depth, width=WIDTH, contents=contents, output_register=extra, image="words",
    )  # fmt: skip

    if latency == 2:

        @always_comb
        def advance() -> None:
            move.next = True if y.ready else not second

    else:

        @always_comb
        def advance() -> None:
            move.next = True if y.ready else not first

    @always_comb
    def request() -> None:
        read_enable.next = x.valid and move
        write_enable.next = x.valid and move and x.payload[WIDTH + 2 * bits]
        data.next = x.payload[WIDTH:]
        read_address.next = x.payload[WIDTH + bits : WIDTH]
        write_address.next = x.payload[WIDTH + 2 * bits : WIDTH + bits]
        x.ready.next = move

    @always(domain.clk.posedge)
    def step() -> None:
        if domain.rst:
            first.next = False
            second.next = False
        elif move:
            first.next = x.valid
            second.next = first

    if latency == 2:

        @always_comb
        def answer() -> None:
            y.valid.next = second
            y.payload.next = word

    else:

        @always_comb
        def answer() -> None:
            y.valid.next = first
            y.payload.next = word

    return ram, advance, request, step, answer


def design(depth: int, words: Sequence[int], extra: bool = False) -> Design:
    width = 1 + 2 * address_width(depth) + WIDTH

    def build(images: Mapping[str, Sequence[int]]) -> Any:
        contents = images.get("words")
        return memory_server(ClockReset(), Stream(width), Stream(WIDTH), depth, contents, extra)

    ports = (StreamPort("x", width, Direction.IN), StreamPort("y", WIDTH, Direction.OUT))
    return Design(f"server_{depth}{'_extra' if extra else ''}", build, ports, {"words": words})


def traffic(depth: int, words: Sequence[int], seed: int, count: int = 120) -> tuple[list[int], list[int]]:
    """Requests, and answers by a list: a read beside a write of its address gives the old word."""
    rng = np.random.default_rng(seed)
    bits, state = address_width(depth), list(words)
    requests, answers = [], []
    for _ in range(count):
        write, data = int(rng.integers(2)), int(rng.integers(1 << WIDTH))
        at, read = int(rng.integers(depth)), int(rng.integers(depth))
        if rng.integers(3) == 0:
            read = at
        answers.append(state[read])
        if write:
            state[at] = data
        requests.append(data | read << WIDTH | at << (WIDTH + bits) | write << (WIDTH + 2 * bits))
    return requests, answers


@pytest.mark.parametrize("backend", [Backend.MYHDL, Backend.ICARUS])
@pytest.mark.parametrize("depth", [1, 2, 5, 32])
def test_a_read_gives_the_old_word_whatever_the_depth(backend: Backend, depth: int) -> None:
    words = [int(x) for x in np.random.default_rng(depth).integers(1 << WIDTH, size=depth)]
    requests, answers = traffic(depth, words, seed=depth)
    run = run_streams(
        backend, design(depth, words), {"x": requests}, {"y": len(answers)}, seed=1, stall_probability=0.3
    )
    assert run.outputs["y"] == answers


def test_a_memory_in_verilator_starts_from_its_image_without_a_new_build() -> None:
    for seed in (1, 2):
        words = [int(x) for x in np.random.default_rng(seed).integers(1 << WIDTH, size=8)]
        requests, answers = traffic(8, words, seed)
        run = run_streams(Backend.VERILATOR, design(8, words), {"x": requests}, {"y": len(answers)}, seed=seed)
        assert run.outputs["y"] == answers


@pytest.mark.parametrize("backend", [Backend.MYHDL, Backend.ICARUS])
def test_the_output_register_adds_one_cycle(backend: Backend) -> None:
    words = list(range(100, 108))
    requests, answers = traffic(8, words, seed=5)
    plain = run_streams(backend, design(8, words), {"x": requests}, {"y": len(answers)}, seed=1)
    extra = run_streams(backend, design(8, words, extra=True), {"x": requests}, {"y": len(answers)}, seed=1)
    assert extra.outputs == plain.outputs
    assert extra.fire_cycles["y"] == [cycle + 1 for cycle in plain.fire_cycles["y"]]


def test_synthesis_sees_one_memory_and_the_text_holds_no_contents(tmp_path: Path) -> None:
    words = [7] * 31 + [9]
    texts = {convert(design(32, w).factory({"words": w}), "server").text for w in (words, [0] * 32)}
    assert len(texts) == 1
    module = convert(design(32, words).factory({}), "server")
    assert (module.images["words"].depth, module.images["words"].width) == (32, WIDTH)
    path = module.write(tmp_path)
    lint_verilog([path], "server")
    compile_icarus([path], "server")
    check_yosys([path], "server")
    script = (
        f"read_verilog {path}; hierarchy -top server; proc; flatten; opt; memory -nomap; select -assert-count 1 t:$mem*"
    )
    run_tool(["yosys", "-q", "-p", script])


@block
def lookup(clk: Any, x: Any, y: Any, contents: Any, extra: bool) -> Any:
    enable = Signal(bool(1))

    @always_comb
    def always_on() -> None:
        enable.next = x >= 0

    rom = read_only(clk, enable, x, y, depth=4, width=8, contents=contents, output_register=extra, image="rom")
    return always_on, rom


@pytest.mark.parametrize("extra", [False, True])
def test_a_read_only_memory_converts(extra: bool, tmp_path: Path) -> None:
    dut = lookup(Signal(bool(0)), Signal(intbv(0)[2:]), Signal(intbv(0)[8:]), [1, 2, 3, 4], extra)
    module = convert(dut, "lookup")
    assert "$readmemh(INIT_rom, " in module.text
    path = module.write(tmp_path)
    compile_icarus([path], "lookup")
    check_yosys([path], "lookup")


@pytest.mark.parametrize(
    ("contents", "depth", "message"),
    [
        ([1, 2], 3, "contents of 2 words given for a memory of 3"),
        ([1, 256], 2, "word 256 at address 1 does not fit 8 unsigned bits"),
        ([1, -1], 2, "word -1 at address 1 does not fit 8 unsigned bits"),
        (None, 0, "depth and width of at least 1, not 0 x 8"),
    ],
)
def test_contents_that_do_not_fit_are_refused(contents: Any, depth: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_contents(contents, depth, 8)


def test_an_address_has_at_least_one_bit() -> None:
    assert [address_width(depth) for depth in (1, 2, 3, 4, 5, 512, 513)] == [1, 1, 2, 2, 3, 9, 10]


@pytest.mark.parametrize("extra", [False, True])
@pytest.mark.parametrize("kind", [simple_dual_port, read_only])
def test_without_read_enable_the_word_stays(kind: Any, extra: bool) -> None:
    seen = []
    with fresh_simulator():
        clk, write_enable, read_enable = (Signal(bool(0)) for _ in range(3))
        write_address, address = (Signal(intbv(0)[2:]) for _ in range(2))
        data, word = (Signal(intbv(0)[8:]) for _ in range(2))
        ports = (read_enable, address, word)
        if kind is simple_dual_port:
            ports = (write_enable, write_address, data, *ports)
        dut = kind(clk, *ports, depth=4, width=8, contents=[10, 11, 12, 13], output_register=extra)

        @block
        def bench() -> Any:
            @instance
            def stimulus() -> Any:
                for step, enable in enumerate([1, 0, 1, 0, 0, 1, 0, 0]):
                    address.next, read_enable.next = step % 4, enable
                    for level in (1, 0):
                        yield delay(1)
                        clk.next = level
                    yield delay(1)
                    seen.append(int(word))

            return stimulus

        Simulation(dut, bench()).run(quiet=1)
    words = [10, 10, 12, 12, 12, 11, 11, 11]
    assert seen == ([0, *words[:-1]] if extra else words)


@pytest.mark.parametrize("layer", [Update.examples()[0], Conv.examples()[1]], ids=["update", "conv"])
def test_memories_of_one_word_convert_and_count_as_whole_ones(layer: Layer) -> None:
    def elaborated() -> Any:
        streams = {port.name: Stream(port.payload_bits) for port in (*layer.sinks, *layer.sources)}
        return layer.circuit(ClockReset(), streams)

    whole = convert(elaborated(), "dut"), count(elaborated())
    with unsimulated():
        assert (convert(elaborated(), "dut"), count(elaborated())) == whole
        assert len(memory_words(None, 1000, 8)) == 1000
        # contents are what makes words differ
        assert [int(word) for word in memory_words([1, 2, 3], 3, 8)] == [1, 2, 3]
