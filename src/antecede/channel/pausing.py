"""Letters that wait at this server while the topology changes.

The *region* of a change is the set of domains that pause. During a change, letters that were already stamped in the
region continue until they are in their mailboxes. Letters that would *enter* the region wait: at the server of their
sender, or at the router through which they come from outside. They wait unstamped, in the sequence in which they would
have been stamped, and are stamped in that sequence after the change. This keeps causal order: in a forest, if a waiting
letter follows from another one and both are on their way to the same server, they wait at the same place
(``docs/design/change.md`` has the argument).

A letter waits only for the destinations that it reaches through the region; its other destinations get it at once.
Letters to an agent that moves wait as well, if they are sent on the server that the agent leaves.
"""

from collections.abc import Callable, Iterable

import msgspec

from antecede.channel.letters import Letter


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """A letter that waits until a pause ends."""

    letter: Letter
    to: tuple[str, ...]
    """The destinations to which the letter must still be sent."""
    returns: bool = False
    """Whether it will come back through a total order, so that later letters on this server wait for it."""


class Pausing:
    """The letters that wait, and the domains and agents for which letters must wait."""

    def __init__(
        self, domains: Iterable[str] = (), agents: Iterable[str] = (), waiting: Iterable[Waiting] = ()
    ) -> None:
        self.domains = set(domains)
        """Domains that must not be entered."""
        self.agents = set(agents)
        """Agents of this server that will move."""
        self.waiting = list(waiting)

    def part(
        self,
        letter: Letter,
        local: tuple[str, ...],
        onward: tuple[tuple[str, tuple[str, ...]], ...],
        came_by: str,
        domain_of: Callable[[str], str],
    ) -> tuple[tuple[str, ...], tuple[tuple[str, tuple[str, ...]], ...]]:
        """Let a letter wait for some of its destinations; return the agents in ``local`` and the domains in ``onward``
        that get it at once. ``came_by``: the domain that brought the letter; empty: it was sent here. ``domain_of``:
        returns the next domain on the way to an address."""
        if came_by in self.domains:
            return local, onward
        closed = {domain for domain, _ in onward if domain in self.domains}
        stays = [agent for agent in local if agent in self.agents] if not came_by else []
        if not closed and not stays:
            return local, onward
        here = set(local)
        behind = [one for one in dict.fromkeys(letter.to) if one not in here and domain_of(one) in closed]
        self.waiting.append(Waiting(letter, (*stays, *behind)))
        return (
            tuple(agent for agent in local if agent not in stays),
            tuple(hop for hop in onward if hop[0] not in closed),
        )
