"""Forms of a network: layers of its model in parts, copies of layers, memories in stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dagtrain.passes.replicate import Copies, NormSync
from dagtrain.passes.split_layers import Parts


@dataclass(frozen=True)
class Form:
    """How the layers of a model stand in a training graph."""

    # layer -> parts (`dagtrain.passes.split_layers`)
    parts: Mapping[str, Parts] = field(default_factory=dict)
    # pattern of layers -> copies (`dagtrain.passes.replicate`)
    copies: Mapping[str, Copies] = field(default_factory=dict)
    # whether these have statistics of frames of their own (`dagtrain.passes.replicate`)
    norm_sync: NormSync = NormSync.TOGETHER
    # nodes whose memory is in a store (`dagtrain.passes.remote_memory`)
    remote: frozenset[str] = frozenset()
