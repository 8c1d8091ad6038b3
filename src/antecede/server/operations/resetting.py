"""The operator's part of a reset of a domain: check that there is a reason, and choose the next generation
(number of resets).

A reset is for a domain in which a server has lost data. The reset sends all unacknowledged messages again, so
some messages are received twice. Therefore a reset needs a reason. There are two possible reasons: a link of
the domain is stopped, or some members have reset the domain more often than others. (The second case occurs if the data
of one member was replaced by an old copy, or if an earlier reset was interrupted.) The operator's program must read the
states of all members, because the stopped link may be between any two of them.
"""

from collections.abc import Mapping

import msgspec

from antecede.errors import UsageError


class _Link(msgspec.Struct, frozen=True):
    connected: bool


class _Domain(msgspec.Struct, frozen=True):
    generation: int
    links: dict[str, _Link]


class _Stopped(msgspec.Struct, frozen=True):
    domain: str


class _Status(msgspec.Struct, frozen=True):
    """The fields that ``next_generation`` reads in a server's answer to ``status``."""

    domains: dict[str, _Domain]
    stopped: list[_Stopped]


def next_generation(domain: str, statuses: Mapping[str, object]) -> int:
    """Return the generation (number of resets) for the next reset of a domain. It is the largest present generation of
    all members, plus one. Raise an error if there is no reason for a reset. ``statuses``: the answers of all members to
    ``status``."""
    found = {server: _read(server, domain, status) for server, status in statuses.items()}
    generations = {status.domains[domain].generation for status in found.values()}
    stopped = any(one.domain == domain for status in found.values() for one in status.stopped)
    if not stopped and len(generations) == 1:
        apart = [
            f"{server} with {peer}"
            for server, status in found.items()
            for peer, link in status.domains[domain].links.items()
            if server < peer and not link.connected
        ]
        hint = f"; not connected: {', '.join(apart)} (lost data is noticed when servers connect)" if apart else ""
        raise UsageError(f"domain {domain} must not be reset: none of its links is stopped{hint}")
    return max(generations) + 1


def _read(server: str, domain: str, status: object) -> _Status:
    try:
        read = msgspec.convert(status, _Status)
    except msgspec.ValidationError as error:
        raise UsageError(f"unreadable status of server {server}: {error}") from None
    if domain not in read.domains:
        raise UsageError(f"server {server} is not in domain {domain}")
    return read
