"""Faults put into the bounds and the search on purpose, and the questions that find them.

    .venv/bin/python -m tests.bound_mutants

makes `tests/bound_killers.json` anew: every mutant with the seed of the first stored instance at which it is found.

A mutant is a module of `placement` with one piece of its text changed, run in place of the original. A *question* is
asked of one stored instance, whose optimum is known, and answers what is wrong, or nothing.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from numba.core.dispatcher import Dispatcher
from ortools.sat.python import cp_model

import placement
from hdl.errors import DagtrainError, InfeasibleError, OutOfTimeError
from placement.problem.instance import Instance
from tests.bound_instances import Known, stored

STORE = Path(__file__).with_name("bound_killers.json")

# all modules that a change may be seen through
MODULES = (
    "options", "flat", "plan", "model", "encode", "aggregate", "packing", "cuts", "cases", "bound", "neighbourhood",
    "window", "restrict", "anneal", "settle", "heuristic", "descent", "explain", "infeasible", "literal", "search",
)  # fmt: skip


@cache
def _paths() -> dict[str, str]:
    """Name of a module of `placement` -> with its room."""
    found = (found.name for found in pkgutil.walk_packages(placement.__path__, "placement.") if not found.ispkg)
    return {path.rpartition(".")[2]: path for path in found}


def module(name: str) -> ModuleType:
    """A module of `placement`."""
    importlib.import_module(_paths()[name])
    return sys.modules[_paths()[name]]


# --- questions ---------------------------------------------------------------------------------------------------


def restricted(known: Known) -> Instance:
    """The instance as the bounds see it."""
    problem = known.problem
    together = (problem.together,) if problem.together else ()
    found: Instance = module("restrict").restrict(problem.instance, together, problem.exclude).instance
    return found


def effort(seconds: float) -> Any:
    """A budget of so many deterministic seconds."""
    return module("model").Effort(deterministic_seconds=seconds)


def refuters(instance: Instance, seconds: float = 5.0) -> dict[str, Callable[[int], bool]]:
    """Every bound that refutes values of T, by name."""
    flat = module("flat").flatten(instance)
    windows = module("window").Windows(instance, flat, 0, seconds, effort)
    near = module("neighbourhood").Neighbourhoods(instance, flat, effort, seconds)
    cuts = module("cuts").Cuts(instance, flat, effort, seconds)

    def exact(cycles: int) -> bool:
        """As the search asks the exact model."""
        search = descent(instance)
        answer = search.exact(cycles)
        return bool(answer is module("model").Answer.INFEASIBLE or search.bound.cycles_per_frame > cycles)

    return {
        "aggregate": lambda t: module("aggregate").Aggregate(instance, flat).refute(t) is not None,
        "cases": lambda t: bool(module("cases").refuted_by_cases(instance, flat, t)),
        "packing": lambda t: bool(module("packing").refuted_packing(instance, flat, t, effort(1.0))),
        "cuts": lambda t: bool(cuts.refuted(t)),
        "neighbourhood": lambda t: bool(near.refuted(t)),
        "window": lambda t: bool(windows.refuted(t)),
        "exact": exact,
    }


def descent(instance: Instance, **options: Any) -> Any:
    """A search that has not begun."""
    chosen = module("settings").SearchOptions(**options)
    return module("descent").Descent(instance, chosen, lambda _: None, module("search").slowest_cycles(instance))


def too_strong(known: Known, name: str) -> str:
    """A bound may not refute the T of a placement that exists."""
    refutes = refuters(restricted(known))[name]
    if name == "neighbourhood":
        # it remembers what it was asked
        refutes(known.optimum // 2)
    return f"{name} refutes {known.optimum}, where there is a placement" if refutes(known.optimum) else ""


def single_too_strong(known: Known) -> str:
    """Nor may an item alone, nor all of them melted together, be bounded by more."""
    instance = restricted(known)
    flat, ceiling = module("flat").flatten(instance), module("search").slowest_cycles(instance)
    single = module("bound").single_bound(instance, ceiling)
    if not 1 <= single.cycles_per_frame <= known.optimum:
        return f"single bound {single.cycles_per_frame}, optimum {known.optimum}"
    melted = module("bound").aggregate_bound(module("aggregate").Aggregate(instance, flat), single, ceiling)
    if not single.cycles_per_frame <= melted.cycles_per_frame <= known.optimum:
        return f"aggregate bound {melted.cycles_per_frame}, optimum {known.optimum}"
    return ""


def too_few_cases(known: Known) -> str:
    """Cases that were not looked at are not refuted."""
    with mock.patch.object(module("cases"), "MOST_CASES", 1):
        return too_strong(known, "cases")


def solver_too_strong(known: Known) -> str:
    """Windows that annealing doesn't save from CP-SAT."""
    with mock.patch.object(module("window"), "settle", return_value=None):
        return too_strong(known, "window")


def exact_too_high(known: Known) -> str:
    """What the exact model refutes raises the bound to the next T, not beyond."""
    search = descent(restricted(known))
    search.exact(known.optimum - 1)
    found = search.bound.cycles_per_frame
    return "" if found == known.optimum else f"bound {found} once {known.optimum - 1} is refuted"


@contextmanager
def no_budget() -> Iterator[None]:
    """CP-SAT and annealing whose budget is always over at once."""

    class Spent:
        class response_proto:
            deterministic_time = 0.0

        def value(self, _: object) -> int:
            raise AssertionError("a search without a result has no values")

    def solve(*_: object, **__: object) -> tuple[Any, Any]:
        return Spent(), cp_model.UNKNOWN

    with ExitStack() as stack:
        for name in ("model", "packing", "cuts", "neighbourhood", "literal"):
            stack.enter_context(mock.patch.object(module(name), "solve", solve))
        stack.enter_context(mock.patch.object(module("window"), "SCREEN_MOVES", 0))
        stack.enter_context(mock.patch.object(module("window"), "settle", return_value=None))
        stack.enter_context(mock.patch.object(module("heuristic").Annealer, "attempt", return_value=None))
        yield


def unknown_refutes(known: Known, name: str) -> str:
    """A solver whose budget ended refutes nothing."""
    with no_budget():
        refutes = refuters(restricted(known))[name]
        return f"{name} refutes {known.optimum} without an answer" if refutes(known.optimum) else ""


def nothing_left_refutes(known: Known, name: str) -> str:
    """Nor does a bound that has no seconds left for the solver."""
    with no_budget():
        refutes = refuters(restricted(known), seconds=0.0)[name]
        return f"{name} refutes {known.optimum} with no seconds left" if refutes(known.optimum) else ""


def unknown_ends(known: Known, solver: str) -> str:
    """A search whose budgets are over ends without a plan: it has not excluded one."""
    options = module("settings").SearchOptions(solver=module("settings").Solver(solver), explain=False)
    with no_budget():
        try:
            module("search").find_plan(known.problem.instance, options)
        except OutOfTimeError:
            return ""
        except InfeasibleError as error:
            return f"{solver}: {error}"
        return f"{solver} found a plan without a solver"


def wrong_plan(known: Known, **budgets: Any) -> str:
    """The search ends at the optimum and knows it."""
    problem = known.problem
    options = module("settings").SearchOptions(
        same_device=(problem.together,) if problem.together else (), exclude=problem.exclude, **budgets
    )
    try:
        plan = module("search").find_plan(problem.instance, options)
    except (InfeasibleError, OutOfTimeError) as error:
        return str(error)
    said = (plan.cycles_per_frame, plan.bound_cycles_per_frame)
    return "" if said == (known.optimum, known.optimum) else f"plan and bound {said}, optimum {known.optimum}"


def wrong_literal(known: Known) -> str:
    """The poster's equations bound no plan away that exists."""
    problem = known.problem
    options = module("settings").SearchOptions(
        solver=module("settings").Solver.LITERAL, exclude=problem.exclude,
        same_device=(problem.together,) if problem.together else (),
    )  # fmt: skip
    plan = module("search").find_plan(problem.instance, options)
    fine = plan.bound_cycles_per_frame <= known.optimum <= plan.cycles_per_frame <= 1.06 * known.optimum
    return "" if fine else f"{plan.bound_cycles_per_frame} … {plan.cycles_per_frame}, optimum {known.optimum}"


def wrong_steps(_: Known) -> str:
    """`least_unrefuted` and `bisect_unrefuted` end one above a T that was refuted, and at the least where all below are
    and steps are single."""
    bound = module("bound")
    for floor, ceiling in ((1, 1), (1, 12), (40, 90), (700, 900)):
        for least in range(floor, ceiling + 2):

            def refutes(cycles: int, least: int = least) -> bool:
                return cycles < least

            for levels in ([], [floor + 1, ceiling], list(range(floor, ceiling + 1, 3))):
                found = bound.least_unrefuted(refutes, floor, ceiling, levels)
                if found != least:
                    return f"least_unrefuted({floor}, {ceiling}, {levels}) is {found}, not {least}"
            found = bound.bisect_unrefuted(refutes, floor, ceiling)
            if found != least:
                return f"bisect_unrefuted({floor}, {ceiling}) is {found}, not {least}"
            # a budget that ends now and then: what was not refuted is not taken for refuted
            odd = bound.least_unrefuted(lambda t: t < least and t % 3 != 0, floor, ceiling, [])  # noqa: B023
            if odd > floor and not (odd - 1 < least and (odd - 1) % 3):
                return f"least_unrefuted says {odd}, where {odd - 1} was not refuted"
            odd = bound.bisect_unrefuted(lambda t: t < least and t % 3 != 0, floor, ceiling)  # noqa: B023
            if odd > floor and not (odd - 1 < least and (odd - 1) % 3):
                return f"bisect_unrefuted says {odd}, where {odd - 1} was not refuted"
    return ""


def wrong_end(known: Known) -> str:
    """A search stops at its goal, not before, and keeps what is better."""
    instance = restricted(known)
    model = module("model")
    table = module("options").OptionTable(instance)
    answer, best = model.decide(model.build_model(instance, table.at(known.optimum)), effort(5.0))
    if answer is not model.Answer.FEASIBLE:
        return f"the exact model finds nothing at {known.optimum}: {answer}"
    search = descent(instance, gap=0.02)
    stopped = module("deadline").Ended
    # one more is worse, the same again changes nothing
    search.best_cycles = known.optimum + 1
    search.accept(best)
    search.accept(best)
    if search.best_cycles != known.optimum:
        return f"an accepted plan of {known.optimum} counts as {search.best_cycles}"
    # the goal is reached from this bound on
    goal = -(-known.optimum * 98 // 100)
    for cycles, ends in ((goal - 1, False), (goal, True)):
        search.raise_bound(module("plan").Bound(cycles, "test"))
        search.raise_bound(module("plan").Bound(cycles - 1, "lower"))
        if search.bound.cycles_per_frame != cycles:
            return f"bound {search.bound.cycles_per_frame} after {cycles} and {cycles - 1}"
        try:
            search.check_goal()
            if ends:
                return f"no stop at bound {cycles} of {known.optimum} with a gap of 0.02"
        except stopped:
            if not ends:
                return f"stop at bound {cycles} of {known.optimum} with a gap of 0.02"
    # a gap met exactly
    search = descent(instance, gap=0.25)
    search.best, search.best_cycles = best, 400
    search.raise_bound(module("plan").Bound(300, "test"))
    try:
        search.check_goal()
    except stopped:
        return ""
    return "no stop at bound 300 of 400 with a gap of 0.25"


BOUNDS = ("aggregate", "cases", "packing", "cuts", "neighbourhood", "window", "exact")
Question = Callable[[Known], str]
QUESTIONS: Mapping[str, Question] = {
    "single": single_too_strong,
    **{name: lambda known, name=name: too_strong(known, name) for name in BOUNDS},  # type: ignore[misc]
    **{f"{name}, no answer": lambda known, name=name: unknown_refutes(known, name)  # type: ignore[misc]
       for name in ("packing", "cuts", "neighbourhood", "window", "exact", "cases")},
    **{f"{name}, nothing left": lambda known, name=name: nothing_left_refutes(known, name)  # type: ignore[misc]
       for name in ("cuts", "neighbourhood", "window")},
    **{f"{solver}, no answer": lambda known, solver=solver: unknown_ends(known, solver)  # type: ignore[misc]
       for solver in ("fast", "literal")},
    "search": wrong_plan,
    "cases, few": too_few_cases,
    "window, solver": solver_too_strong,
    "exact, below": exact_too_high,
    "literal": wrong_literal,
    "steps": wrong_steps,
    "end": wrong_end,
}  # fmt: skip


# --- mutants -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """One module with `old` once replaced by `new`; the question that finds it."""

    module: str
    old: str
    new: str
    question: str

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.module}: {self.old.strip()} → {self.new.strip()}"


@contextmanager
def mutated(mutant: Mutant) -> Iterator[None]:
    """The mutant in place of the original, wherever that is known by name."""
    # all are there before one is changed
    users = [module(name) for name in MODULES if name != mutant.module]
    original = module(mutant.module)
    path = Path(str(original.__file__))
    source = path.read_text(encoding="utf-8")
    if source.count(mutant.old) != 1:
        raise AssertionError(f"{mutant.name}: the text to change is {source.count(mutant.old)} times in {path.name}")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        copy = Path(folder) / path.name
        # kernels of a mutant are compiled for it alone
        copy.write_text(source.replace(mutant.old, mutant.new).replace("cache=True, ", ""), encoding="utf-8")
        changed = ModuleType(original.__name__)
        changed.__file__, changed.__package__ = str(copy), original.__package__
        stack.callback(sys.modules.__setitem__, original.__name__, original)
        sys.modules[original.__name__] = changed
        exec(compile(copy.read_text(encoding="utf-8"), str(copy), "exec"), changed.__dict__)
        for name, kernel in vars(original).items():
            # … unless they are the same
            if isinstance(kernel, Dispatcher) and mutant.old not in inspect.getsource(kernel.py_func):
                setattr(changed, name, kernel)
        for user in users:
            for key, value in list(vars(user).items()):
                if getattr(value, "__module__", None) == original.__name__ and vars(original).get(key) is value:
                    stack.enter_context(mock.patch.object(user, key, vars(changed)[key]))
        yield


MUTANTS: tuple[Mutant, ...] = (
    # 2 % too strong
    Mutant("bound", "return Bound(max(1, cycles), f", "return Bound(max(1, cycles * 51 // 50), f", "single"),
    Mutant(
        "bound",
        "cycles = bisect_unrefuted(lambda t: aggregate.refute(t) is not None, bound",
        "cycles = bisect_unrefuted(lambda t: aggregate.refute(t * 50 // 51) is not None, bound",
        "single",
    ),
    Mutant("aggregate", "if int(cost) > worth else", "if int(cost) * 51 > worth * 50 else", "aggregate"),
    Mutant(
        "aggregate",
        "device.dram_bytes_per_s * cycles //",
        "device.dram_bytes_per_s * cycles * 98 // 100 //",
        "aggregate",
    ),
    Mutant("cases", ".refute(self.cycles) is not None", ".refute(self.cycles * 50 // 51) is not None", "cases"),
    Mutant("packing", "<= device.capacities[r])", "<= device.capacities[r] * 98 // 100)", "packing"),
    Mutant("packing", ">= sand[r])", ">= sand[r] * 51 // 50 + 1)", "packing"),
    Mutant(
        "packing",
        "usable = (flat.cycles[rows] <= cycles)",
        "usable = (flat.cycles[rows] * 51 // 50 <= cycles)",
        "packing",
    ),
    Mutant(
        "flat",
        "    limits = np.zeros((len(flat.parts), 4), dtype=np.int64)\n    for device in instance.devices:\n        p =",
        "    limits = np.zeros((len(flat.parts), 4), dtype=np.int64)\n"
        "    cycles = cycles * 98 // 100\n    for device in instance.devices:\n        p =",
        "packing",
    ),
    Mutant("neighbourhood", "<= device.capacities[r])", "<= device.capacities[r] * 98 // 100)", "neighbourhood"),
    Mutant(
        "neighbourhood",
        "device.word_bits_per_s * cycles //",
        "device.word_bits_per_s * cycles * 98 // 100 //",
        "neighbourhood",
    ),
    Mutant(
        "window", "options = window.table.at(cycles)", "options = window.table.at(cycles * 50 // 51)", "window, solver"
    ),
    Mutant(
        "model",
        "return capacity_per_s * self.options.cycles_per_frame //",
        "return capacity_per_s * self.options.cycles_per_frame * 98 // 100 //",
        "exact",
    ),
    Mutant("model", "<= getattr(device, resource))", "<= getattr(device, resource) * 98 // 100)", "exact"),
    Mutant(
        "model",
        "device.word_bits_per_s * model.options.cycles_per_frame * scale //",
        "device.word_bits_per_s * model.options.cycles_per_frame * scale * 98 // 100 //",
        "exact",
    ),
    Mutant(
        "descent", 'Bound(cycles + 1, f"the exact model', 'Bound(cycles * 51 // 50 + 1, f"the exact model', "search"
    ),
    Mutant(
        "literal",
        "device.word_bits_per_s * cycles * scale //",
        "device.word_bits_per_s * cycles * scale * 98 // 100 //",
        "literal",
    ),
    Mutant("literal", "model.add(used + port <= limit)", "model.add((used + port) * 51 <= limit * 50)", "literal"),
    Mutant("encode", "rate * cycles]", "rate * cycles * 98 // 100]", "packing|neighbourhood|cases"),
    # an expired budget counts as a refutation
    Mutant("window", "return answer is Answer.INFEASIBLE", "return answer is not Answer.FEASIBLE", "window, no answer"),
    Mutant(
        "window",
        "if self.seconds_left <= 0:\n            return False",
        "if self.seconds_left <= 0:\n            return True",
        "window, nothing left",
    ),
    Mutant(
        "neighbourhood",
        "if status != cp_model.INFEASIBLE:",
        "if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):",
        "neighbourhood, no answer",
    ),
    Mutant(
        "neighbourhood",
        "if self.seconds_left <= 0:\n                return False",
        "if self.seconds_left <= 0:\n                return True",
        "neighbourhood, nothing left",
    ),
    Mutant(
        "packing",
        "[1] == cp_model.INFEASIBLE)",
        "[1] in (cp_model.INFEASIBLE, cp_model.UNKNOWN))",
        "packing, no answer",
    ),
    Mutant(
        "model",
        "if status == cp_model.INFEASIBLE:\n",
        "if status in (cp_model.INFEASIBLE, cp_model.UNKNOWN):\n",
        "exact, no answer",
    ),
    Mutant(
        "descent",
        "if answer is Answer.INFEASIBLE:\n            self.raise",
        "if assignment is None:\n            self.raise",
        "exact, no answer",
    ),
    Mutant(
        "search",
        "    if answer is Answer.INFEASIBLE:\n        raise _infeasible",
        "    if answer is not Answer.FEASIBLE:\n        raise _infeasible",
        "fast, no answer",
    ),
    Mutant(
        "literal",
        "return (Answer.INFEASIBLE if status == cp_model.INFEASIBLE else Answer.UNKNOWN), None",
        "return Answer.INFEASIBLE, None",
        "literal, no answer",
    ),
    Mutant(
        "literal",
        "        if answer is Answer.INFEASIBLE:\n            refuted",
        "        if assignment is None:\n            refuted",
        "literal, no answer",
    ),
    Mutant("cases", "self.left > 0 and self", "self.left <= 0 or self", "cases, few"),
    # one too many, one too few
    Mutant("bound", "    return low + 1\n\n\ndef demand_at", "    return low + 2\n\n\ndef demand_at", "steps"),
    Mutant("bound", "            low = middle + 1\n", "            low = middle + 2\n", "steps"),
    Mutant("bound", "probe + 1, step * 4", "probe + 2, step * 4", "steps"),
    Mutant("bound", "c.dsp > device.dsp or", "c.dsp >= device.dsp or", "single"),
    Mutant("bound", "c.m20k > device.m20k or", "c.m20k >= device.m20k or", "single"),
    Mutant("bound", "c.alm > device.alm:", "c.alm >= device.alm:", "single"),
    Mutant("bound", "setdefault(device.shape, n)", "setdefault(device.part, n)", "single"),
    Mutant("aggregate", "costs[row, r] <= limits[p, r]", "costs[row, r] < limits[p, r]", "aggregate"),
    Mutant("aggregate", "if cycles[row] > T or (sweep == 1", "if cycles[row] >= T or (sweep == 1", "aggregate"),
    Mutant("aggregate", "if int(cost) > worth else", "if int(cost) >= worth else", "aggregate"),
    Mutant("cases", "in pinned else device.shape", "in pinned else device.part", "cases"),
    Mutant("cases", "return all(\n", "return any(\n", "cases"),
    Mutant("packing", "usable = (flat.cycles[rows] <= cycles)", "usable = (flat.cycles[rows] < cycles)", "packing"),
    Mutant("packing", "(flat.costs[rows] <= limits[p])", "(flat.costs[rows] < limits[p])", "packing"),
    Mutant("packing", "<= device.capacities[r])", "< device.capacities[r])", "packing"),
    Mutant("packing", "earlier = latest.get(device.shape)", "earlier = n - 1 if n else None", "packing"),
    Mutant(
        "neighbourhood",
        "if device.shape in seen:\n                continue\n            seen.add(device.shape)",
        "if device.part in seen:\n                continue\n            seen.add(device.part)",
        "neighbourhood",
    ),
    Mutant("neighbourhood", "<= device.capacities[r])", "< device.capacities[r])", "neighbourhood"),
    Mutant("neighbourhood", "+ int(bits)", "+ int(bits) + 1", "neighbourhood"),
    Mutant("neighbourhood", "self.promise.get(head, 0) >= cycles", "self.promise.get(head, 0) != 0", "neighbourhood"),
    Mutant("window", "count[sort] <= len(items)", "count[sort] < len(items)", "window, solver"),
    Mutant("window", "grounded=False):\n        model", "grounded=True):\n        model", "window, solver"),
    Mutant("model", "groups.setdefault(instance.sorts[n], [])", "groups.setdefault(device.part, [])", "window, solver"),
    Mutant(
        "model",
        "        if device.name not in pinned:\n            groups",
        "        if True:\n            groups",
        "search",
    ),
    Mutant("descent", 'Bound(cycles + 1, f"the exact model', 'Bound(cycles + 2, f"the exact model', "exact, below"),
    Mutant("descent", 'Bound(cycles, f"{basis()}: infeasible', 'Bound(cycles + 1, f"{basis()}: infeasible', "search"),
    Mutant("descent", 'Bound(cycles, f"{basis}: infeasible', 'Bound(cycles + 1, f"{basis}: infeasible', "search"),
    Mutant("descent", "if bound.cycles_per_frame > self.bound", "if bound.cycles_per_frame != self.bound", "end"),
    Mutant("descent", "if cycles < self.best_cycles:", "if cycles + 1 < self.best_cycles:", "end"),
    Mutant("descent", "above <= Fraction(self.options.gap) * self", "above < Fraction(self.options.gap) * self", "end"),
    Mutant(
        "descent", "above <= Fraction(self.options.gap) * self", "above - 1 <= Fraction(self.options.gap) * self", "end"
    ),
    Mutant(
        "plan",
        "return -int(-(Fraction(demand) * clock_hz) // capacity_per_s)",
        "return int((Fraction(demand) * clock_hz) // capacity_per_s)",
        "search",
    ),
    Mutant(
        "options",
        "usable = bisect_right(sorted_cycles, cycles)",
        "usable = bisect_right(sorted_cycles, cycles - 1)",
        "exact",
    ),
)


def wrong(mutant: Mutant, known: Known) -> str:
    """What the mutant's questions find at an instance; for the mutant that is in place."""
    for question in mutant.question.split("|"):
        try:
            found = QUESTIONS[question](known)
        except (AssertionError, DagtrainError, ArithmeticError, LookupError, RuntimeError) as error:
            found = f"{type(error).__name__}: {error}"
        if found:
            return found
    return ""


def found_at(mutant: Mutant, instances: Iterable[Known]) -> int | None:
    """The seed of the first instance at which a mutant is found; None if none finds it."""
    with mutated(mutant):
        return next((known.problem.seed for known in instances if wrong(mutant, known)), None)


def main() -> None:
    """Write where every mutant is found."""
    found = {mutant.name: found_at(mutant, stored()) for mutant in MUTANTS}
    STORE.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    alive = [name for name, seed in found.items() if seed is None]
    print(f"{len(found) - len(alive)} of {len(found)} mutants found" + "".join(f"\nalive: {name}" for name in alive))


if __name__ == "__main__":
    main()
