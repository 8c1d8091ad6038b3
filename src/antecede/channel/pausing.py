"""Letters that wait at this server while the topology changes.

The *region* of a change is the set of domains that pause. During a change, letters that were already stamped in the
region continue until they are in their mailboxes. Letters that would *enter* the region wait: at the server of their
sender, or at the router through which they come from outside. They wait without a stamp, in the sequence in which they
came, and are stamped in this sequence after the change. This keeps causal order for the following reason. If two
waiting letters go to the same server and one of them depends on the other, then both letters wait at one server,
because the domains form a forest (a graph without cycles). This server stamps them in the right sequence.
``docs/design/change.md`` has the proof.

If only some destinations of a letter are reached through the region, the other destinations get the letter immediately.
If an agent of this server will move to another server, letters from this server to the agent wait, too.
"""

from collections.abc import Callable, Iterable

import msgspec

from antecede.channel.letters import Letter


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """A letter that waits until a change of the topology ends."""

    letter: Letter
    to: tuple[str, ...]
    """The destinations to which the letter must still be sent."""
    returns: bool = False
    """True if the letter must go through a domain with a total order, and then comes back to this server. Later letters
    on this server wait for the return of such a letter."""


class Pausing:
    """The letters that wait at this server during a change of the topology, and the reasons to wait: domains that
    pause, and agents that move."""

    def __init__(
        self, domains: Iterable[str] = (), agents: Iterable[str] = (), waiting: Iterable[Waiting] = ()
    ) -> None:
        self.domains = set(domains)
        """The domains that pause. Letters from outside must not enter them."""
        self.agents = set(agents)
        """Agents of this server that will move to another server."""
        self.waiting = list(waiting)

    def part(
        self,
        letter: Letter,
        local: tuple[str, ...],
        onward: tuple[tuple[str, tuple[str, ...]], ...],
        from_domain: str,
        domain_of: Callable[[str], str],
    ) -> tuple[tuple[str, ...], tuple[tuple[str, tuple[str, ...]], ...]]:
        """Split the destinations of a letter. Return the agents in ``local`` and the domains in ``onward`` that get the
        letter immediately. If some destinations must wait until the change ends, add the letter to ``waiting`` with
        these destinations. ``from_domain``: the domain that brought the letter, or an empty string if the letter was
        sent on this server. ``domain_of``: a function that returns the next domain on the way to an address."""
        if from_domain in self.domains:
            return local, onward
        closed = {domain for domain, _ in onward if domain in self.domains}
        stays = [agent for agent in local if agent in self.agents] if not from_domain else []
        if not closed and not stays:
            return local, onward
        here = set(local)
        behind = [one for one in dict.fromkeys(letter.to) if one not in here and domain_of(one) in closed]
        self.waiting.append(Waiting(letter, (*stays, *behind)))
        return (
            tuple(agent for agent in local if agent not in stays),
            tuple(hop for hop in onward if hop[0] not in closed),
        )
