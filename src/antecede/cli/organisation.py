"""Functions that load a topology for a command: they read the topology file, and check whether the topology can be
used.

The check needs the guarantees of the orders. The package ``topology`` does not know the orders and reads no files, so
this module reads the file and passes the guarantees to that package.
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
    """Check whether a topology can be used. The result depends on what the orders of its domains guarantee and need.
    Raise :class:`TopologyError` if an order is unknown or its options are wrong."""
    for domain in file.domains:
        try:
            parse(domain.order).create(0, len(domain.servers))
        except OrderError as error:
            raise TopologyError(f"{file.name}: domain {domain.name}: {error}") from None
    return check(file, order_facts)


def order_facts(text: str) -> OrderFacts:
    """Return the guarantees and needs of an order. ``text``: the order's name and options, as in a topology file."""
    spec = parse(text)
    return OrderFacts(spec.guarantees(), spec.kind.needs)


def usable_topology(path: str) -> TopologyFile:
    """Return the topology in a file. If the topology must not be used, raise :class:`TopologyError` with the reason."""
    file = read_topology(path)
    refusals = check_topology(file).refusals
    if refusals:
        raise TopologyError(f"{path}: {refusals[0]}")
    return file
