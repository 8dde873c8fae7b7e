"""The poster's equations (1)–(6) as a CP-SAT decision problem: is there a placement at T cycles a frame?

Variables, in English:
    on[i, n]         item i stands on device n                                              (d̃ of the poster)
    picks[i, n, k]   … and is built there with its configuration k                          (d of the poster)
    tile[g, t]       the items of tile group g share tile t
    crosses[i, j]    items i and j, joined by links i → j, stand on different devices
    walks[i, j]      cables on the way from item i to item j, where there is no switch
    sends[i, j, n]   item i stands on device n, and item j, joined to it by links, elsewhere
    peers[n]         by number k: device n exchanges words with k other devices or more
    hops[i]          network hops from the input to item i along activation and error links (H of the poster)
    goes[i, n, k, s] by memory channel of device n: stream s to DRAM of configuration k of item i goes through it

Throughput is not a variable: T is an integer constant, a rate demand of b a frame fits a capacity c a second when
b ≤ ⌊c · T / clock⌋ (exact, as b is an integer after scaling), and `placement.search.search` looks for the least T.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf

from ortools.sat.python import cp_model

from hdl.errors import DagtrainError
from placement.problem.deadline import Deadline
from placement.problem.instance import PORT_RESOURCES, Instance, hop_order
from placement.problem.options import Options
from placement.problem.plan import Assignment
from placement.problem.ports import added_by_peers
from placement.problem.routes import Routing


class Family(enum.Enum):
    """Constraint families, as they are named to the user when one must be relaxed."""

    DSP = "DSP blocks"
    M20K = "block memories"
    ALM = "logic cells"
    DRAM = "DRAM bandwidth"
    LINKS = "link bandwidth"
    HOPS = "equal hops"
    PINS = "pinned items"
    TILES = "shared tiles"
    SAME_DEVICE = "coupled items"


NO_FAMILY: frozenset[Family] = frozenset()
# terms of ways over cables (`wire_terms`) beyond which nobody builds the model
MOST_WIRE_TERMS = 50_000


@dataclass
class Model:
    """A CP-SAT model under construction: the solver's model and the variables by meaning (see the module)."""

    instance: Instance
    options: Options
    solver: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    on: dict[tuple[int, int], cp_model.IntVar] = field(default_factory=dict)
    picks: dict[tuple[int, int, int], cp_model.IntVar] = field(default_factory=dict)
    tile: dict[tuple[str, str], cp_model.IntVar] = field(default_factory=dict)
    crosses: dict[tuple[int, int], cp_model.IntVar] = field(default_factory=dict)
    walks: dict[tuple[int, int], cp_model.IntVar] = field(default_factory=dict)
    sends: dict[tuple[int, int, int], cp_model.IntVar] = field(default_factory=dict)
    peers: dict[int, list[cp_model.IntVar]] = field(default_factory=dict)
    hops: dict[int, cp_model.IntVar] = field(default_factory=dict)
    # of a stream to DRAM on a device with several channels, by channel
    goes: dict[tuple[int, int, int, int], list[cp_model.IntVar]] = field(default_factory=dict)
    # single constraints to be left out: a family, and the name of a device, item or group
    relaxed: frozenset[tuple[Family, str]] = frozenset()
    # whether the solver starts at an assignment
    hinted: bool = False

    def holds(self, family: Family, name: str) -> bool:
        """Whether the constraint of a family for a device, item or group is to be kept."""
        return (family, name) not in self.relaxed

    def budget(self, capacity_per_s: int) -> int:
        """Units a frame that a capacity a second admits at this T: ⌊c · T / clock⌋."""
        return capacity_per_s * self.options.cycles_per_frame // self.instance.clock_hz


def build_model(
    instance: Instance, options: Options, without: frozenset[Family] = NO_FAMILY,
    relaxed: frozenset[tuple[Family, str]] = frozenset(),
) -> Model:  # fmt: skip
    """All constraints at the T of `options`, less the families and the single constraints to be relaxed."""
    model = Model(instance, options, relaxed=relaxed)
    place_once(model)
    constraints: Mapping[Family, Callable[[Model], None]] = {
        Family.DSP: lambda m: respect_blocks(m, "dsp"),
        Family.M20K: lambda m: respect_blocks(m, "m20k"),
        Family.ALM: lambda m: respect_blocks(m, "alm"),
        Family.DRAM: respect_dram,
        Family.LINKS: respect_links,
        Family.HOPS: equal_hops,
        Family.PINS: pin_items,
        Family.TILES: share_tiles,
        Family.SAME_DEVICE: couple_items,
    }
    for family, add in constraints.items():
        if family not in without:
            add(model)
    return model


def place_once(model: Model) -> None:
    """(1)  d̃[l,n] = Σ_c d[l,n,c],   Σ_n d̃[l,n] = 1   for every layer l: placed once, with one configuration.

    Only configurations usable at T get a variable, which is equation (6) for engines: S ≤ S[l,n](c).
    """
    instance, solver = model.instance, model.solver
    for i in range(len(instance.items)):
        places = []
        for n, device in enumerate(instance.devices):
            usable = model.options.by_part[i].get(device.part, ())
            if not usable:
                continue
            here = solver.new_bool_var(f"on[{i},{n}]")
            places.append(here)
            model.on[i, n] = here
            if len(usable) == 1:
                model.picks[i, n, usable[0]] = here
                continue
            for k in usable:
                model.picks[i, n, k] = solver.new_bool_var(f"picks[{i},{n},{k}]")
            solver.add(sum(model.picks[i, n, k] for k in usable) == here)
        solver.add_exactly_one(places)


def respect_blocks(model: Model, resource: str) -> None:
    """(2)  Σ_l Σ_c d[l,n,c] · R_layer[l,n,t](c) ≤ R_dev[n,t]   for every device n; `resource` t is "dsp", "m20k"
    or "alm". Senders and receivers of links that cross stand on the left as well, and what peers add to a port."""
    for n, device in enumerate(model.instance.devices):
        terms = _costs(model, n, resource) + _port_costs(model, n, resource) + _peer_costs(model, n, resource)
        if terms and model.holds(Family[resource.upper()], device.name):
            model.solver.add(sum(cost * pick for cost, pick in terms) <= getattr(device, resource))


def respect_dram(model: Model) -> None:
    """(2) for t = DRAM bandwidth: Σ bytes a frame · clock ≤ R_dev[n] · T."""
    for n, device in enumerate(model.instance.devices):
        terms = _costs(model, n, "dram_bytes_per_frame")
        if terms and model.holds(Family.DRAM, device.name):
            model.solver.add(sum(cost * pick for cost, pick in terms) <= model.budget(device.dram_bytes_per_s))
            if device.dram_channels > 1:
                respect_channels(model, n)


def respect_channels(model: Model, n: int) -> None:
    """Each stream to DRAM of what is built on device n goes through one channel, Σ_h g[l,n,c,s,h] = d[l,n,c], and a
    channel has an equal part of the bandwidth: channels · Σ bytes a frame · clock ≤ R_dev[n] · T."""
    device = model.instance.devices[n]
    loads: list[list[cp_model.LinearExpr]] = [[] for _ in range(device.dram_channels)]
    for (i, placed, k), pick in model.picks.items():
        if placed != n:
            continue
        for s, size in enumerate(model.instance.configurations(i, n)[k].streams):
            ways = [model.solver.new_bool_var(f"goes[{i},{n},{k},{s},{h}]") for h in range(device.dram_channels)]
            model.goes[i, n, k, s] = ways
            model.solver.add(sum(ways) == pick)
            for load, way in zip(loads, ways, strict=True):
                load.append(size * way)
    for load in loads:
        model.solver.add(device.dram_channels * sum(load) <= model.budget(device.dram_bytes_per_s))


def respect_links(model: Model) -> None:
    """(3)  Σ_l Σ_k d̃[l,n] · (1 − d̃[k,n]) · S·F[l,k] ≤ C_dev[n]   for every device n: egress; and the same sum with
    l and k exchanged: ingress.  Credits of a link are in F[k,l].

    The product is linearised by a literal that is forced to 1 where it is 1; nothing gains from it being 1
    elsewhere.
    """
    instance = model.instance
    if instance.routing is not None:
        respect_wires(model, instance.routing)
        return
    scale = instance.link_scale
    budgets = [
        device.word_bits_per_s * model.options.cycles_per_frame * scale // instance.clock_hz
        for device in instance.devices
    ]
    egress: list[list[cp_model.LinearExpr]] = [[] for _ in instance.devices]
    ingress: list[list[cp_model.LinearExpr]] = [[] for _ in instance.devices]
    for i, j, amount in _streams(model, max(budgets)):
        for n in range(len(instance.devices)):
            for end, other, load in ((i, j, egress), (j, i, ingress)):
                if (end, n) in model.on:
                    load[n].append(amount * sending(model, end, other, n))
    for n, budget in enumerate(budgets):
        for load, host in zip((egress, ingress), instance.devices[n].host_bits, strict=True):
            if (load[n] or host) and model.holds(Family.LINKS, instance.devices[n].name):
                model.solver.add(sum(load[n]) <= budget - int(host * scale))


def respect_wires(model: Model, routing: Routing) -> None:
    """(3) where there is no switch:  Σ_l Σ_k S·F[l,k] ≤ C[w]   for every direction w of a cable, over items l and k
    with w on the way from l's device to k's.

    A literal is 1 where w is on that way.  All devices from which w leads to the same ones are taken together: where l
    stands on one of these, and k on one of those, it is forced to 1; nothing gains from it being 1 elsewhere."""
    instance, solver = model.instance, model.solver
    budgets = [
        wire.bits_per_s * model.options.cycles_per_frame * instance.link_scale // instance.clock_hz
        for wire in routing.wires
    ]
    loads: list[list[cp_model.LinearExpr]] = [[] for _ in routing.wires]
    for i, j, amount in _streams(model, max(budgets)):
        for w, rows in enumerate(routing.carried):
            through: cp_model.IntVar | None = None
            for sources, targets in rows:
                here = [model.on[i, n] for n in sources if (i, n) in model.on]
                there = [model.on[j, n] for n in targets if (j, n) in model.on]
                if here and there:
                    through = solver.new_bool_var("") if through is None else through
                    solver.add(sum(here) + sum(there) <= 1 + through)
            if through is not None:
                loads[w].append(amount * through)
    for w, load in enumerate(loads):
        if load and model.holds(Family.LINKS, routing.names[w]):
            solver.add(sum(load) <= budgets[w])


def _streams(model: Model, widest: int) -> Iterator[tuple[int, int, int]]:
    """(item, item, bits a frame from the one to the other, scaled to integers) of all that may be cut.  What is fatter
    than all links are at this T can't be, so its ends are joined outright."""
    instance = model.instance
    bits: dict[tuple[int, int], int] = {}
    for link in instance.links:
        for source, target, a_frame in link.ways:
            pair = (instance.item_index[source], instance.item_index[target])
            bits[pair] = bits.get(pair, 0) + int(a_frame * instance.link_scale)
    for (i, j), amount in bits.items():
        if amount == 0 or i == j:
            continue
        if amount > widest and not model.relaxed:
            model.solver.add(crossing(model, i, j) == 0)
            continue
        yield i, j, amount


def wire_terms(instance: Instance) -> int:
    """How many terms `respect_wires` and `walked` add at most: what makes the model large where there is no switch; 0
    with one."""
    if instance.routing is None:
        return 0
    homes = [
        {n for n in range(len(instance.devices)) if instance.configurations(i, n)} for i in range(len(instance.items))
    ]
    pairs = {(start, end) for link in instance.links for start, end, _ in link.ways if start != end}
    rows = [(set(sources), set(targets)) for rows in instance.routing.carried for sources, targets in rows]
    size: dict[tuple[frozenset[int], frozenset[int]], int] = {}
    total = 0
    for start, end in pairs:
        key = (frozenset(homes[instance.item_index[start]]), frozenset(homes[instance.item_index[end]]))
        if key not in size:
            met = ((len(sources & key[0]), len(targets & key[1])) for sources, targets in rows)
            ways = sum(here + there for here, there in met if here and there)
            size[key] = ways + len(key[0]) * len(key[1])
        total += size[key]
    return total


def equal_hops(model: Model) -> None:
    """(4)  H[l] = H[k] + Σ_n d̃[l,n] · (1 − d̃[k,n])   for every activation or error link k → l; H = 0 where none
    arrives.  Without a switch a way counts as many hops as it has cables.

    Stash, weight and gradient links are exempt: what they carry waits in buffers, for a round trip or a batch.
    """
    instance = model.instance
    predecessors: dict[int, set[int]] = {}
    for link in instance.links:
        if link.kind.hops_must_match:
            source, target = instance.item_index[link.source], instance.item_index[link.target]
            predecessors.setdefault(target, set()).add(source)
    depth: dict[int, int] = {}
    farthest = max(1, *map(max, instance.distance))
    for i in hop_order(instance):
        depth[i] = max((depth[p] + farthest for p in predecessors.get(i, ())), default=0)
        model.hops[i] = model.solver.new_int_var(0, depth[i], f"hops[{i}]")
        arrivals = [model.hops[p] + walked(model, p, i) for p in sorted(predecessors.get(i, ()))]
        if model.holds(Family.HOPS, instance.items[i].name):
            for arrival in arrivals:
                model.solver.add(model.hops[i] == arrival)
        elif arrivals:
            model.solver.add_max_equality(model.hops[i], arrivals)


def pin_items(model: Model) -> None:
    """(5)  d̃[l,n] = 1 for every pinned layer l: input and output layers on FPGA 0, and what the user pinned."""
    for i, item in enumerate(model.instance.items):
        if item.pinned is not None and model.holds(Family.PINS, item.name):
            n = model.instance.device_index[item.pinned]
            if (i, n) in model.on:
                model.solver.add(model.on[i, n] == 1)
            else:
                model.solver.add_bool_or([])  # the pinned device cannot hold the item at this T


def share_tiles(model: Model) -> None:
    """All items of a tile group choose configurations of one tile: Σ_n Σ_{c of tile t} d[l,n,c] = tile[g,t]."""
    for group, members in model.instance.tile_groups.items():
        for t in model.options.tiles[group]:
            model.tile[group, t] = model.solver.new_bool_var(f"tile[{group},{t}]")
        model.solver.add_exactly_one(model.tile[group, t] for t in model.options.tiles[group])
        for i in members:
            by_tile: dict[str, list[cp_model.IntVar]] = {t: [] for t in model.options.tiles[group]}
            for n in range(len(model.instance.devices)):
                offered = model.instance.configurations(i, n)
                for k in model.options.by_part[i].get(model.instance.devices[n].part, ()):
                    by_tile[offered[k].tile or ""].append(model.picks[i, n, k])
            for t, picks in by_tile.items():
                if len(model.options.tiles[group]) > 1:
                    model.solver.add(sum(picks) == model.tile[group, t])


def couple_items(model: Model) -> None:
    """Items with the same `same_device` stand on one device: d̃[l,n] = d̃[k,n] for every device n."""
    groups: dict[str, list[int]] = {}
    for i, item in enumerate(model.instance.items):
        if item.same_device is not None and model.holds(Family.SAME_DEVICE, item.name):
            groups.setdefault(item.same_device, []).append(i)
    for first, *others in groups.values():
        for other in others:
            for n in range(len(model.instance.devices)):
                model.solver.add(_on(model, first, n) == _on(model, other, n))


def order_equal_devices(model: Model) -> None:
    """Redundant: of devices that differ only in name and hold no pin, a later one may be used by item i only if the
    earlier one is used by an item before i. It removes mirror images, which helps proofs; it loses no solution
    up to renaming devices. Not to be combined with a hint, which may be one of the mirror images."""
    instance, solver = model.instance, model.solver
    pinned = {item.pinned for item in instance.items}
    groups: dict[object, list[int]] = {}
    for n, device in enumerate(instance.devices):
        if device.name not in pinned:
            groups.setdefault(instance.sorts[n], []).append(n)
    for group in groups.values():
        for earlier, later in itertools.pairwise(group):
            used_before: cp_model.IntVar | None = None
            for i in range(len(instance.items)):
                if (i, later) not in model.on:
                    continue
                if used_before is None:
                    solver.add(model.on[i, later] == 0)
                else:
                    solver.add_implication(model.on[i, later], used_before)
                used = solver.new_bool_var("")
                before = [] if used_before is None else [used_before]
                solver.add_bool_or([used.negated(), *before, model.on[i, earlier]])
                used_before = used


def add_hint(model: Model, assignment: Assignment) -> None:
    """Start the solver at an assignment; what is not usable at this T is left open."""
    model.hinted = True
    for (i, n), variable in model.on.items():
        model.solver.add_hint(variable, int(assignment.devices[i] == n))
    for (i, n, k), variable in model.picks.items():
        if variable.index != model.on[i, n].index:
            hit = assignment.devices[i] == n and assignment.configurations[i] == k
            model.solver.add_hint(variable, int(hit))
    for (i, j), variable in model.crosses.items():
        model.solver.add_hint(variable, int(assignment.devices[i] != assignment.devices[j]))
    for (i, j), variable in model.walks.items():
        model.solver.add_hint(variable, model.instance.distance[assignment.devices[i]][assignment.devices[j]])


class Answer(enum.Enum):
    """What the solver found out. UNKNOWN is not INFEASIBLE: the budget ended first."""

    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Effort:
    """A budget of the solver that gives the same answer on every machine."""

    # CP-SAT's deterministic time, roughly seconds of one core
    deterministic_seconds: float
    seed: int = 0
    # threads of the interleaved search: reproducible for one number on every machine, another number is another search
    workers: int = 2
    # a time limit and Ctrl-C, which only decide when to give up; None: none
    deadline: Deadline | None = None


def decide(
    model: Model, effort: Effort, spent: Callable[[float], None] = lambda _: None
) -> tuple[Answer, Assignment | None]:
    """Solve the decision problem; with FEASIBLE comes the assignment. `spent` is told the deterministic seconds used.

    Raises:
        DagtrainError: numbers too large for the solver's 64-bit sums.
    """
    solver, status = solve(model.solver, effort, hinted=model.hinted)
    spent(solver.response_proto.deterministic_time)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Answer.FEASIBLE, _read(model, solver)
    if status == cp_model.INFEASIBLE:
        return Answer.INFEASIBLE, None
    if status == cp_model.UNKNOWN:
        return Answer.UNKNOWN, None
    raise DagtrainError(
        f"placement instance {model.instance.name!r} at {model.options.cycles_per_frame} cycles a frame: the solver "
        f"refuses the model ({solver.status_name(status)}: {model.solver.validate()})",
        "sums must stay below 2^63: correct the cost model",
    )


def cheapest_configurations(instance: Instance, options: Options, assignment: Assignment, effort: Effort) -> Assignment:
    """The same devices with the configurations that take the smallest sum of shares of their devices' DSP, M20K, ALM
    and DRAM, still at this T; the assignment itself if none better is found within the effort."""
    pins = {item.name: instance.devices[n].name for item, n in zip(instance.items, assignment.devices, strict=True)}
    model = build_model(instance.with_pins(pins), options, without=frozenset({Family.HOPS}))
    terms = []
    for (i, n, k), pick in model.picks.items():
        device, c = instance.devices[n], instance.configurations(i, n)[k]
        limits = (*device.capacities, model.budget(device.dram_bytes_per_s))
        # in millionths of the device, so that coefficients are integers
        shares = sum(cost * 1_000_000 // max(1, limit) for cost, limit in zip(c.costs, limits, strict=True))
        terms.append(min(shares, 10**9) * pick)
    model.solver.minimize(sum(terms))
    add_hint(model, assignment)
    answer, found = decide(model, effort)
    return found if answer is Answer.FEASIBLE and found is not None else assignment


def fewest_crossings(instance: Instance, options: Options, assignment: Assignment, effort: Effort) -> Assignment:
    """A placement at the same T in which fewer streams cross the network, or go over fewer cables: each costs a sender,
    a receiver and latency.

    The assignment itself if none better is found within the effort."""
    model = build_model(instance, options)
    pairs = {
        (instance.item_index[link.source], instance.item_index[link.target])
        for link in instance.links
        if link.source != link.target
    }
    model.solver.minimize(sum(walked(model, i, j) for i, j in sorted(pairs)))
    add_hint(model, assignment)
    answer, found = decide(model, effort)
    return found if answer is Answer.FEASIBLE and found is not None else assignment


def solve(
    model: cp_model.CpModel, effort: Effort, *, hinted: bool = False
) -> tuple[cp_model.CpSolver, cp_model.CpSolverStatus]:
    """Run CP-SAT reproducibly within the effort: (the solver, with its values; its status).

    The solver works in a thread of its own, so that Ctrl-C stops it at once and is passed on: left to itself, CP-SAT
    would catch the signal and call the interrupted search UNKNOWN.

    A model with a hint (`hinted`) is searched by one worker: with several, OR-tools 9.15 aborts the process where a
    worker finds out while it loads the model that there is nothing to search ("heuristics.fixed_search != nullptr").
    """
    workers = 1 if hinted else effort.workers
    solver = cp_model.CpSolver()
    solver.parameters.random_seed = effort.seed
    solver.parameters.max_deterministic_time = effort.deterministic_seconds
    deadline = effort.deadline or Deadline()
    if deadline.seconds_left < inf:
        solver.parameters.max_time_in_seconds = max(0.01, deadline.seconds_left)
    solver.parameters.num_workers = workers
    solver.parameters.interleave_search = workers > 1
    solver.parameters.catch_sigint_signal = False
    with ThreadPoolExecutor(max_workers=1) as pool, deadline.ending(solver.stop_search):
        future = pool.submit(solver.solve, model)
        try:
            return solver, future.result()
        except BaseException:
            solver.stop_search()
            raise


def _read(model: Model, solver: cp_model.CpSolver) -> Assignment:
    devices, configurations = [-1] * len(model.instance.items), [-1] * len(model.instance.items)
    channels: list[tuple[int, ...]] = [()] * len(model.instance.items)
    for (i, n, k), variable in model.picks.items():
        if solver.value(variable):
            devices[i], configurations[i] = n, k
            streams = len(model.instance.configurations(i, n)[k].streams)
            ways = (model.goes.get((i, n, k, s), ()) for s in range(streams))
            channels[i] = tuple(next((h for h, way in enumerate(each) if solver.value(way)), 0) for each in ways)
    return Assignment(tuple(devices), tuple(configurations), tuple(channels) if model.goes else None)


def _on(model: Model, i: int, n: int) -> cp_model.IntVar | int:
    return model.on.get((i, n), 0)


def _costs(model: Model, n: int, cost: str) -> list[tuple[int, cp_model.IntVar]]:
    """Non-zero costs of what may be picked on device n."""
    terms = []
    for i in range(len(model.instance.items)):
        offered = model.instance.configurations(i, n)
        for k in model.options.by_part[i].get(model.instance.devices[n].part, ()):
            if amount := getattr(offered[k], cost):
                terms.append((amount, model.picks[i, n, k]))
    return terms


def _port_costs(model: Model, n: int, resource: str) -> list[tuple[int, cp_model.IntVar]]:
    """Non-zero costs of the senders and receivers that links may need on device n."""
    terms = []
    if resource in PORT_RESOURCES:
        at = PORT_RESOURCES.index(resource)
        for link in model.instance.links:
            i, j = model.instance.item_index[link.source], model.instance.item_index[link.target]
            for end, other, amount in ((i, j, link.ends[0][at]), (j, i, link.ends[1][at])):
                if amount and i != j and (end, n) in model.on:
                    terms.append((amount, sending(model, end, other, n)))
    return terms


def _peer_costs(model: Model, n: int, resource: str) -> list[tuple[int, cp_model.IntVar]]:
    """What each further peer of device n adds to its port."""
    added = added_by_peers(model.instance.devices[n].port, resource) if resource in PORT_RESOURCES else ()
    return list(zip(added, peers_of(model, n), strict=False)) if any(added) else []


def peers_of(model: Model, n: int) -> list[cp_model.IntVar]:
    """Literals that are 1 where device n exchanges words with one, two … other devices at least; nothing gains from
    them elsewhere, since a further peer never makes a port smaller."""
    if n not in model.peers:
        instance, solver = model.instance, model.solver
        others = [m for m in range(len(instance.devices)) if m != n]
        meets = {m: solver.new_bool_var(f"meets[{n},{m}]") for m in others}
        ends = {(instance.item_index[link.source], instance.item_index[link.target]) for link in instance.links}
        for i, j in {pair for a, b in ends if a != b for pair in ((a, b), (b, a))}:
            for m in others:
                if (i, n) in model.on and (j, m) in model.on:
                    solver.add_bool_or([model.on[i, n].negated(), model.on[j, m].negated(), meets[m]])
        model.peers[n] = [solver.new_bool_var(f"peers[{n}] >= {k + 1}") for k in range(len(others))]
        solver.add(sum(meets.values()) <= sum(model.peers[n]))
        for fewer, more in itertools.pairwise(model.peers[n]):
            solver.add_implication(more, fewer)
    return model.peers[n]


def sending(model: Model, end: int, other: int, n: int) -> cp_model.IntVar:
    """A literal that is 1 where item `end` stands on device n and `other` doesn't; nothing gains from it elsewhere."""
    key = (end, other, n)
    if key not in model.sends:
        literal = model.sends[key] = model.solver.new_bool_var("")
        elsewhere = [model.on[other, n]] if (other, n) in model.on else []
        model.solver.add_bool_or([model.on[end, n].negated(), *elsewhere, literal])
    return model.sends[key]


def walked(model: Model, i: int, j: int) -> cp_model.IntVar:
    """Hops from item i to item j: the literal of `crossing` over a switch, else how many cables are on the way."""
    instance, solver = model.instance, model.solver
    if instance.routing is None:
        return crossing(model, i, j)
    if (i, j) not in model.walks:
        model.walks[i, j] = solver.new_int_var(0, max(map(max, instance.distance)), f"walks[{i},{j}]")
        for n, far in enumerate(instance.distance):
            if (i, n) in model.on:
                cables = sum(cables * _on(model, j, m) for m, cables in enumerate(far))
                solver.add(model.walks[i, j] == cables).only_enforce_if(model.on[i, n])
    return model.walks[i, j]


def crossing(model: Model, i: int, j: int) -> cp_model.IntVar:
    """The literal that is 1 exactly if items i and j stand on different devices."""
    pair = (min(i, j), max(i, j))
    if pair not in model.crosses:
        literal = model.solver.new_bool_var(f"crosses[{pair[0]},{pair[1]}]")
        for n in range(len(model.instance.devices)):
            here, there = model.on.get((pair[0], n)), model.on.get((pair[1], n))
            if here is not None and there is not None:
                model.solver.add_bool_or([here.negated(), there, literal])
                model.solver.add_bool_or([here.negated(), there.negated(), literal.negated()])
            elif here is not None:
                model.solver.add_implication(here, literal)
        model.crosses[pair] = literal
    return model.crosses[pair]
