"""Rates as people read them: with the digits that are known."""

from __future__ import annotations

# digits of a rate that follows from integers of cycles at a nominal clock, and of one that a model of whole batches
# gives within 2 %
EXACT_DIGITS, MODEL_DIGITS = 4, 3


def rate_text(per_second: float, digits: int = EXACT_DIGITS) -> str:
    """A rate to so many significant digits, thousands set apart: 16 900, 62.4, 0.031."""
    if not per_second:
        return "0"
    rounded = float(f"{per_second:.{digits}g}")
    decimals = max(0, digits - 1 - int(f"{rounded:e}".split("e")[1]))
    return f"{rounded:,.{decimals}f}"


def training_text(per_second: float) -> str:
    """A rate of training in whole batches."""
    return rate_text(per_second, MODEL_DIGITS)


def short_count(count: int) -> str:
    """A count to three digits with its unit: 512, 34.6k, 1.81G."""
    size, unit = float(count), ""
    for unit in ("", "k", "M", "G", "T", "P"):
        if size < 999.5 or unit == "P":
            break
        size /= 1000
    return f"{count}" if not unit else f"{size:.{max(0, 2 - len(str(int(size))) + 1)}f}{unit}"
