"""The 95 % confidence interval of a mean: mean ± t · s / √k, for k values with the standard deviation s and the
quantile t of Student's distribution."""

from collections.abc import Sequence
from functools import cache
from math import atan, cos, pi, sin, sqrt
from statistics import stdev


def half_width(values: Sequence[float]) -> float | None:
    """Return half the width of the 95 % confidence interval of the mean; ``None`` for a single value."""
    if len(values) < 2:
        return None
    return student(len(values) - 1) * stdev(values) / sqrt(len(values))


@cache
def student(freedom: int) -> float:
    """Return the number t such that a value of Student's distribution with ``freedom`` degrees of freedom is between −t
    and t with a probability of 95 %. This t is the 97.5 % quantile."""
    low, high = 0.0, 20.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < 0.95 else (low, middle)
    return (low + high) / 2


def _within(t: float, freedom: int) -> float:
    """Return the probability that a value of Student's distribution is between −t and t (Abramowitz and Stegun 26.7.3
    and 26.7.4)."""
    angle = atan(t / sqrt(freedom))
    total = 0.0
    if freedom % 2:
        term = cos(angle)
        for k in range(1, freedom - 1, 2):
            total += term
            term *= cos(angle) ** 2 * (k + 1) / (k + 2)
        return 2 / pi * (angle + sin(angle) * total)
    term = 1.0
    for k in range(0, freedom - 1, 2):
        total += term
        term *= cos(angle) ** 2 * (k + 1) / (k + 2)
    return sin(angle) * total
