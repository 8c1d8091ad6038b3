"""Random draws that are the same in every version of Python: all of them use only the method ``random.Random.random``.

The standard library guarantees that ``random()`` gives the same sequence for the same seed in every version. It does
not guarantee this for any other method, so :class:`Draws` replaces those that simulated worlds use.

A distribution of times is written as a text, with all times in seconds:

* ``constant:0.1``: every draw is this time.
* ``exponential:0.1``: an exponential distribution with this mean.
* ``uniform:0.05,0.15``: a uniform distribution between the smallest and the largest time.
* ``pareto:1.5,0.03``: a Pareto distribution with this shape (a number, not a time) and this smallest time.
"""

from collections.abc import Callable, MutableSequence, Sequence
from math import isfinite, log
from random import Random
from typing import Any, Final, TypeVar

from antecede import limits
from antecede.errors import UsageError

_shape_min: Final = 0.1
"""The smallest allowed shape of a Pareto distribution. With a smaller shape, a draw could exceed the range of a
float."""

Draw = Callable[[], float]
"""A function that draws the next time, in seconds."""


T = TypeVar("T")


class Draws(Random):
    """A random generator whose draws depend only on its seed, and not on the version of Python."""

    def getrandbits(self, k: int) -> int:
        bits = 0
        for taken in range(0, k, 32):
            bits |= int(self.random() * (1 << min(32, k - taken))) << taken
        return bits

    def randbytes(self, n: int) -> bytes:
        return self.getrandbits(8 * n).to_bytes(n, "little")

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        choices = range(start) if stop is None else range(start, stop, step)
        return choices[below(self, len(choices))]

    def randint(self, a: int, b: int) -> int:
        return a + below(self, b - a + 1)

    def choice(self, seq: Any) -> Any:
        return seq[below(self, len(seq))]

    def shuffle(self, x: MutableSequence[Any]) -> None:
        for position in range(len(x) - 1):
            other = position + below(self, len(x) - position)
            x[position], x[other] = x[other], x[position]

    def sample(self, population: Sequence[T], k: int, *, counts: object = None) -> list[T]:
        items = list(population)
        self.shuffle(items)
        return items[:k]


def stream(seed: object, name: str) -> Draws:
    """Return a random generator for the purpose ``name``. Each purpose has its own generator, so that draws for one
    purpose do not change the draws for another."""
    return Draws(f"{seed}/{name}")


def below(rng: Random, bound: int) -> int:
    """Draw a whole number from 0 to ``bound`` − 1."""
    return int(rng.random() * bound)


def subset(rng: Random, items: list[int], size: int) -> int:
    """Draw ``size`` different items, and return them as a bit mask. The function changes the sequence of ``items``."""
    mask = 0
    last = len(items) - 1
    for position in range(size):
        other = position + int(rng.random() * (last - position + 1))
        items[position], items[other] = items[other], items[position]
        mask |= 1 << items[position]
    return mask


def parse_draw(text: str, rng: Random) -> Draw:
    """Return a function that draws from the distribution in ``text``, with the generator ``rng``."""
    name, _, rest = text.partition(":")
    shapes = {"constant": 1, "exponential": 1, "uniform": 2, "pareto": 2}
    expected = "constant:S, exponential:S, uniform:S,S or pareto:SHAPE,S in seconds"
    if name not in shapes:
        raise UsageError(f"unknown distribution {text!r}: expected {expected}")
    try:
        numbers = [float(part) for part in rest.split(",")]
    except ValueError:
        raise UsageError(f"bad distribution {text!r}: expected {expected}") from None
    if len(numbers) != shapes[name] or any(not isfinite(number) or number < 0 for number in numbers):
        raise UsageError(f"bad distribution {text!r}: expected {expected}")
    longest = limits.simulated_delay_seconds_max
    if max(numbers) > longest:
        raise UsageError(f"bad distribution {text!r}: expected numbers up to {longest}")
    random = rng.random
    first, second = numbers[0], numbers[-1]
    if name == "constant":
        return lambda: first
    if name == "exponential":
        return lambda: -first * log(1.0 - random())
    if name == "uniform":
        if first > second:
            raise UsageError(f"bad distribution {text!r}: expected the smaller bound first")
        return lambda: first + (second - first) * random()
    if first < _shape_min:
        raise UsageError(f"bad distribution {text!r}: expected a shape of {_shape_min} or more")
    exponent = -1.0 / first
    return lambda: float(min(second * (1.0 - random()) ** exponent, longest))
