"""Training graphs as placement instances with a simple, stated cost model: for tests and benchmarks of the planner.

The project's own costs come from elaborated circuits; planner tests want instances in milliseconds whose numbers a
reader can follow. Forward nets are written with `Builder` and differentiated here by a tape, engine for engine.

Costs (16-bit words; p_i input lanes, p_o output lanes, p_k kernel taps in parallel):
    engine cycles    OH·OW · ⌈K²/p_k⌉ · ⌈C/p_i⌉ · ⌈M/p_o⌉     (depthwise: without M)
    engine DSP       ⌈p_i·p_o·p_k / 2⌉                         two 18×19 multipliers a block
    engine M20K      line buffer K·W·C words + weights; with weights in DRAM: buffer only, weights streamed a frame
    engine ALM       100 + 20 a multiplier
    stash            on chip, or 2 × bits / 8 bytes of DRAM a frame
    update           ⌈n / (T·batch)⌉ lanes at levels of T, master weights and momenta (48 bits) on chip or in DRAM
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from math import ceil

from hdl.parts.catalogue import part
from hdl.tensor import Kind
from placement.problem.instance import Configuration, Device, Instance, Item, Link, pareto

WORD = 16
M20K_BITS = 20_480
BATCH = 16


@dataclass(frozen=True)
class Tensor:
    """A stream leaving an item: the item's name, channels, height and width."""

    source: str
    channels: int
    size: int

    @property
    def bits(self) -> int:
        return self.channels * self.size * self.size * WORD


Backward = Callable[[Tensor], Tensor | None]


@dataclass
class Builder:
    """Builds a training graph: forward calls append their backward half to a tape, `finish` plays it back."""

    parts: tuple[str, ...]
    items: list[Item] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    tape: list[Backward] = field(default_factory=list)
    first_device: str = ""
    # cycles a frame between which engines are offered (see `instance_of`)
    window: tuple[int, int] = (1, 2**62)
    # multiplications a frame so far, forward, error and gradient
    macs: int = 0
    # multiplications a frame above which a convolution becomes two engines, half of the output channels each
    split_above: int = 2**62

    def item(
        self, name: str, configurations: tuple[Configuration, ...], *, pinned: str | None = None,
        group: str | None = None,
    ) -> str:  # fmt: skip
        menu = dict.fromkeys(self.parts, configurations)
        layer = name.split(".")[0]
        self.items.append(Item(name=name, configurations=menu, pinned=pinned, tile_group=group, layer=layer))
        return name

    def link(self, source: str, target: str, kind: Kind, bits: int | Fraction) -> None:
        self.links.append(Link(source=source, target=target, kind=kind, bits_per_frame=Fraction(bits)))

    def stream(self, x: Tensor, name: str, kind: Kind, *, m20k: int = 0, size: int = 0, channels: int = 0) -> Tensor:
        """An item without multipliers: channel-wide beats of one pixel or more."""
        self.item(name, stream_configurations(x.channels, x.size, m20k))
        self.link(x.source, name, kind, x.bits)
        return Tensor(name, channels or x.channels, size or x.size)

    def input(self, channels: int, size: int) -> Tensor:
        costs = stream_configurations(channels, size, 2)
        return Tensor(self.item("input", costs, pinned=self.first_device), channels, size)

    def conv(self, x: Tensor, channels: int, kernel: int, stride: int, name: str, *, depthwise: bool = False) -> Tensor:
        """A convolution; its engines are two of each kind if it multiplies more than `split_above` times a frame."""
        out = -(-x.size // stride)
        weights = kernel * kernel * x.channels * (1 if depthwise else channels)
        if weights * out * out > self.split_above and x.source != "input":
            return self._halves(x, channels, kernel, stride, name)
        return self._engines(x, channels, kernel, stride, name, depthwise=depthwise)

    def _engines(
        self, x: Tensor, channels: int, kernel: int, stride: int, name: str, *, depthwise: bool = False
    ) -> Tensor:
        """Forward engine, error engine, gradient engine (one tile) and update; the input is forked and stashed."""
        out = -(-x.size // stride)
        weights = kernel * kernel * x.channels * (1 if depthwise else channels)
        shape = (x.channels, channels, kernel, x.size, out, depthwise, self.window)
        self.macs += (2 if x.source == "input" else 3) * weights * out * out
        fork = self.stream(x, f"{name}.fork", Kind.ACTIVATION)
        self.item(f"{name}.forward", conv_configurations("forward", *shape), group=name)
        self.link(fork.source, f"{name}.forward", Kind.ACTIVATION, x.bits)
        first = x.source == "input"
        y = Tensor(f"{name}.forward", channels, out)

        def backward(e: Tensor) -> Tensor | None:
            ef = e if first else self.stream(e, f"{name}.error_fork", Kind.ERROR)
            self.item(f"{name}.gradient", conv_configurations("gradient", *shape), group=name)
            self.link(ef.source, f"{name}.gradient", Kind.ERROR, e.bits)
            self.link(fork.source, f"{name}.gradient", Kind.STASH, x.bits)
            self.item(f"{name}.update", update_configurations(weights))
            self.link(f"{name}.gradient", f"{name}.update", Kind.GRADIENT, Fraction(weights * 32, BATCH))
            self.link(f"{name}.update", f"{name}.forward", Kind.WEIGHT, Fraction(weights * WORD, BATCH))
            if first:
                return None
            self.item(f"{name}.error", conv_configurations("error", *shape), group=name)
            self.link(ef.source, f"{name}.error", Kind.ERROR, e.bits)
            self.link(f"{name}.update", f"{name}.error", Kind.WEIGHT, Fraction(weights * WORD, BATCH))
            return Tensor(f"{name}.error", x.channels, x.size)

        self.tape.append(backward)
        return y

    def _halves(self, x: Tensor, channels: int, kernel: int, stride: int, name: str) -> Tensor:
        """A convolution as two engines of half its output channels: fork and concat, and in the backward pass a deal of
        the error's channels and a sum."""
        fork = self.stream(x, f"{name}.fork", Kind.ACTIVATION)
        outer, tapes, parts = self.tape, [], []
        for k, count in enumerate((channels - channels // 2, channels // 2)):
            self.tape = []
            parts.append(self._engines(fork, count, kernel, stride, f"{name}_part{k}"))
            tapes.append(self.tape)
        self.tape = outer
        joined = self.stream(parts[0], f"{name}.concat", Kind.ACTIVATION, channels=channels)
        self.link(parts[1].source, f"{name}.concat", Kind.ACTIVATION, parts[1].bits)

        def backward(e: Tensor) -> Tensor | None:
            dealt = self.stream(e, f"{name}.deal", Kind.ERROR)
            errors = [
                _play(tape, Tensor(dealt.source, part.channels, e.size))
                for tape, part in zip(tapes, parts, strict=True)
            ]
            assert errors[0] is not None
            assert errors[1] is not None
            total = self.stream(errors[0], f"{name}.error_add", Kind.ERROR, m20k=2)
            self.link(errors[1].source, f"{name}.error_add", Kind.ERROR, errors[1].bits)
            return total

        self.tape.append(backward)
        return joined

    def norm(self, x: Tensor, name: str) -> Tensor:
        """Online normalisation: forward and backward engines with statistics, two multipliers a channel lane."""
        costs = lane_configurations(x.channels, x.size, multipliers=2, m20k=1)
        self.item(f"{name}.forward", costs)
        self.link(x.source, f"{name}.forward", Kind.ACTIVATION, x.bits)

        def backward(e: Tensor) -> Tensor | None:
            self.item(f"{name}.error", lane_configurations(x.channels, x.size, multipliers=3, m20k=1, stash=x.bits))
            self.link(e.source, f"{name}.error", Kind.ERROR, e.bits)
            self.link(f"{name}.forward", f"{name}.error", Kind.STASH, x.bits)
            return Tensor(f"{name}.error", x.channels, x.size)

        self.tape.append(backward)
        return Tensor(f"{name}.forward", x.channels, x.size)

    def relu(self, x: Tensor, name: str) -> Tensor:
        y = self.stream(x, f"{name}.forward", Kind.ACTIVATION)

        def backward(e: Tensor) -> Tensor | None:
            d = self.stream(e, f"{name}.error", Kind.ERROR, m20k=-(-x.bits // WORD // M20K_BITS))
            self.link(y.source, f"{name}.error", Kind.STASH, x.bits // WORD)
            return d

        self.tape.append(backward)
        return y

    def pool(self, x: Tensor, stride: int, name: str) -> Tensor:
        """Max pool over stride × stride (the whole picture: global average); the arg-max index is stashed."""
        out = -(-x.size // stride)
        lines = -(-stride * x.size * x.channels * WORD // M20K_BITS)
        y = self.stream(x, f"{name}.forward", Kind.ACTIVATION, m20k=lines, size=out)

        def backward(e: Tensor) -> Tensor | None:
            d = self.stream(e, f"{name}.error", Kind.ERROR, m20k=lines, size=x.size)
            self.link(y.source, f"{name}.error", Kind.STASH, y.bits // 4)
            return d

        self.tape.append(backward)
        return y

    def residual(
        self, x: Tensor, name: str, body: Callable[[Tensor], Tensor], shortcut: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """body(x) + shortcut(x): fork and add, and their mirror images in the backward pass."""
        fork = self.stream(x, f"{name}.fork", Kind.ACTIVATION)
        outer = self.tape
        body_tape: list[Backward] = []
        short_tape: list[Backward] = []
        self.tape = body_tape
        y = body(fork)
        self.tape = short_tape
        s = shortcut(fork) if shortcut else fork
        self.tape = outer
        joined = self.stream(y, f"{name}.add", Kind.ACTIVATION, m20k=2)
        self.link(s.source, f"{name}.add", Kind.ACTIVATION, s.bits)

        def backward(e: Tensor) -> Tensor | None:
            ef = self.stream(e, f"{name}.error_fork", Kind.ERROR)
            through_body, through_short = _play(body_tape, ef), _play(short_tape, ef)
            assert through_body is not None
            assert through_short is not None
            total = self.stream(through_body, f"{name}.error_add", Kind.ERROR, m20k=2)
            self.link(through_short.source, f"{name}.error_add", Kind.ERROR, through_short.bits)
            return total

        self.tape.append(backward)
        return joined

    def finish(self, x: Tensor) -> None:
        """The loss on the first device, and the backward pass; x holds one value a class."""
        costs = Configuration(label="loss", cycles_per_frame=x.channels, dsp=8, m20k=8, alm=2000)
        self.item("loss", (costs,), pinned=self.first_device)
        self.link(x.source, "loss", Kind.ACTIVATION, x.bits)
        self.link("input", "loss", Kind.STASH, WORD)
        _play(self.tape, Tensor("loss", x.channels, 1))


def _play(tape: list[Backward], e: Tensor) -> Tensor | None:
    error: Tensor | None = e
    for backward in reversed(tape):
        assert error is not None
        error = backward(error)
    return error


@cache
def engine_tiles(channels: int, outputs: int, kernel: int, depthwise: bool) -> tuple[tuple[int, int, int], ...]:
    """(p_i, p_o, p_k) such that no other has fewer multipliers and fewer passes."""
    taps = sorted({1, kernel, kernel * kernel})
    best: list[tuple[int, int, int, int, int]] = []
    for pk in taps:
        for pi in _folds(channels):
            for po in [1] if depthwise else _folds(outputs):
                passes = -(-kernel * kernel // pk) * -(-channels // pi) * (1 if depthwise else -(-outputs // po))
                best.append((pi * po * pk, passes, pi, po, pk))
    kept: list[tuple[int, int, int]] = []
    fewest = None
    for _, passes, pi, po, pk in sorted(best):
        if fewest is None or passes < fewest:
            fewest = passes
            kept.append((pi, po, pk))
    return tuple(kept)


def _folds(n: int) -> list[int]:
    """The lane counts worth building for n channels: ⌈n / q⌉ for every q."""
    return sorted({-(-n // q) for q in range(1, n + 1)})


@cache
def conv_configurations(
    role: str, channels: int, outputs: int, kernel: int, size: int, out: int, depthwise: bool, window: tuple[int, int]
) -> tuple[Configuration, ...]:
    """All configurations of the forward, error or gradient engine of a convolution; of those faster than `window`
    the smallest, none slower."""
    weights = kernel * kernel * channels * (1 if depthwise else outputs)
    here = size * channels if role != "error" else out * outputs
    lines = kernel * here * WORD + (out * outputs * WORD if role == "gradient" else 0)
    word = 32 if role == "gradient" else WORD
    stash = channels * size * size * WORD if role == "gradient" else 0
    menu: list[Configuration] = []
    for pi, po, pk in engine_tiles(channels, outputs, kernel, depthwise):
        passes = -(-kernel * kernel // pk) * -(-channels // pi) * (1 if depthwise else -(-outputs // po))
        multipliers = pi * po * pk
        if menu and out * out * passes > window[1]:
            menu.clear()
        if menu and menu[-1].cycles_per_frame < window[0]:
            break
        base = max(ceil(lines / M20K_BITS), ceil(pi * WORD / 40))
        on_chip = max(ceil(weights * word / M20K_BITS), ceil(multipliers * word / 40))
        ports = ceil(multipliers * WORD / 40)
        for where, m20k, dram in (("w", on_chip, 0), ("W", ports, weights * word // 8 * (2 if stash else 1))):
            for kept, more, traffic in (("s", ceil(stash / M20K_BITS), 0), ("S", 2, 2 * stash // 8)):
                if kept == "S" and not stash:
                    continue
                menu.append(
                    Configuration(
                        label=f"{pi}x{po}x{pk}{where}{kept}",
                        cycles_per_frame=out * out * passes,
                        dsp=-(-multipliers // 2),
                        m20k=base + m20k + more,
                        alm=100 + 20 * multipliers,
                        dram_bytes_per_frame=dram + traffic,
                        tile=f"{pi}x{po}x{pk}",
                    )
                )
    return pareto(menu)


@cache
def stream_configurations(channels: int, size: int, m20k: int) -> tuple[Configuration, ...]:
    """A fork, join, activation or pool: one, two or four pixels a beat."""
    return tuple(
        Configuration(
            label=f"{pixels}p", cycles_per_frame=-(-size * size // pixels), m20k=m20k, alm=100 + 2 * channels * pixels
        )
        for pixels in (1, 2, 4)
    )


@cache
def lane_configurations(
    channels: int, size: int, *, multipliers: int, m20k: int, stash: int = 0
) -> tuple[Configuration, ...]:
    """A channel-wise engine of p lanes, with an optional stash on chip ("s") or in DRAM ("S")."""
    menu = []
    for lanes in _folds(channels):
        for kept, more, traffic in (("s", ceil(stash / M20K_BITS), 0), ("S", 2, 2 * stash // 8)):
            menu.append(
                Configuration(
                    label=f"{lanes}{kept}",
                    cycles_per_frame=size * size * -(-channels // lanes),
                    dsp=-(-lanes * multipliers // 2),
                    m20k=m20k + more,
                    alm=50 + 40 * lanes,
                    dram_bytes_per_frame=traffic,
                )
            )
    return pareto(menu)


@cache
def update_configurations(weights: int) -> tuple[Configuration, ...]:
    """SGD with momentum for `weights` weights once a batch: lanes of three multipliers; state on chip or in DRAM."""
    menu = []
    for lanes in (1, 2, 4, 8, 16, 32, 64):
        choices = (("w", 1 + ceil(weights * 48 / M20K_BITS), 0), ("W", 4, 12 * weights // BATCH))
        for where, m20k, traffic in choices:
            menu.append(
                Configuration(
                    label=f"{lanes}{where}",
                    cycles_per_frame=-(-weights // (lanes * BATCH)),
                    dsp=-(-3 * lanes // 2),
                    m20k=m20k,
                    alm=200 * lanes,
                    dram_bytes_per_frame=traffic,
                )
            )
    return pareto(menu)


# --- clusters and networks ---------------------------------------------------------------------------------------

BOARDS = {"10AX115": (38_400_000_000, 40_000_000_000), "AGFB014": (76_800_000_000, 100_000_000_000),
          "AGFB027": (76_800_000_000, 100_000_000_000), "XC7VX690T": (25_600_000_000, 40_000_000_000)}  # fmt: skip


def devices(*counts: tuple[int, str], utilisation: Fraction = Fraction(85, 100)) -> tuple[Device, ...]:
    """Devices `part-0`, `part-1` …, capped at `utilisation` of their blocks and 70 % of their DRAM bandwidth."""
    made = []
    for count, name in counts:
        dram, link = BOARDS[name]
        p = part(name)
        made += [
            Device(
                name=f"{name}-{k}",
                part=name,
                dsp=int(p.dsp * utilisation),
                m20k=int(p.m20k * utilisation),
                alm=int(p.alm * utilisation),
                dram_bytes_per_s=dram * 7 // 10,
                link_bits_per_s=link,
            )
            for k in range(count)
        ]
    return tuple(made)


POSTER_CLUSTER = ((1, "AGFB027"), (4, "AGFB014"), (6, "10AX115"))


def instance_of(
    name: str, network: Callable[[Builder], Tensor], cluster: tuple[Device, ...], clock_hz: int = 200_000_000,
    split_above: int = 2**62,
) -> Instance:  # fmt: skip
    """The training graph of a forward network on a cluster; convolutions of more multiplications a frame than
    `split_above` are two engines each.

    No plan is faster than all multipliers together, T₀ cycles a frame: of engines faster than T₀ only the smallest is
    offered, and none slower than 8·T₀ (the slowest engine if all are faster).
    """
    parts = tuple(sorted({device.part for device in cluster}))
    counter = Builder(parts=parts, first_device=cluster[0].name, window=(2**61, 2**62), split_above=split_above)
    counter.finish(network(counter))
    least = max(1, counter.macs // (2 * sum(device.dsp for device in cluster)))
    builder = Builder(parts=parts, first_device=cluster[0].name, window=(least, 8 * least), split_above=split_above)
    builder.finish(network(builder))
    return Instance(
        name=name, clock_hz=clock_hz, items=tuple(builder.items), links=tuple(builder.links), devices=cluster
    )


def resnet18(b: Builder) -> Tensor:
    """ResNet-18 at 224×224, 1 000 classes."""
    x = b.pool(b.relu(b.norm(b.conv(b.input(3, 224), 64, 7, 2, "stem"), "stem_norm"), "stem_relu"), 2, "stem_pool")
    for stage, channels in enumerate((64, 128, 256, 512)):
        for block in range(2):
            x = _basic_block(b, x, channels, 2 if stage and not block else 1, f"s{stage}b{block}")
    return b.conv(b.pool(x, x.size, "gap"), 1000, 1, 1, "fc")


def _basic_block(b: Builder, x: Tensor, channels: int, stride: int, name: str) -> Tensor:
    def body(y: Tensor) -> Tensor:
        y = b.relu(b.norm(b.conv(y, channels, 3, stride, f"{name}_conv1"), f"{name}_norm1"), f"{name}_relu1")
        return b.norm(b.conv(y, channels, 3, 1, f"{name}_conv2"), f"{name}_norm2")

    def projection(y: Tensor) -> Tensor:
        return b.norm(b.conv(y, channels, 1, stride, f"{name}_conv3"), f"{name}_norm3")

    same = stride == 1 and x.channels == channels
    return b.relu(b.residual(x, name, body, None if same else projection), f"{name}_relu2")


def mobilenet_v2(b: Builder) -> Tensor:
    """MobileNetV2 at 224×224, 1 000 classes."""
    x = b.relu(b.norm(b.conv(b.input(3, 224), 32, 3, 2, "stem"), "stem_norm"), "stem_relu")
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for s, (expansion, channels, count, stride) in enumerate(stages):
        for k in range(count):
            x = _inverted_residual(b, x, expansion, channels, stride if k == 0 else 1, f"s{s}b{k}")
    x = b.relu(b.norm(b.conv(x, 1280, 1, 1, "head"), "head_norm"), "head_relu")
    return b.conv(b.pool(x, x.size, "gap"), 1000, 1, 1, "fc")


def _inverted_residual(b: Builder, x: Tensor, expansion: int, channels: int, stride: int, name: str) -> Tensor:
    def body(y: Tensor) -> Tensor:
        wide = y.channels * expansion
        if expansion > 1:
            y = b.relu(b.norm(b.conv(y, wide, 1, 1, f"{name}_expand"), f"{name}_norm1"), f"{name}_relu1")
        y = b.conv(y, wide, 3, stride, f"{name}_depthwise", depthwise=True)
        y = b.relu(b.norm(y, f"{name}_norm2"), f"{name}_relu2")
        return b.norm(b.conv(y, channels, 1, 1, f"{name}_project"), f"{name}_norm3")

    return b.residual(x, name, body) if stride == 1 and x.channels == channels else body(x)


def resnet_bottleneck(b: Builder, blocks: tuple[int, int, int, int]) -> Tensor:
    """ResNet of bottleneck blocks at 224×224, 1 000 classes; blocks of each of the four stages."""
    x = b.pool(b.relu(b.norm(b.conv(b.input(3, 224), 64, 7, 2, "stem"), "stem_norm"), "stem_relu"), 2, "stem_pool")
    for stage, (count, channels) in enumerate(zip(blocks, (64, 128, 256, 512), strict=True)):
        for block in range(count):
            x = _bottleneck(b, x, channels, 2 if stage and not block else 1, f"s{stage}b{block}")
    return b.conv(b.pool(x, x.size, "gap"), 1000, 1, 1, "fc")


def _bottleneck(b: Builder, x: Tensor, channels: int, stride: int, name: str) -> Tensor:
    def body(y: Tensor) -> Tensor:
        y = b.relu(b.norm(b.conv(y, channels, 1, 1, f"{name}_conv1"), f"{name}_norm1"), f"{name}_relu1")
        y = b.relu(b.norm(b.conv(y, channels, 3, stride, f"{name}_conv2"), f"{name}_norm2"), f"{name}_relu2")
        return b.norm(b.conv(y, 4 * channels, 1, 1, f"{name}_conv3"), f"{name}_norm3")

    def projection(y: Tensor) -> Tensor:
        return b.norm(b.conv(y, 4 * channels, 1, stride, f"{name}_conv4"), f"{name}_norm4")

    same = stride == 1 and x.channels == 4 * channels
    return b.relu(b.residual(x, name, body, None if same else projection), f"{name}_relu3")


def resnet50(b: Builder) -> Tensor:
    """ResNet-50."""
    return resnet_bottleneck(b, (3, 4, 6, 3))


def resnet152(b: Builder) -> Tensor:
    """ResNet-152."""
    return resnet_bottleneck(b, (3, 8, 36, 3))


def demo(b: Builder) -> Tensor:
    """Twelve convolutions from 32×32 on, with norms, 10 classes: 134 layers, near the 127 of the poster's demo."""
    x = b.input(3, 32)
    for k in range(12):
        x = b.relu(b.norm(b.conv(x, 32 << k // 4, 3, 1, f"conv{k}"), f"norm{k}"), f"relu{k}")
        if k % 4 == 3:
            x = b.pool(x, 2, f"pool{k}")
    return b.conv(b.pool(x, x.size, "gap"), 10, 1, 1, "fc")


def vgg_mini(b: Builder) -> Tensor:
    """Three convolutions at 64×64, 10 classes."""
    x = b.relu(b.conv(b.input(3, 64), 32, 3, 1, "conv1"), "relu1")
    x = b.pool(b.relu(b.conv(x, 32, 3, 1, "conv2"), "relu2"), 2, "pool1")
    x = b.pool(b.relu(b.conv(x, 64, 3, 1, "conv3"), "relu3"), 2, "pool2")
    return b.conv(b.pool(x, x.size, "gap"), 10, 1, 1, "fc")


def small_residual(b: Builder) -> Tensor:
    """A stem and one residual block with a projection at 8×8, 10 classes: crossings in both branches are possible."""
    x = b.relu(b.norm(b.conv(b.input(1, 8), 8, 3, 1, "stem"), "stem_norm"), "stem_relu")
    x = _basic_block(b, x, 16, 2, "block")
    return b.conv(b.pool(x, x.size, "gap"), 10, 1, 1, "fc")
