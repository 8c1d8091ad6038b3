"""Hellos of servers that tests make themselves."""

from antecede.live.application import plan_of
from antecede.server import Organisation
from antecede.topology import TopologyFile
from antecede.wire import LinkHello, ServerHello


def server_hello(
    file: TopologyFile, server: str, to: str, incarnation: int, sent: int = 0, life: int = 0
) -> ServerHello:
    """Return the hello of a server to another server, with which it shares domain A. ``sent``: the number of frames
    that it has sent to the other server."""
    digest = Organisation().digest("A", plan_of(file))
    link = LinkHello("A", incarnation, 0, sent, 0, 0, life, 0, digest)
    return ServerHello(file.epoch, server, to, "", [link])
