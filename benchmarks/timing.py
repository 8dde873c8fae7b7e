"""The slowest path of a fixed set of circuits, of the sizes that networks for ImageNet have.

python benchmarks/timing.py                       # units of links and memory ports, deep memories: three minutes
python benchmarks/timing.py --layers              # and a circuit of each kind of ResNet-18 and MobileNetV2, an hour
python benchmarks/timing.py --layers BiasGradient MaxPoolError

Exits with 1 if a path takes more than 4.0 ns at 350 ps a net, or a multiplier does not stand between registers.  Mapped
circuits are kept as those of `dagtrain timing` are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hdl.signals import ClockReset

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))


from hdl.cache import cache_folder
from hdl.convert.verilog import convert
from hdl.costs.timing import NET_PS, ModuleTiming, time_module
from hdl.dram.axi import AxiFormat, AxiMerge
from hdl.dram.deal import Collect, Deal
from hdl.dram.store import DramConstant, DramFifo, DramReplay
from hdl.elaboration.patches import forgotten_signals
from hdl.engine.codec.bursts import Bursts
from hdl.engine.codec.compressor import Compressor
from hdl.engine.codec.decompressor import Decompressor
from hdl.engine.codec.float_codec import FloatCodec, Kind
from hdl.engine.codec.integer_codec import IntegerCodec
from hdl.engine.weights.loaded_constant import LoadedConstant
from hdl.fixed import Fixed
from hdl.layers.base import Layer
from hdl.layers.conv.dense import Conv, ConvError, ConvGradient
from hdl.layers.conv.pair import ConvPair
from hdl.layers.norm.channel_norm import ChannelNorm, ChannelNormError
from hdl.layers.norm.local_response_norm import LocalResponseNorm, LocalResponseNormError
from hdl.layers.norm.online_norm import OnlineNorm
from hdl.layers.norm.online_norm_backward import OnlineNormBackward
from hdl.layers.pointwise.bias import BiasGradient
from hdl.layers.pointwise.channel_affine import ChannelAffine
from hdl.layers.pointwise.derivative_error import DerivativeError
from hdl.layers.pointwise.dropout import Dropout
from hdl.layers.pointwise.hard_sigmoid import HardSigmoid
from hdl.layers.pointwise.leaky_relu import LeakyRelu
from hdl.layers.pointwise.mul import Mul, Scale, ScaleSum
from hdl.layers.pointwise.silu import Silu
from hdl.layers.pointwise.slope_error import SlopeError
from hdl.layers.pool.average_pool import AveragePool, AveragePoolError
from hdl.layers.pool.global_average_pool import GlobalAveragePoolError
from hdl.layers.pool.max_pool import MaxPool, MaxPoolError
from hdl.layers.storage import Home
from hdl.layers.store.ring_store import RingStore
from hdl.layers.store.weight_store import WeightStore
from hdl.layers.wiring.channel_shuffle import ChannelShuffle
from hdl.layers.wiring.channel_slice import ChannelPad, ChannelSlice
from hdl.layers.wiring.gradient_sum import GradientSum
from hdl.layers.wiring.pixel_slice import PixelPad, PixelSlice
from hdl.layers.wiring.update import Update
from hdl.link.clocks import ClockCrossing
from hdl.link.egress import Egress
from hdl.link.ethernet.adapter import AVALON
from hdl.link.ethernet.clocked import ClockedMac
from hdl.link.ethernet.crc import Crc32c
from hdl.link.ethernet.frame import FrameFormat
from hdl.link.ethernet.packer import Packer
from hdl.link.ethernet.port import EthernetPort
from hdl.link.ethernet.sink import FrameSink
from hdl.link.format import LinkFormat
from hdl.link.forward import Forward
from hdl.link.ingress import Ingress
from hdl.link.pool import ReceivePool
from hdl.link.routing import Merge, Split
from hdl.memory import unsimulated
from hdl.recipe import LoadedRecipe, Recipe
from hdl.selftest.console import Console
from hdl.selftest.march import March
from hdl.selftest.prbs import PrbsCheck, PrbsSource
from hdl.stream import Stream
from hdl.streams import queue
from hdl.tensor import Tile
from hdl.unit import Unit

LIMIT_PS = 4000
FIFO_WORDS = 50_176
FORM = LinkFormat(word_bits=64, streams=40, devices=4)
PORT = AxiFormat(data_bits=64, address_bits=26)
_STORE: dict[str, Any] = {
    "element_bits": 16,
    "x_lanes": 2,
    "y_lanes": 4,
    "elements": 56 * 56 * 64,
    "burst": 8,
    "prefetch": 64,
}
UNITS: Mapping[str, Unit] = {
    "merge": Merge(format=FORM),
    "split": Split(format=FORM),
    "forward, 4 cables": Forward(
        format=FORM,
        table=(0, 1, 2, 3),
        merged=((1, 2, 3, 4), (0, 2, 3, 4), (0, 1, 3, 4), (0, 1, 2, 4), (0, 1, 2, 3)),
    ),
    "receive pool, 16 streams": ReceivePool(format=FORM, regions=(64,) * 16, stages=(2, 16) * 8),
    "egress, 3 lanes": Egress(format=FORM, element_bits=16, lanes=3, elements=56 * 56 * 63, credits=500),
    "egress, 8 lanes": Egress(format=FORM, element_bits=16, lanes=8, elements=56 * 56 * 64, credits=500),
    "egress, 8 lanes, 512 words": Egress(
        format=FORM, element_bits=16, lanes=8, elements=56 * 56 * 64, credits=1024, queued=512
    ),
    "ingress, 3 lanes": Ingress(format=FORM, element_bits=16, lanes=3, elements=56 * 56 * 63, depth=500),
    "axi merge": AxiMerge(format=PORT, cut=False),
    "axi merge, cut": AxiMerge(format=PORT, cut=True),
    "clock crossing, 550 bits": ClockCrossing(payload_bits=550),
    "dram fifo": DramFifo(format=PORT, capacity=9, **_STORE),
    "deal": Deal(payload_bits=256, parts=4, turn=3),
    "collect": Collect(payload_bits=256, parts=4, turn=3),
    "dram replay": DramReplay(format=PORT, batch=256, staleness=5, **_STORE),
    "dram constant": DramConstant(format=PORT, **_STORE),
    "loaded constant": LoadedConstant(format=PORT, **_STORE),
}

_JUMBO = FrameFormat(word_bits=256, mtu=9000)
# of the Ethernet port of a device with three peers
ETHERNET: Mapping[str, Unit] = {
    "check sequence, 256 bits": Crc32c(word_bits=256),
    "packer, 256 bits": Packer(
        frames=_JUMBO, form=LinkFormat(word_bits=256, streams=40, devices=4), regions=(2 * _JUMBO.payload_beats,) * 3
    ),
    "ethernet port, 64 bits": EthernetPort(
        packer=Packer(
            frames=FrameFormat(word_bits=64, mtu=1500),
            form=LinkFormat(word_bits=64, streams=40, devices=4),
            regions=(400,),
        )
    ),
    "clocks of a MAC, 256 bits": ClockedMac(
        sink=FrameSink(frames=_JUMBO, form=LinkFormat(word_bits=256, streams=40, devices=4), peers=3),
        kind=AVALON,
        mac_bits=256,
    ),
}
# of boards that are brought up
SELF_TEST: Mapping[str, Unit] = {
    "pseudo-random words, 512 bits": PrbsSource(word_bits=512),
    "check of such words, 512 bits": PrbsCheck(word_bits=512),
    "march, words of 512 bits": March(format=AxiFormat(data_bits=512, address_bits=26), burst=8),
    "console, 3 links, 2 channels": Console(links=3, channels=2, values=24),
}
_BURSTS = Bursts(codec=IntegerCodec(5), elements=3 * 3 * 64 * 64)
_FLOAT_BURSTS = Bursts(codec=FloatCodec(10, Kind.BOUNDED), elements=3 * 3 * 64 * 64, lanes=8)
# of gradients that copies exchange
COMPRESSION: Mapping[str, Unit] = {
    "compressor, 16 elements of 16 bits": Compressor(bursts=_BURSTS),
    "decompressor, 16 elements of 16 bits": Decompressor(bursts=_BURSTS),
    "compressor, 8 elements of float32": Compressor(bursts=_FLOAT_BURSTS),
    "decompressor, 8 elements of float32": Decompressor(bursts=_FLOAT_BURSTS),
}
ALONE: Mapping[str, Unit] = {**UNITS, **ETHERNET, **SELF_TEST, **COMPRESSION}

_KERNEL = {"kernel": (3, 3), "padding": (1, 1, 1, 1), "recipe": Recipe(batch=256)}
_POOL = {
    "height": 56,
    "width": 56,
    "channels": 2,
    "engine_taps": 9,
    "kernel": (3, 3),
    "padding": (1, 1, 1, 1),
    "stride": (1, 1),
}
_WINDOW = {"kernel": (3, 3), "padding": (1, 1, 1, 1), "stride": (2, 2)}
_SMALL = {**_WINDOW, "stride": (1, 1)}
_MAP: dict[str, Any] = {"height": 56, "width": 56, "channels": 64, "lanes": 4}
_RAGGED = {"height": 14, "width": 14, "channels": 20, "filters": 20, "tile": Tile(3, 3, 1), **_KERNEL}
_SHORT = {"height": 112, "width": 112, "channels": 64, "filters": 64, "kernel": (1, 1), "tile": Tile(2, 2)}
_NORM = {**_MAP, "core_lanes": 4, "statistic_lanes": 1, "multiplied": True, "recipe": Recipe(batch=256, staleness=48)}
# with memories of several blocks, or of no network above
LAYERS: Mapping[str, Layer] = {
    "gradient, 9 216 words of sums": ConvGradient(
        height=14,
        width=14,
        channels=32,
        filters=32,
        tile=Tile(1, 1, 1),
        **_KERNEL,  # type: ignore[arg-type]
    ),
    "gradient, sums of 31 bits": ConvGradient(
        height=14,
        width=14,
        channels=32,
        filters=32,
        tile=Tile(2, 2, 1),
        x_fixed=Fixed(16, 11),
        e_fixed=Fixed(16, 20),
        g_fixed=Fixed(16, 12),
        sum_width=31,
        **_KERNEL,  # type: ignore[arg-type]
    ),
    "results of passes, 25 088 words": Conv(
        height=56,
        width=56,
        channels=2,
        filters=4,
        tile=Tile(1, 2, 1),
        weights=Home.DRAM,
        **_KERNEL,  # type: ignore[arg-type]
    ),
    "error of a mean, 4 096 words": GlobalAveragePoolError(height=7, width=7, channels=4096),
    "gradient of a bias, 4 096 sums": BiasGradient(height=56, width=56, channels=4096, recipe=Recipe(batch=256)),
    "max pool, nine taps": MaxPool(**_POOL),  # type: ignore[arg-type]
    "error of a max pool, nine taps": MaxPoolError(**_POOL),  # type: ignore[arg-type]
    "average pool, borders count less": AveragePool(height=112, width=112, channels=4, engine_taps=3, **_WINDOW),  # type: ignore[arg-type]
    "average pool, 35 rows": AveragePool(height=35, width=35, channels=4, engine_taps=3, **_SMALL),  # type: ignore[arg-type]
    "max pool, 35 rows, nine taps": MaxPool(height=35, width=35, channels=2, engine_taps=9, **_SMALL),  # type: ignore[arg-type]
    "error of such a pool": AveragePoolError(height=112, width=112, channels=4, **_WINDOW),  # type: ignore[arg-type]
    "average pool over equal shares": AveragePool.sharing(9, 9, (7, 7), channels=4),
    "error of such a pool, 81 phases": AveragePoolError.sharing(9, 9, (7, 7), channels=4, engine_lanes=2),
    "convolution in groups": Conv(
        height=28,
        width=28,
        channels=48,
        filters=64,
        groups=16,
        tile=Tile(2, 3, 3),
        **_KERNEL,  # type: ignore[arg-type]
    ),
    "two engines at one memory, 4 608 words": ConvPair(
        height=14,
        width=14,
        channels=64,
        filters=64,
        tile=Tile(4, 4, 1),
        w_lanes=4,
        **_KERNEL,  # type: ignore[arg-type]
    ),
    "dropout, 4 lanes": Dropout(height=1, width=1, channels=4096, lanes=4, ratio=0.3),
    "leaky relu, 4 lanes": LeakyRelu(**_MAP),
    "hard sigmoid, 4 lanes": HardSigmoid(**_MAP, y_fixed=Fixed(16, 13)),
    "error of a leaky relu, 4 lanes": SlopeError(**_MAP, rest=1),
    "error of a hard sigmoid, 4 lanes": SlopeError(**_MAP, slope=0.2, where=1, dx_fixed=Fixed(16, 14)),
    "silu, 4 lanes": Silu(**_MAP),
    "error of a silu, 4 lanes": DerivativeError(**_MAP),
    "product of maps, 4 lanes": Mul(**_MAP),
    "map by vector, 4 lanes": Scale(**_MAP),
    "affine by constants, 4 lanes": ChannelAffine(**_MAP),
    "error of the vector, 4 lanes": ScaleSum(**_MAP),
    "norm of channels, 4 lanes": ChannelNorm(**_MAP),
    "error of a norm of channels, 4 lanes": ChannelNormError(**_MAP),
    "norm of neighbouring channels, 4 lanes": LocalResponseNorm(**_MAP),
    "error of such a norm, 4 lanes": LocalResponseNormError(**_MAP),
    "shuffle of channels, 4 lanes": ChannelShuffle(**_MAP),
    "slice of channels, 4 lanes": ChannelSlice(**_MAP, first=6, part=27, part_lanes=3),
    "error of such a slice, 4 lanes": ChannelPad(**_MAP, first=6, part=27, part_lanes=3),
    "convolution of ragged tiles": Conv(**_RAGGED),  # type: ignore[arg-type]
    "error of ragged tiles": ConvError(**_RAGGED),  # type: ignore[arg-type]
    "gradient of ragged tiles": ConvGradient(**_RAGGED),  # type: ignore[arg-type]
    "store of weights, 9 216 beats": WeightStore(
        shape=(64, 32, 3, 3), tile=Tile(2, 2), w_lanes=4, recipe=Recipe(batch=256, staleness=48)
    ),
    "store of sums, 2 304 beats": RingStore(shape=(64, 32, 3, 3), tile=Tile(4, 4), w_lanes=16, fixed=Fixed(40, 20)),
    "convolution of short rows": Conv(**_SHORT, small_buffers=True),  # type: ignore[arg-type]
    "error of short rows": ConvError(**_SHORT, small_buffers=True),  # type: ignore[arg-type]
    "gradient of short rows": ConvGradient(**_SHORT, small_buffers=True),  # type: ignore[arg-type]
    "norm, statistics of a channel at a time": OnlineNorm(**_NORM),
    "way back of such a norm": OnlineNormBackward(**_NORM),
    "update of constants on multipliers": Update(
        shape=(64, 64, 1, 1),
        tile=Tile(4, 4, 1),
        w_lanes=4,
        multiplied=True,
        recipe=Recipe(batch=256, momentum=0.9, weight_decay=1e-4),
    ),
    "sum of gradients of three engines, 4 lanes": GradientSum(
        shape=(64, 64, 1, 1), tile=Tile(4, 4, 1), w_lanes=4, copies=3, recipe=Recipe(batch=256)
    ),
    "update that is loaded, 1 lane": Update(
        shape=(1, 64, 1, 1),
        tile=Tile(1, 1, 1),
        w_lanes=1,
        recipe=LoadedRecipe(batch=16, staleness=4, momentum=0.9),
    ),
    "slice of pixels, 4 lanes": PixelSlice(**_MAP, rows=(0, 27, 55), columns=(0, 27, 55)),
    "error of such pixels, 4 lanes": PixelPad(**_MAP, rows=(0, 27, 55), columns=(0, 27, 55)),
}

# builds a block from (clock and reset, streams by name)
Build = Callable[[ClockReset, Mapping[str, Stream]], Any]


# the Verilog module of a circuit that belongs to no design
MODULE = "circuit"


def circuit_text(widths: Mapping[str, int], build: Build) -> str:
    """Verilog of a block between streams of these payload widths."""
    streams = {name: Stream(width) for name, width in widths.items()}
    with unsimulated(), forgotten_signals():
        return convert(build(ClockReset(), streams), MODULE).text


def time_circuit(widths: Mapping[str, int], build: Build) -> ModuleTiming:
    """Time a block between streams of these payload widths."""
    return time_module(circuit_text(widths, build), MODULE, NET_PS, cache_folder() / "timing")


def deep_fifo(domain: ClockReset, streams: Mapping[str, Stream]) -> Any:
    """25 blocks one above the other."""
    return queue(domain, streams["x"], streams["y"], depth=FIFO_WORDS)


def layer_circuit(layer: Layer) -> tuple[Mapping[str, int], Build]:
    """Payload widths and builder of a layer."""
    return {port.name: port.payload_bits for port in (*layer.sinks, *layer.sources, *layer.beside)}, layer.circuit


def network_circuits(wanted: list[str]) -> Iterator[tuple[str, Mapping[str, int], Build]]:
    """One circuit of each kind, or of those wanted, and network, that of the middle width; always the same."""
    from benchmarks.elaboration import NETWORKS, built, circuits_of

    for network in NETWORKS:
        kinds: dict[str, dict[str, tuple[Mapping[str, int], Build]]] = {}
        for key, circuit in circuits_of(network):
            name, widths, build = built(*circuit)
            if not wanted or name in wanted:
                kinds.setdefault(name, {})[key] = widths, build
        for name, found in sorted(kinds.items()):
            order = sorted(found, key=lambda key: (sum(found[key][0].values()), key))
            yield f"{name}, {network.split('-')[0]}", *found[order[len(order) // 2]]


def main() -> int:
    """Time all, print a line each; 1 if one breaks a limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", nargs="*", metavar="KIND", help="layers of networks too, all kinds or these")
    wanted: list[tuple[str, Mapping[str, int], Build]] = [
        (name, unit.streams, unit.build) for name, unit in ALONE.items()
    ]
    wanted.append((f"fifo, {FIFO_WORDS} words of 16 bits", {"x": 16, "y": 16}, deep_fifo))
    wanted += [(name, *layer_circuit(layer)) for name, layer in LAYERS.items()]
    kinds = parser.parse_args().layers
    if kinds is not None:
        wanted += network_circuits(kinds)
    broken = 0
    print(f"{'circuit':<44}{'ns':>6}{'levels':>8}{'products':>10}{'loose':>7}  path")
    for name, widths, build in wanted:
        timing = time_circuit(widths, build)
        worst, loose = timing.worst, len(timing.loose_products)
        broken += worst.ps > LIMIT_PS or loose > 0
        figures = f"{worst.ps / 1000:>6.2f}{worst.levels:>8}{len(timing.products):>10}{loose:>7}"
        print(f"{name:<44}{figures}  {worst.start} -> {worst.end}", flush=True)
    print(f"{broken} of {len(wanted)} above {LIMIT_PS / 1000:.1f} ns at {NET_PS} ps a net, or with loose products")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
