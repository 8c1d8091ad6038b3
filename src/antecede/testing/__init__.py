"""Tools to test your programs: a simulated world for agents, assertions about recorded traces, and tests of orders.

* :class:`World` runs your agents on simulated servers, with faults (:mod:`antecede.testing.world`).
* :func:`assert_causal`, :func:`assert_fifo` and :func:`assert_order` judge a recorded trace and explain a failure with
  a diagram (:mod:`antecede.testing.assertions`). The pytest plug-in uses them for its fixture.
* :func:`check_order` tests your own order, a class that decides when each message may be delivered
  (:mod:`antecede.testing.order_kit`).

Names are imported when they are used: a test that only judges a trace does not load the simulator.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_homes = {
    "NONE": "world",
    "ROUGH": "world",
    "DeadLetter": "world",
    "Faults": "world",
    "World": "world",
    "assert_causal": "assertions",
    "assert_fifo": "assertions",
    "assert_order": "assertions",
    "check_order": "order_kit",
}

if TYPE_CHECKING:
    from antecede.testing.assertions import assert_causal, assert_fifo, assert_order
    from antecede.testing.order_kit import check_order
    from antecede.testing.world import NONE, ROUGH, DeadLetter, Faults, World

__all__ = [
    "NONE",
    "ROUGH",
    "DeadLetter",
    "Faults",
    "World",
    "assert_causal",
    "assert_fifo",
    "assert_order",
    "check_order",
]


def __getattr__(name: str) -> Any:
    home = _homes.get(name)
    if home is None:
        raise AttributeError(f"module 'antecede.testing' has no attribute {name!r}")
    return getattr(import_module(f"antecede.testing.{home}"), name)
