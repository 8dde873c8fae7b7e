"""Which circuits make codes of elements, and elements of codes, by the codec."""

from __future__ import annotations

from collections.abc import Sequence

from hdl.engine.codec.bursts import Bursts
from hdl.engine.codec.float_codec import FloatCodec
from hdl.engine.codec.float_coder import float_coder, float_decoder
from hdl.engine.codec.integer_codec import IntegerCodec
from hdl.engine.codec.integer_coder import integer_coder, integer_decoder
from hdl.engine.codec.layouts import Stage


def coder_of(bursts: Bursts) -> Sequence[Stage]:
    """Stages from bursts to codes side by side.  Raises TypeError for a codec that has none."""
    match bursts.codec:
        case IntegerCodec():
            return integer_coder(bursts, bursts.codec)
        case FloatCodec():
            return float_coder(bursts, bursts.codec)
        case codec:
            raise TypeError(f"{type(codec).__name__} has no circuits")


def decoder_of(bursts: Bursts) -> Sequence[Stage]:
    """Stages from a code a lane to bursts.  Raises TypeError for a codec that has none."""
    match bursts.codec:
        case IntegerCodec():
            return integer_decoder(bursts, bursts.codec)
        case FloatCodec():
            return float_decoder(bursts, bursts.codec)
        case codec:
            raise TypeError(f"{type(codec).__name__} has no circuits")
