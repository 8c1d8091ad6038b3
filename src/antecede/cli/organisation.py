"""Functions by which commands load a topology: they read its file, and check it with the guarantees of its orders.

The package ``topology`` does no I/O and does not know the orders; this module connects them.
"""

from antecede import limits
from antecede.documents import read_text
from antecede.errors import OrderError, TopologyError
from antecede.orders import parse
from antecede.topology import Check, OrderFacts, TopologyFile, check, parse_topology


def read_topology(path: str) -> TopologyFile:
    """Return the topology in a file."""
    return parse_topology(read_text(path, limits.topology_bytes_max, TopologyError), path)


def check_topology(file: TopologyFile) -> Check:
    """Check a topology with the guarantees of its orders; an unknown order is an error of the file."""
    for domain in file.domains:
        try:
            parse(domain.order).create(0, len(domain.servers))
        except OrderError as error:
            raise TopologyError(f"{file.name}: domain {domain.name}: {error}") from None
    return check(file, order_facts)


def order_facts(text: str) -> OrderFacts:
    """Return the guarantees and needs of an order. ``text``: its name and options, as in a topology file."""
    spec = parse(text)
    return OrderFacts(spec.guarantees(), spec.kind.needs)


def usable_topology(path: str) -> TopologyFile:
    """Return the topology in a file, or raise a :class:`TopologyError` that says why it must not be used."""
    file = read_topology(path)
    refusals = check_topology(file).refusals
    if refusals:
        raise TopologyError(f"{path}: {refusals[0]}")
    return file
