"""What the steps write as JSON, so far as later steps and reports read it: the schemas of `read_json`.

Further keys are for people and other programs; they are kept and not checked.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from hdl.records import exact

Count = Annotated[int, Field(ge=0)]
# of copies, unlike ones, as --copy says them
Shares = Annotated[str, Field(pattern=r"^[1-9]\d*(:[1-9]\d*)+$")]
Positive = Annotated[int, Field(ge=1)]


class Versioned(TypedDict):
    """Every result."""

    # of `dagtrain.flow.workspace.SCHEMA_VERSION`
    schema_version: int


class SourceRecord(TypedDict):
    """Where a graph came from."""

    # of the ONNX file
    path: str
    # digests
    model: str
    data: str


class ImportRecord(Versioned):
    """``import.json``."""

    model: str
    source: SourceRecord
    # layer -> parts
    splits: dict[str, str]
    # patterns of names of layers
    freeze: list[str]
    # pattern of names of layers -> copies
    copies: dict[str, Count | Shares]
    # as --norm-sync, --exchange and --compress said
    norm_sync: Literal["together", "apart"]
    exchange: str
    compress: str
    # weights that stay as they are
    frozen: Count
    name: str
    norm: str
    # as --data named it
    data: str | None
    # as --bits and --count-saturations said
    bits: list[str]
    counted: list[str]
    layers: Count
    nodes: Count
    weights: Count
    # multiplications a frame
    forward_macs: Count
    error_macs: Count
    gradient_macs: Count
    # bits a frame
    stash_bits: Count
    # what was dropped or changed, and where normalisation stands
    notes: NotRequired[list[str]]


@exact
class LayerRecord(TypedDict):
    """A layer of ``summary.json``; see `dagtrain.graph.summary.LayerSummary`."""

    name: str
    kind: str
    output_shape: list[Positive]
    weights: Count
    forward_macs: Count
    error_macs: Count
    gradient_macs: Count
    stash_bits: Count
    nodes: Count
    frozen: Count


class SummaryRecord(Versioned):
    """``summary.json``."""

    name: str
    layers: list[LayerRecord]


class PlaceRecord(Versioned):
    """``place.json``."""

    # frames
    needed_staleness: Count
    # frames/s of the training with a multiplication in every cycle of every multiplier that may be used; None: of a
    # network that multiplies nothing
    never_idle_fps: float | None
    warnings: list[str]
    # cycles a frame
    levels: list[Positive]
    finished: bool
    # layer -> parts
    splits: dict[str, str]
    # layer, or pattern of names -> copies
    copies: dict[str, Count | Shares]
    # as --norm-sync of `import` said
    norm_sync: Literal["together", "apart"]
    # nodes whose memory is in a store; the largest share of block memory of any board in the best plan without stores,
    # where one was found first
    remote: list[str]
    share_without_stores: float | None
    # digest of what was asked, and the fingerprint of the result from which the search went on
    problem: str
    begun_from: str
    seconds: float


class DeviceRecord(TypedDict):
    """A device of ``emit.json``."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]
    nodes: Count
    modules: Count
    egress: Count
    ingress: Count
    # Quartus project of the board around it, from here, where there is one
    board: NotRequired[str]


class EmitRecord(Versioned):
    """``emit.json``."""

    cycles_per_frame: Positive
    needed_staleness: Count
    devices: list[DeviceRecord]


class PairRecord(TypedDict):
    """Frames from a port of the switch to another one, in ``cosim.json``."""

    # devices, or host
    source: str
    target: str
    frames: Count
    # of them DATA, and those that were sent before
    data: Count
    retransmitted: Count
    # what befell them
    lost: Count
    duplicated: Count
    reordered: Count
    corrupted: Count
    link_down: Count
    delivered: Count
    # of the cable's time that they took, what those sent again did
    share_lost: float


class PortRecord(TypedDict):
    """The Ethernet port of a device, in ``cosim.json``."""

    device: str
    # frames by cause
    dropped: dict[str, Count]


class NetworkRecord(TypedDict):
    """The Ethernet of a co-simulation."""

    pairs: list[PairRecord]
    ports: list[PortRecord]
    # by the host, if it speaks over the network
    host_dropped: dict[str, Count]
    # how often the host brought the cluster back after a device was reset
    resets: Count


class CosimRecord(Versioned):
    """``cosim.json``."""

    batches: Positive
    frames: Positive
    devices: Positive
    cycles: Count
    batch_cycles: list[Count]
    planned_batch_cycles: Positive
    # share of cycles
    stall: float
    compared_words: Count
    equal: bool
    mismatches: list[str]
    # of every frame
    losses: list[float]
    # edge -> numbers at an end of their format, of tensors behind which they are counted
    saturations: dict[str, Count]
    # a line each
    traffic: str
    mac_efficiency: str
    # where FPGAs have Ethernet ports
    network: NotRequired[NetworkRecord]


class NodeWorkRecord(TypedDict):
    """A node of ``simulate.json``; see `dagtrain.simulate.result.NodeWork`."""

    node: str
    device: str
    # its tensors come once a batch, not once a frame
    per_batch: bool
    # of each tensor, the first and the last cycle of work
    spans: list[Annotated[list[Count], Field(min_length=2, max_length=2)]]
    multipliers: Count
    busy_multiplier_cycles: Count
    # share of multiplier cycles; None without multipliers
    idle: float | None


class CableWorkRecord(TypedDict):
    """What went from one device to another."""

    source: str
    target: str
    bits: Count
    bits_per_cycle: float
    # mean
    bits_per_second: float


class BatchWorkRecord(TypedDict):
    """A batch; all in cycles."""

    first_cycle: Count
    first_result: Count
    last_result: Count
    # None where nothing is trained
    last_weights: Count | None
    fill_cycles: Count
    drain_cycles: int


class BindingRecord(TypedDict):
    """What was at work in the greatest share of the cycles."""

    # engine or cable
    kind: str
    name: str
    share: float


class IdleRecord(TypedDict):
    """Multipliers of a board."""

    device: str
    multipliers: Positive
    # of multiplier cycles, filling and draining the pipeline included
    share: float
    # of those from batch to batch; None of a single batch
    in_training: float | None


class FullRecord(TypedDict):
    """While every engine works on one batch; see `dagtrain.simulate.result.FullWork`."""

    # of the batch, counted from 0
    first_frame: Count
    last_frame: Count
    cycles_per_frame: float
    # how much longer frames take in the later half of them than in the earlier, as a share; None of fewer than three
    drift: float | None
    # multipliers of the cluster, and of each board
    idle: float
    idle_by_device: dict[str, float]


class SimulationRecord(Versioned):
    """``simulate.json``; see `dagtrain.simulate.result.Simulation`."""

    # exact or fast
    level: str
    clock_mhz: float
    # frames a batch
    batch: Positive
    # until the last results, and until all was done
    cycles: Count
    worked_cycles: Count
    frame_cycles: list[Count]
    # None of a single batch, or of batches of one frame
    batch_interval: float | None
    # how much longer the last interval is than the one before, as a share; None of fewer than three batches
    drift: float | None
    frame_interval: float | None
    frames_per_second: float | None
    frames_per_second_inside: float | None
    binds: BindingRecord
    idle_by_device: list[IdleRecord]
    nodes: list[NodeWorkRecord]
    cables: list[CableWorkRecord]
    batches: list[BatchWorkRecord]
    # None of several batches, and of fewer frames than that takes
    full: FullRecord | None


class WrongRecord(TypedDict):
    """A wrong number of ``debug.json``; see `dagtrain.cosim.trace.Wrong`."""

    edge: str
    # that sent it, or got it
    node: str
    port: str
    device: str
    sent: bool
    # counted from 0; batch: None of weights as loaded, frame: None of tensors of a batch
    batch: Count | None
    frame: Count | None
    index: list[Count]
    # codes
    found: int
    expected: int
    format: str
    cycle: Count


class DebugRecord(Versioned):
    """``debug.json``."""

    equal: bool
    batches: Positive
    streams: Count
    compared_words: Count
    # why the simulation ended early; "" if it did not
    ended: str
    # the earliest cause; None where all is equal
    first_wrong: WrongRecord | None
    also_wrong: list[WrongRecord]
    seed: int
    data: str | None
    lines: list[str]


class TensorRecord(TypedDict):
    """A tensor of ``profile.json``; see `dagtrain.training.profile.TensorProfile`."""

    edge: str
    layer: str
    kind: str
    format: str
    numbers: Positive
    saturated: Count
    zeros: Count
    # root mean square
    own_error_steps: float
    # of sums over a batch, where they are narrower than exact ones
    sum_bits: NotRequired[Positive]
    wrapped_sums: NotRequired[Count]
    remark: str


class DivergenceRecord(TypedDict):
    """A tensor of ``profile.json`` in training; see `dagtrain.training.divergence.Divergence`."""

    edge: str
    layer: str
    kind: str
    format: str
    # of each epoch, relative to the float64 run, and to float64 on the hardware's numbers; None where those are all 0
    errors: list[float | None]
    own_errors: list[float | None]
    # epoch; None: within the threshold
    left: Positive | None


class TrainedBesideRecord(TypedDict):
    """Training in both arithmetics."""

    epochs: Positive
    # relative own error
    threshold: float
    # edge whose own error left it first; None: all are within
    first: str | None
    tensors: list[DivergenceRecord]


class ProfileRecord(Versioned):
    """``profile.json``."""

    frames: Positive
    source: str
    tensors: list[TensorRecord]
    # with --train
    training: NotRequired[TrainedBesideRecord]


class EngineRecord(TypedDict):
    """An engine of ``efficiency.json``."""

    node: str
    cycles_per_frame: Annotated[float, Field(gt=0)]
    waits_for: NotRequired[str]


class EfficiencyRecord(Versioned):
    """``efficiency.json``."""

    engines: list[EngineRecord]


class EngineSharesRecord(TypedDict):
    """An engine of ``timeline.json``: cycles of its clock in each stretch."""

    node: str
    device: str
    busy: list[Count]
    starved: list[Count]
    blocked: list[Count]


class FifoLevelsRecord(TypedDict):
    """A FIFO of ``timeline.json``."""

    # as the manifest calls it
    name: str
    device: str
    # beats
    depth: Positive
    # that lay there at most in each stretch
    highest: list[Count]


class TimelineRecord(Versioned):
    """``timeline.json``: a batch of ``cosim`` with others before and behind it; see `dagtrain.cosim.timeline`."""

    # counted from 1
    batch: Positive
    # of the network's clock
    first_cycle: Count
    stretch_cycles: Positive
    engines: list[EngineSharesRecord]
    fifos: list[FifoLevelsRecord]


class EpochRecord(TypedDict):
    """An epoch of ``train.json``."""

    epoch: Positive
    train_loss: float
    train_accuracy: float
    held_out_loss: float
    held_out_accuracy: float


class BegunRecord(TypedDict):
    """Means over the batches of an epoch that are done."""

    frames: Count
    loss: float
    accuracy: float


class TrainingRecord(TypedDict):
    """What a checkpoint says of its training."""

    # of data, seed and steps
    identity: dict[str, Any]
    epochs: list[EpochRecord]
    # of the next one
    begun: BegunRecord


class TrainRecord(Versioned):
    """``train.json``."""

    train_frames: Positive
    held_out_frames: Positive
    epochs: Annotated[list[EpochRecord], Field(min_length=1)]
    # node -> sums of gradients that did not fit their bits, of those that some did not
    wrapped_sums: NotRequired[dict[str, Positive]]
    # what copies exchange coded: bits of elements to those of words, in three batches of four at least
    gradient_ratio: NotRequired[float]


class ServeRecord(Versioned):
    """``serve.json``."""

    cycles: Count
    # frames that passed the UDP socket
    from_host: Count
    to_host: Count
    # frames at the host's port that are none of the cluster's, by cause
    dropped: dict[str, Positive]
    pairs: list[PairRecord]


class TestedDeviceRecord(TypedDict):
    """A device of ``bring-up.json``."""

    name: str
    part: str
    # devices that it sends words to, and gets some from
    links: Count
    channels: Count
    # of a memory channel
    words: Count
    # that a report tells
    values: Count
    # Quartus project of the board around it, from here; null: there is none, and why
    board: str | None
    no_board: list[str]


class BringUpRecord(Versioned):
    """``bring-up.json``."""

    devices: list[TestedDeviceRecord]


class SelfTestRecord(Versioned):
    """``self-test.json``."""

    # device -> value -> number: behind all words and marches, and behind one bit more that was turned over on each link
    reports: dict[str, dict[str, Count]]
    injected: dict[str, dict[str, Count]]
    # what is wrong
    problems: list[str]


class DrivenDeviceRecord(TypedDict):
    """A device of ``drive.json``: frames by what became of them."""

    name: str
    sent: Count
    heard: Count
    retransmitted: Count
    # cause -> frames
    drops: dict[str, Positive]
    # None: not measured
    rtt_us: float | None
    # words of streams to it that may be sent, and those if none were on their way
    credits: Count
    most_credits: Count


class DriveComparison(TypedDict):
    """Of ``drive.json``: what the emulator, which trained the same, was compared in."""

    batches: Count
    # of state
    words: Count
    # the first of them; none: every bit equal
    mismatches: list[str]


class DriveRecord(Versioned):
    """``drive.json``."""

    # behind the state that devices have
    batches: Count
    # how often all devices began anew, from a checkpoint, since one had
    resets: Count
    epochs: list[EpochRecord]
    # the checkpoint, if one was wanted
    saved: str | None
    devices: list[DrivenDeviceRecord]
    compared: NotRequired[DriveComparison]


class TrainDataRecord(TypedDict):
    """On what was trained: as the options said, and what identifies it."""

    name: str
    held_out: str | None
    stratify: bool
    seed: Count
    digest: str


class TrainedOnRecord(TrainRecord):
    """``train.json``, for who takes training up again or judges by what it held out."""

    data: TrainDataRecord


class EvaluateRecord(Versioned):
    """``evaluate.json``."""

    # as the options named them
    what: str
    data: str
    frames: Positive
    accuracy: float
    # nats
    loss: float
    # of each class, how many frames were taken for which
    confusion: list[list[Count]]


class ExportRecord(Versioned):
    """``export.json``."""

    # in the step's folder
    file: str
    # names of input and result
    image: str
    scores: str
    # operators
    nodes: Positive
    weights: Count


class ParallelLayerRecord(TypedDict):
    """A weighted layer, or a join, of ``parallelize.json``."""

    name: str
    # elements; 0 of a join
    weights: Count
    # elements a sample that leave for others
    map: Count
    # at H1, H2, …: 0 is data parallelism, 1 model parallelism
    choices: Annotated[str, Field(pattern="^[01]+$")]


class ParallelStepRecord(TypedDict):
    """A step of training on an array of accelerators."""

    # computing and communicating by turns
    seconds: float
    # at once, wherever no result is waited for
    overlapped_seconds: float
    joules: float


class ParallelRecord(Versioned):
    """``parallelize.json``."""

    name: str
    # samples
    batch: Positive
    accelerators: Positive
    # greedy or exact
    search: str
    # its name, or its switches with commas; and its switches
    convention: str
    switches: list[str]
    # that accelerators communicate in a step of training: in all, and at H1, H2, …
    bytes: float
    # proven of all choices, by the exact search
    bound_bytes: float | None
    level_bytes: list[float]
    # other choices -> bytes
    compared: dict[str, float]
    # htree or torus; processing units of an accelerator
    topology: str
    units: Positive
    # these choices, "chosen", and the others -> time and energy
    steps: dict[str, ParallelStepRecord]
    layers: list[ParallelLayerRecord]


class StepRecord(TypedDict):
    """A cell on a path, with the picoseconds at its output."""

    cell: str
    signal: str
    ps: Count


class PathRecord(TypedDict):
    """A path between registers."""

    ps: Count
    levels: Count
    start: str
    end: str
    steps: list[StepRecord]


class ReadyRecord(TypedDict):
    """A path of ready through modules."""

    start: str
    instances: list[str]


class ProductRecord(TypedDict):
    """A multiplier."""

    cell: str
    touches: str
    registered: bool


class ModuleTimingRecord(TypedDict):
    """A module of ``timing.json``."""

    module: str
    paths: list[PathRecord]
    products: list[ProductRecord]


class DeviceTimingRecord(TypedDict):
    """A device top of ``timing.json``."""

    device: str
    paths: list[PathRecord]
    ready: list[ReadyRecord]


class RuleRecord(TypedDict):
    """A rule of ``timing.json``."""

    rule: str
    broken: Count
    of: Count


class TimingRecord(Versioned):
    """``timing.json``."""

    net_ps: Count
    module_limit_ps: Count
    top_limit_ps: Count
    rules: list[RuleRecord]
    devices: list[DeviceTimingRecord]
    modules: list[ModuleTimingRecord]


class ComparisonRecord(TypedDict):
    """A quantity of a layer, estimated and synthesised."""

    quantity: str
    estimate: float
    synthesis: float
    error: float


class EstimateRowRecord(TypedDict):
    """A layer of ``estimate.json``."""

    node: str
    layer: str
    cycles_per_frame: Positive
    dsp: Count
    m20k: Count
    mlab: Count
    registers: Count
    alm: Count
    check: NotRequired[list[ComparisonRecord]]
    digest: NotRequired[str]
    unchecked: NotRequired[str]
    longest_path_cells: NotRequired[Count]


class EstimateRecord(Versioned):
    """``estimate.json``."""

    part: str
    cycles_per_frame: Positive
    layers: list[EstimateRowRecord]


class ExplainRecord(Versioned):
    """``explain.json``."""

    lines: list[str]


@exact
class FallenRecord(TypedDict):
    """A wall and where it stands."""

    wall: str
    cycles_per_frame: float
    fps: float


@exact
class LeverRecord(TypedDict):
    """What levers bring."""

    # of one lever, or of all
    lever: str
    # what it does to costs
    rule: str
    # whether it is in force today, in the graph or in the cluster file
    taken: bool
    # frames/s over today's
    ratio: float
    # the walls one after the other
    falling: list[FallenRecord]


class WallsRecord(Versioned):
    """``walls.json``."""

    lines: list[str]
    # cycles a frame that were priced
    levels: list[Positive]
    today: list[FallenRecord]
    # wall -> share in use where the first one stands
    in_use: dict[str, float]
    # wall -> where it stands alone; None where it never binds
    alone: dict[str, FallenRecord | None]
    levers: list[LeverRecord]
    slowest_item: str
    streams: Count
    too_wide_today: Count
    too_wide_with_all_levers: Count


class MappedBoardRecord(TypedDict):
    """What a published mapping puts on a board."""

    device: str
    # layer -> its channels
    channels: dict[str, Positive]
    # blocks, and their share of all there are
    dsp: Count
    dsp_share: float
    # share of its multipliers' cycles
    idle: float
    # weights and gradients on the chip, of all block memory
    weights_share: float
    # weights off the chip, each read once
    dram_bytes_per_frame: Count


class OursRecord(TypedDict):
    """The plan beside a published mapping: inside a batch, and in training."""

    fps: float
    training_fps: float
    bound_fps: float
    # share of all multipliers' cycles
    idle: float
    # device -> share of all its blocks, and of its multipliers' cycles
    dsp_share: dict[str, float]
    idle_share: dict[str, float]


class MappingRecord(Versioned):
    """``mapping.json``."""

    mapping: str
    name: str
    # how channels were made whole
    dealing: str
    # of all multiplications, those in layers that it maps
    known_share: float
    # by multipliers alone
    fps: float
    idle: float
    # the same with whole passes over the channels of a pixel
    whole_passes_fps: float
    whole_passes_idle: float
    # across the widest cut, in its fuller direction; beside what a board's link carries, and the layer there
    link_bits_per_frame: Count
    link_bits_per_s: Count
    widest_cut: str
    # usable, of a board
    dram_bytes_per_s: Count
    boards: list[MappedBoardRecord]
    # None without a plan to compare with
    ours: OursRecord | None


class PointRecord(Versioned):
    """``point.json``: the plan of one size of a cluster; without a plan, None and why."""

    devices: Positive
    used_devices: Positive | None
    throughput_fps: float | None
    steady_fps: float | None
    bound_fps: float | None
    dsp: Count | None
    dsp_capacity: Count | None
    why: str
