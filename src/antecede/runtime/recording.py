"""The trace of a server's data directory, read from its log while nobody, or somebody, writes it.

The first record of a log says whose it is. A log that no longer begins with its first record was released because its
closed segments have been turned into a trace elsewhere: then the projection goes on from the place saved with that
(``after``, ``place``), and without it the directory is refused, for its rows could not be numbered.
"""

from collections.abc import Iterator
from itertools import chain

from antecede.errors import StoreError
from antecede.server.items import Began, decode_record, joined
from antecede.server.projection import Projection
from antecede.store import Files, read_records
from antecede.store.directory import read_identity
from antecede.topology import TopologyFile
from antecede.trace import Event


def project_directory(
    directory: str,
    topology: TopologyFile | None = None,
    *,
    server: str | None = None,
    after: int = 0,
    place: bytes | None = None,
    files: Files | None = None,
) -> Iterator[Event]:
    """The rows of all records after one number. ``topology`` gives the ``hop`` rows of routers; ``server`` is needed
    only where the first record is gone."""
    files = files or Files()
    identity = read_identity(files, directory)
    if identity is None:
        raise StoreError(f"{directory}: not a data directory: it has no identity")
    records = read_records(directory, after, files=files)
    first = next(records, None)
    if first is None:
        return
    if first[0] != after + 1:
        raise StoreError(f"{directory}: the log begins with record {first[0]}: expected {after + 1}")
    if server is None:
        server = _server_of(directory, first[1])
    organisation = None if topology is None else topology.organisation
    homes = {} if topology is None else {agent.name: agent.server for agent in topology.agents}
    projection = Projection(server, identity.incarnation, organisation, homes)
    if place is not None:
        projection.load(place)
    for record in joined(chain([first[1]], (record for _, record in records))):
        yield from projection.rows(record)


def _server_of(directory: str, record: bytes) -> str:
    items = decode_record(record)
    if not items or not isinstance(items[0], Began):
        raise StoreError(f"{directory}: the log does not begin as a server's log does")
    return items[0].server
