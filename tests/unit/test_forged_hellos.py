"""What a server's hello claims about its topology is compared before any link is looked at."""

from collections.abc import Callable

import msgspec
import pytest

from antecede.access import Authoriser
from antecede.live.application import plan_of
from antecede.live.logs import ServerLog
from antecede.server import AgentServer, Guard, Peering
from antecede.topology import parse_topology
from antecede.wire import LinkHello, ServerHello

_file = parse_topology(
    '[servers]\ns1 = "tcp://127.0.0.1:1"\ns2 = "tcp://127.0.0.1:2"\ns3 = "tcp://127.0.0.1:3"\n'
    '[domains]\nA = { servers = ["s1", "s2"] }\nB = { servers = ["s2", "s3"] }\n'
)


def _peering(name: str) -> Peering:
    machine = AgentServer(name, plan_of(_file), int(name[1:]))
    machine.begin(_file.epoch)
    log = ServerLog(name)
    return Peering(machine, _file.epoch, "", Guard(Authoriser(), None, None, log), log, lambda: 0.5)


def _links(change: Callable[[LinkHello], list[LinkHello]]) -> Callable[[ServerHello], ServerHello]:
    return lambda hello: msgspec.structs.replace(hello, links=change(hello.links[0]))


def _with(**fields: object) -> Callable[[LinkHello], LinkHello]:
    return lambda link: msgspec.structs.replace(link, **fields)


@pytest.mark.parametrize("same_epoch", [True, False])
@pytest.mark.parametrize(
    ("forge", "codes"),
    [
        # The topologies as a whole may differ, if the shared domains do not.
        (lambda hello: hello, ("", "")),
        (_links(lambda link: [_with(digest="0" * 16)(link)]), ("other-topology", "other-topology")),
        (_links(lambda link: [_with(digest="")(link)]), ("other-topology", "other-topology")),
        (_links(lambda link: []), ("other-links", "other-topology")),
        (_links(lambda link: [_with(domain="B")(link)]), ("other-links", "other-topology")),
        (_links(lambda link: [_with(domain="no such domain")(link)]), ("other-links", "other-topology")),
        (_links(lambda link: [link, _with(domain="B")(link)]), ("other-links", "other-topology")),
        (_links(lambda link: [_with(digest="forged", sent=7)(link), link]), ("bad-hello", "bad-hello")),
        (_links(lambda link: [link, link]), ("bad-hello", "bad-hello")),
        (_links(lambda link: [_with(generation=3)(link)]), ("other-generation", "other-generation")),
        (
            lambda hello: msgspec.structs.replace(hello, epoch=f"{hello.epoch}~restored"),
            ("other-system", "other-system"),
        ),
        # A server that is behind, or ahead, learns or teaches first; one that cannot is refused.
        (lambda hello: msgspec.structs.replace(hello, change=3), ("other-topology", "other-topology")),
        (lambda hello: msgspec.structs.replace(hello, server="s3"), ("other-links", "other-topology")),
        (lambda hello: msgspec.structs.replace(hello, server="s9"), ("unknown-server", "unknown-server")),
        (lambda hello: msgspec.structs.replace(hello, to="s1"), ("wrong-server", "wrong-server")),
    ],
)
def test_a_hello_is_refused_by_code(
    forge: Callable[[ServerHello], ServerHello], codes: tuple[str, str], same_epoch: bool
) -> None:
    one, two = _peering("s1"), _peering("s2")
    hello = one.hello(one.peers["s2"])
    if not same_epoch:
        hello = msgspec.structs.replace(hello, epoch="f" * 16)
    refusal = two.refusal(forge(hello))
    assert ("" if refusal is None else refusal.code) == codes[not same_epoch]


def test_a_restored_system_teaches_nothing() -> None:
    """It has the same names, and perhaps the same keys."""
    one, two = _peering("s1"), _peering("s2")
    ahead = msgspec.structs.replace(one.hello(one.peers["s2"]), change=3, system="theirs")
    assert two.lessons.are_due_from(ahead)
    assert not two.lessons.are_due_from(msgspec.structs.replace(ahead, epoch=f"{ahead.epoch}~restored"))
