"""How commands get at a topology: read its file, and let the orders say what they promise.

The topology's own room does no I/O and knows no orders; here both meet it.
"""

from antecede import limits
from antecede.errors import OrderError, TopologyError
from antecede.orders import parse
from antecede.topology import Check, OrderFacts, TopologyFile, check, parse_topology


def read_topology(path: str) -> TopologyFile:
    """The topology of a file."""
    try:
        with open(path, "rb") as file:
            data = file.read(limits.topology_bytes_max + 1)
    except OSError as error:
        raise TopologyError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TopologyError(f"{path}:{line}: expected UTF-8 text") from None
    return parse_topology(text, path)


def check_topology(file: TopologyFile) -> Check:
    """Judge it by what its orders promise; an order that does not exist is an error of the file."""
    for domain in file.domains:
        try:
            parse(domain.order).create(0, len(domain.servers))
        except OrderError as error:
            raise TopologyError(f"{file.name}: domain {domain.name}: {error}") from None
    return check(file, order_facts)


def order_facts(text: str) -> OrderFacts:
    """What an order, written as in a topology file, promises and needs."""
    spec = parse(text)
    return OrderFacts(spec.guarantees(), spec.kind.needs)


def usable_topology(path: str) -> TopologyFile:
    """The topology of a file, or a :class:`TopologyError` that says why nothing may run on it."""
    file = read_topology(path)
    refusals = check_topology(file).refusals
    if refusals:
        raise TopologyError(f"{path}: {refusals[0]}")
    return file
