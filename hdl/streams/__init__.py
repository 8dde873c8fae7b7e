"""Primitives on `hdl.stream.Stream`.  In every one ``x`` flows in and ``y`` flows out, in one
`hdl.signals.ClockReset`, and the docstring states cost and latency.  All keep the contract of `hdl.stream`.
"""

from hdl.streams.counter import counter
from hdl.streams.deal import collect, deal
from hdl.streams.fifo import QueueKind, queue, queue_kind, queue_latency
from hdl.streams.fork_join import fork, join
from hdl.streams.pipes import Policy, half_pipe, m2s_pipe, pipe, s2m_pipe, take_bits, wire
from hdl.streams.reads import output_register, output_register_latency, read_stream
from hdl.streams.width import AdapterKind, adapter_kind, bordering_adapter, pack_beats, width_adapter

__all__ = [
    "AdapterKind",
    "Policy",
    "QueueKind",
    "adapter_kind",
    "bordering_adapter",
    "collect",
    "counter",
    "deal",
    "fork",
    "half_pipe",
    "join",
    "m2s_pipe",
    "output_register",
    "output_register_latency",
    "pack_beats",
    "pipe",
    "queue",
    "queue_kind",
    "queue_latency",
    "read_stream",
    "s2m_pipe",
    "take_bits",
    "width_adapter",
    "wire",
]
