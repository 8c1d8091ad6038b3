"""Ordering protocols by name.

The project's own orders are listed here. Other packages can add orders through the entry-point group
``antecede.orders``: ``name = "package.module:Class"``, where the class is a subclass of
:class:`antecede.orders.contract.Order`.

An order is written ``NAME`` or ``NAME:option=value,…`` on the command line, and ``order NAME option=value …`` in a
scenario. An :class:`OrderSpec` contains the class and the options of an order, and creates the order of each member.
"""

from importlib import import_module
from typing import TYPE_CHECKING

import msgspec

from antecede import limits
from antecede.errors import OrderError, UnknownOrderError, similar
from antecede.orders.buffer import ACK, Buffer
from antecede.orders.contract import Option, Order
from antecede.orders.coordinator import Coordinator
from antecede.orders.direct import Direct
from antecede.orders.encoding import Reader, Writer
from antecede.orders.fifo import Fifo, NoOrder
from antecede.orders.lamport import RELEASE, Lamport
from antecede.orders.matrix import Matrix
from antecede.orders.objects import CLOCK, WOUND, Objects
from antecede.orders.objects_rules import PLAIN, Rules, Waiting
from antecede.orders.objects_stamp import Stamp, Vector, receipt
from antecede.orders.pruned import Pruned
from antecede.orders.pruned_stamp import Control, Log, brief
from antecede.orders.relation import Relation, parse_relation
from antecede.orders.skeen import Skeen
from antecede.orders.synchronous import Synchronous
from antecede.orders.token import Token
from antecede.orders.updates import Entry, Updates

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "ACK",
    "CLOCK",
    "PLAIN",
    "RELEASE",
    "WOUND",
    "Buffer",
    "Control",
    "Coordinator",
    "Direct",
    "Entry",
    "Fifo",
    "Lamport",
    "Log",
    "Matrix",
    "NoOrder",
    "Objects",
    "Option",
    "Order",
    "OrderSpec",
    "Pruned",
    "Reader",
    "Relation",
    "Rules",
    "Skeen",
    "Stamp",
    "Synchronous",
    "Token",
    "Updates",
    "Vector",
    "Waiting",
    "Writer",
    "brief",
    "find",
    "names",
    "parse",
    "parse_relation",
    "receipt",
]

_own_orders = {
    "none": "antecede.orders.fifo:NoOrder",
    "fifo": "antecede.orders.fifo:Fifo",
    "matrix": "antecede.orders.matrix:Matrix",
    "updates": "antecede.orders.updates:Updates",
    "vector": "antecede.orders.vector:Vector",
    "pruned": "antecede.orders.pruned:Pruned",
    "direct": "antecede.orders.direct:Direct",
    "buffer": "antecede.orders.buffer:Buffer",
    "synchronous": "antecede.orders.synchronous:Synchronous",
    "coordinator": "antecede.orders.coordinator:Coordinator",
    "token": "antecede.orders.token:Token",
    "lamport": "antecede.orders.lamport:Lamport",
    "skeen": "antecede.orders.skeen:Skeen",
    "objects": "antecede.orders.objects:Objects",
}


class OrderSpec(msgspec.Struct, frozen=True):
    """The class and the options of an order; ``create`` makes the order of one member from them."""

    kind: type[Order]
    options: dict[str, object]

    @property
    def name(self) -> str:
        return self.kind.name

    def __str__(self) -> str:
        settings = ",".join(f"{name}={_written(value)}" for name, value in sorted(self.options.items()))
        return f"{self.kind.name}:{settings}" if settings else self.kind.name

    def create(self, me: int, members: int) -> Order:
        """Create the order of member ``me`` in a group of ``members`` members."""
        return self.kind(me, members, **self.options)

    def object_names(self) -> frozenset[str]:
        """Return the names of the objects that can be called in a domain with this order. This class returns no names.
        The subclass for domains with objects returns the names of these objects."""
        return frozenset()

    def guarantees(self) -> frozenset[str]:
        """Return the guarantees that the order gives with these options."""
        return self.sample().guarantees

    def sample(self) -> Order:
        """Create the order of member 0 in a group that is large enough for every member number in the options. This
        example shows whether the options are valid and what the order guarantees."""
        # A number longer than any member number need not be read: its option refuses it.
        numbers = [int(v) for v in map(str, self.options.values()) if v.isdecimal() and len(v) <= 9]
        largest = max(numbers, default=0)
        return self.create(0, min(max(2, largest + 1), limits.members_max))


def _written(value: object) -> str:
    text = str(value)
    return text.lower() if text in ("True", "False") else text


def names() -> list[str]:
    """Return the names of all orders that can be used here: the project's own, then those of installed packages."""
    return [*_own_orders, *sorted({entry.name for entry in _foreign()} - set(_own_orders))]


def find(name: str) -> type[Order]:
    """Return the class of the order with this name."""
    place = _own_orders.get(name)
    if place is not None:
        module, _, attribute = place.partition(":")
        found = getattr(import_module(module), attribute)
    else:
        foreign = [entry for entry in _foreign() if entry.name == name]
        if not foreign:
            hint = (
                similar(name, names()) or "; to use your own order, install it as an entry point: docs/guide/orders.md"
            )
            raise UnknownOrderError(f"unknown order {name!r}: expected one of {', '.join(names())}{hint}")
        try:
            found = foreign[0].load()
        except Exception as error:
            # An order of another package may fail in any way.
            raise OrderError(f"order {name!r} cannot be imported: {type(error).__name__}: {error}") from None
    if not (isinstance(found, type) and issubclass(found, Order)):
        raise OrderError(f"order {name!r} is not a subclass of antecede.orders.Order")
    return found


def parse(text: str) -> OrderSpec:
    """Parse an order as written on the command line: ``NAME`` or ``NAME:option=value,…``. An option without a value
    gets the value ``true``."""
    name, _, settings = text.partition(":")
    options: dict[str, object] = {}
    for setting in filter(None, settings.split(",")):
        option, given, value = setting.partition("=")
        options[option] = value if given else "true"
    spec = OrderSpec(find(name), options)
    spec.sample()
    return spec


def _foreign() -> "list[EntryPoint]":
    # Loaded here, because most processes use only the project's own orders.
    from importlib.metadata import entry_points

    return list(entry_points(group="antecede.orders"))
