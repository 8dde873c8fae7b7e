"""The poster's method, literally: equations (1)–(6) as a decision problem, and bisection on throughput to 5 %.

    d[l,n,c]   layer l stands on device n with configuration c        d̃[l,n]   … with any configuration
    H[l]       network hops from the input to layer l                 S        throughput, frames a second

    (1)  d̃[l,n] = Σ_c d[l,n,c],  Σ_n d̃[l,n] = 1                                    for every layer l
    (2)  Σ_l Σ_c d[l,n,c] · R[l,n,t](c) ≤ R_dev[n,t]                               for every device n and resource t
    (3)  Σ_l Σ_k d̃[l,n] · (1 − d̃[k,n]) · S · F[l,k] ≤ C_dev[n]                     for every device n, and the same for
                                                                                   what arrives
    (4)  H[l] = H[k] + Σ_n d̃[l,n] · (1 − d̃[k,n])                                   for every activation or error k → l
    (5)  d̃[l,n] = 1                                                                for every layer l pinned to n
    (6)  S ≤ S[l,n](c) for every configuration in use; maximise S

On cables (3) is one for every direction w of a cable, over l and k with w on the way from l's device to k's, and (4)
counts the cables of a way:

    (3)  Σ_l Σ_k Σ_n Σ_m [w on the way n → m] · d̃[l,n] · d̃[k,m] · S · F[l,k] ≤ C[w]
    (4)  H[l] = H[k] + Σ_n Σ_m distance(n, m) · d̃[k,n] · d̃[l,m]

This is the baseline and the proof of semantics, not the fast way (`placement.search.search` is). Nothing is contracted,
no bound is computed but by refutation, no symmetry is broken. Products of two variables are linearised exactly. S
enters as the integer T = ⌊clock / S⌋ cycles a frame, so that the fast way and this one decide the same question.
"""

# names are the poster's: l, k layers; n devices; d, H, S, F as above
# ruff: noqa: E741

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from ortools.sat.python import cp_model

from hdl.errors import DagtrainError, InfeasibleError, OutOfTimeError
from placement.exact.model import Answer, Effort, solve
from placement.problem.deadline import Deadline
from placement.problem.flat import check_magnitudes
from placement.problem.instance import PORT_RESOURCES, RESOURCES, Instance, hop_order
from placement.problem.options import OptionTable
from placement.problem.plan import Assignment, Bound, Plan, build_plan, least_cycles
from placement.problem.ports import added_by_peers
from placement.problem.restrict import Restricted
from placement.problem.settings import OnProgress, Progress, SearchOptions

# products d̃[l,n] · d̃[k,m] on cables, at most: above, it would be years
MOST_PRODUCTS = 200_000
# bisection ends when the two throughputs differ by less than this share
PRECISION = 0.05


def literal_plan(
    problem: Restricted, options: SearchOptions, on_progress: OnProgress, deadline: Deadline | None = None
) -> Plan:
    """The plan that bisection finds; its bound is the least T that no refutation excludes.  ``deadline``: when to end,
    instead of after the time limit.

    Raises:
        InfeasibleError: refuted at the slowest T (or at `least_fps`).
        OutOfTimeError: neither a placement nor a refutation within the budgets.
        DagtrainError: on cables, more products than `MOST_PRODUCTS`.
    """
    instance = problem.instance
    check_magnitudes(instance)
    products = len(_joined(instance)) * len(instance.devices) ** 2 if instance.cables else 0
    if products > MOST_PRODUCTS:
        raise DagtrainError(
            f"placement instance {instance.name!r}: equations (1)–(6) on cables have {products} products of two "
            f"variables, more than {MOST_PRODUCTS}",
            "take the default solver, or fewer devices",
        )
    table = OptionTable(instance)
    levels = table.levels()
    slowest = int(instance.clock_hz // options.least_fps) if options.least_fps else _slowest(instance, levels[-1])
    deadline = deadline or Deadline(options.time_limit_seconds)
    best: Assignment | None = None
    refuted = max(1, min(levels[0], slowest)) - 1
    # least T reached, and largest T that was not reached (refuted or given up)
    reached, failed = slowest + 1, refuted
    while not deadline.over:
        cycles = _next(instance.clock_hz, reached, failed, slowest)
        if cycles is None:
            break
        answer, assignment = decide(instance, table, cycles, _effort(options, deadline))
        if assignment is not None:
            best, reached = assignment, least_cycles(instance, assignment) or cycles
        else:
            failed = cycles
        if answer is Answer.INFEASIBLE:
            refuted = max(refuted, cycles)
        on_progress(Progress(f"literal T = {cycles}: {answer.value}", reached if best else None, refuted + 1,
                             "refuted literally", instance.clock_hz))  # fmt: skip
    if best is None:
        if refuted >= slowest:
            raise InfeasibleError(
                f"no placement of {instance.name!r} at {slowest} cycles a frame, by equations (1)–(6)"
            )
        deadline.check()
        raise OutOfTimeError(
            f"no placement of {instance.name!r} found by equations (1)–(6), and none excluded", "allow more time"
        )
    bound = Bound(min(refuted + 1, reached), f"{problem.note}equations (1)–(6) refuted at {refuted} cycles a frame")
    return build_plan(problem.original, problem.widened(best), bound, seed=options.seed)


def _next(clock_hz: int, reached: int, failed: int, slowest: int) -> int | None:
    """The T in the middle of the throughputs at `failed` and `reached`; None when they differ by less than PRECISION.

    Before anything is reached, throughput is halved; the slowest T comes last."""
    if reached > slowest:
        return min(slowest, max(1, 2 * failed)) if failed < slowest else None
    if reached - failed <= 1 or reached <= (1 + PRECISION) * failed:
        return None
    middle = (Fraction(clock_hz, reached) + Fraction(clock_hz, max(1, failed))) / 2
    return min(reached - 1, max(failed + 1, int(clock_hz // middle)))


def _slowest(instance: Instance, slowest_engine: int) -> int:
    """A T at which nothing but blocks and hops binds: all links and all DRAM traffic through the thinnest device."""
    bits = sum((bits for link in instance.links for *_, bits in link.ways), Fraction(0))
    bits += sum((bits for device in instance.devices for bits in device.host_bits), Fraction(0))
    traffic = sum(max(c.dram_bytes_per_frame for cs in item.configurations.values() for c in cs)
                  for item in instance.items)  # fmt: skip
    rates = [rate for rate in instance.link_rates if rate]
    drams = [device.dram_bytes_per_s for device in instance.devices if device.dram_bytes_per_s]
    needs = [slowest_engine, 1]
    needs += [-int(-bits * instance.clock_hz // rate) for rate in rates]
    needs += [-(-traffic * instance.clock_hz // dram) for dram in drams]
    return max(needs)


def _effort(options: SearchOptions, deadline: Deadline) -> Effort:
    return Effort(
        deterministic_seconds=options.decision_seconds, seed=options.seed, workers=options.workers, deadline=deadline
    )


def decide(instance: Instance, table: OptionTable, cycles: int, effort: Effort) -> tuple[Answer, Assignment | None]:
    """Whether equations (1)–(6) hold for some d at T = `cycles`; with FEASIBLE comes the assignment."""
    options = table.at(cycles)
    layers, devices = range(len(instance.items)), range(len(instance.devices))
    model = cp_model.CpModel()

    # (6): only configurations with S ≤ S[l,n](c) have a variable
    usable = {(l, n): options.by_part[l].get(instance.devices[n].part, ()) for l in layers for n in devices}
    d = {(l, n, c): model.new_bool_var(f"d[{l},{n},{c}]") for (l, n), menu in usable.items() for c in menu}

    # (1)
    on = {(l, n): model.new_bool_var(f"on[{l},{n}]") for l in layers for n in devices}
    for (l, n), here in on.items():
        model.add(sum(d[l, n, c] for c in usable[l, n]) == here)
    for l in layers:
        model.add(sum(on[l, n] for n in devices) == 1)

    # d̃[l,n] · (1 − d̃[k,n]) as a variable, for every link and device, in both directions
    ends = [(instance.item_index[link.source], instance.item_index[link.target]) for link in instance.links]
    apart = {}
    for l, k in {pair for a, b in ends for pair in ((a, b), (b, a))}:
        for n in devices:
            product = apart[l, k, n] = model.new_bool_var(f"apart[{l},{k},{n}]")
            model.add_bool_and([on[l, n], on[k, n].negated()]).only_enforce_if(product)
            model.add_bool_or([on[l, n].negated(), on[k, n], product])

    peers = _peer_costs(instance, model, on, ends)

    # (2), network ports included; DRAM bandwidth in bytes a frame
    for n, device in enumerate(instance.devices):
        limits = {name: getattr(device, name) for name in RESOURCES}
        limits["dram_bytes_per_frame"] = device.dram_bytes_per_s * cycles // instance.clock_hz
        for name, limit in limits.items():
            used = sum(
                getattr(instance.configurations(l, n)[c], name) * d[l, n, c] for l in layers for c in usable[l, n]
            )
            port = sum(
                getattr(link, f"sender_{name}") * apart[l, k, n] + getattr(link, f"receiver_{name}") * apart[k, l, n]
                for link, (l, k) in zip(instance.links, ends, strict=True)
                if name in PORT_RESOURCES
            )
            port += sum(added * more for added, more in peers.get((n, name), ()))
            model.add(used + port <= limit)

    # d̃[k,n] · d̃[l,m] on cables, whose ways differ
    both = _both_placed(instance, model, on) if instance.cables else {}

    # (3), bits a frame scaled to integers
    scale = instance.link_scale
    bits = [int(link.bits_per_frame * scale) for link in instance.links]
    credits = [int(link.credit_bits_per_frame * scale) for link in instance.links]
    for n, device in enumerate(instance.devices):
        limit = device.word_bits_per_s * cycles * scale // instance.clock_hz
        out, into = (int(host * scale) for host in device.host_bits)
        flows = list(zip(bits, credits, ends, strict=True))
        model.add(out + sum(F * apart[l, k, n] + C * apart[k, l, n] for F, C, (l, k) in flows) <= limit)
        model.add(into + sum(F * apart[k, l, n] + C * apart[l, k, n] for F, C, (l, k) in flows) <= limit)
    _limit_cables(instance, model, cycles, both)

    # (4), and hops 0 where nothing arrives
    def walked(k: int, l: int) -> Any:
        if instance.cables:
            return sum(instance.distance[n][m] * both[k, l, n, m] for n in devices for m in devices)
        return sum(apart[l, k, n] for n in devices)

    _equal_hops(instance, model, walked)

    # (5)
    for l, item in enumerate(instance.items):
        if item.pinned is not None:
            model.add(on[l, instance.device_index[item.pinned]] == 1)

    _shared_choices(instance, model, on, d)
    solver, status = solve(model, effort)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        chosen = {l: (n, c) for (l, n, c), variable in d.items() if solver.value(variable)}
        places = tuple(chosen[l][0] for l in layers)
        return Answer.FEASIBLE, Assignment(places, tuple(chosen[l][1] for l in layers))
    return (Answer.INFEASIBLE if status == cp_model.INFEASIBLE else Answer.UNKNOWN), None


def _equal_hops(instance: Instance, model: cp_model.CpModel, walked: Callable[[int, int], Any]) -> None:
    """(4); ``walked``: hops from one item to another."""
    farthest = max(1, *map(max, instance.distance))
    hops = {l: model.new_int_var(0, farthest * len(instance.items), f"H[{l}]") for l in hop_order(instance)}
    arriving = set()
    for link in instance.links:
        if link.kind.hops_must_match:
            k, l = instance.item_index[link.source], instance.item_index[link.target]
            model.add(hops[l] == hops[k] + walked(k, l))
            arriving.add(l)
    for l in set(range(len(instance.items))) - arriving:
        model.add(hops[l] == 0)


def _joined(instance: Instance) -> set[tuple[int, int]]:
    """Pairs of items between which words go, credits too; none with itself."""
    ends = ((instance.item_index[start], instance.item_index[end]) for link in instance.links for start, end, _ in
            link.ways)  # fmt: skip
    return {(start, end) for start, end in ends if start != end}


def _both_placed(
    instance: Instance, model: cp_model.CpModel, on: dict[tuple[int, int], cp_model.IntVar]
) -> dict[tuple[int, int, int, int], cp_model.IntVar]:
    """(l, k, n, m) → whether item l stands on device n and item k on m, of all items that words go between."""
    devices, both = range(len(instance.devices)), {}
    for l, k in sorted(_joined(instance)):
        for n in devices:
            for m in devices:
                product = both[l, k, n, m] = model.new_bool_var(f"both[{l},{k},{n},{m}]")
                model.add_bool_and([on[l, n], on[k, m]]).only_enforce_if(product)
                model.add_bool_or([on[l, n].negated(), on[k, m].negated(), product])
    return both


def _limit_cables(
    instance: Instance, model: cp_model.CpModel, cycles: int,
    both: dict[tuple[int, int, int, int], cp_model.IntVar],
) -> None:  # fmt: skip
    """(3) for every direction of a cable."""
    if instance.routing is None:
        return
    loads: list[list[cp_model.LinearExpr]] = [[] for _ in instance.routing.wires]
    for link in instance.links:
        for start, end, bits in link.ways:
            l, k = instance.item_index[start], instance.item_index[end]
            for n in range(len(instance.devices)) if l != k else ():
                for m in range(len(instance.devices)):
                    for w in instance.routing.way(n, m):
                        loads[w].append(int(bits * instance.link_scale) * both[l, k, n, m])
    for wire, load in zip(instance.routing.wires, loads, strict=True):
        model.add(sum(load) <= wire.bits_per_s * cycles * instance.link_scale // instance.clock_hz)


def _peer_costs(
    instance: Instance, model: cp_model.CpModel, on: dict[tuple[int, int], cp_model.IntVar],
    ends: list[tuple[int, int]],
) -> dict[tuple[int, str], list[tuple[int, cp_model.IntVar]]]:  # fmt: skip
    """What the poster does not have: (device, resource) → what each further peer of its port adds, and whether it is
    there."""
    costs = {(n, name): added_by_peers(device.port, name) for n, device in enumerate(instance.devices)
             for name in PORT_RESOURCES}  # fmt: skip
    if not any(any(added) for added in costs.values()):
        return {}
    devices = range(len(instance.devices))
    meets = {(n, m): model.new_bool_var(f"meets[{n},{m}]") for n in devices for m in devices if n != m}
    for l, k in {pair for a, b in ends if a != b for pair in ((a, b), (b, a))}:
        for n, m in meets:
            model.add_implication(on[k, m], meets[n, m]).only_enforce_if(on[l, n])
    found = {}
    for n in devices:
        number = model.new_int_var(0, len(devices), f"peers[{n}]")
        model.add(number == sum(meets[n, m] for m in devices if m != n))
        more = []
        for k in range(1, len(devices)):
            more.append(model.new_bool_var(f"peers[{n}] >= {k}"))
            model.add(number >= k).only_enforce_if(more[-1])
            model.add(number < k).only_enforce_if(more[-1].negated())
        for name in PORT_RESOURCES:
            found[n, name] = list(zip(costs[n, name], more, strict=False))
    return found


def _shared_choices(
    instance: Instance, model: cp_model.CpModel, on: dict[tuple[int, int], cp_model.IntVar],
    d: dict[tuple[int, int, int], cp_model.IntVar],
) -> None:  # fmt: skip
    """What the poster does not have: items of a tile group share a tile, coupled items a device."""
    for group, members in instance.tile_groups.items():
        by_tile: dict[tuple[int, str], list[cp_model.IntVar]] = {}
        for (l, n, c), pick in d.items():
            if l in members:
                by_tile.setdefault((l, instance.configurations(l, n)[c].tile or ""), []).append(pick)
        for tile in sorted({tile for _, tile in by_tile}):
            shared = model.new_bool_var(f"tile[{group},{tile}]")
            for l in members:
                model.add(sum(by_tile.get((l, tile), [])) == shared)
    coupled: dict[str, int] = {}
    for l, item in enumerate(instance.items):
        if item.same_device is not None:
            first = coupled.setdefault(item.same_device, l)
            for n in range(len(instance.devices)):
                model.add(on[l, n] == on[first, n])
