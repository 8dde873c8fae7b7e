"""Functions compiled by numba that neither make nor drop an array.

Its arrays count their references at every call and view, which is most of the time of code as fine-grained as annealing
or a recurrence over frames; what makes no arrays goes without.  Compiled code is kept as long as the file of its
function is the same: numba sees no change of what a function takes in from another file, nor of what stands here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])
_KERNEL: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False, "no_cfunc_wrapper": True}
# without a way in from Python, which is half of what a function takes to compile that is given dozens of arrays
_INNER = _KERNEL | {"no_cpython_wrapper": True}


def kernel(function: Function) -> Function:
    """One that Python calls."""
    return cast(Function, njit(**_KERNEL)(function))


def inner(function: Function) -> Function:
    """One that compiled functions of the same file call alone."""
    return cast(Function, njit(**_INNER)(function))


def inlined(function: Function) -> Function:
    """The same as part of those that call it."""
    return cast(Function, njit(**_INNER, forceinline=True)(function))


def view(function: Function) -> Function:
    """One that gives a part of an array, which only what stands in the place of its call can."""
    return cast(Function, njit(**_INNER, inline="always")(function))
