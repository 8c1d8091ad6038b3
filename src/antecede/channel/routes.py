"""Routes, as one server sees them: the first hop to each other server, and the next hops of a letter.

The domains form a forest, so there is only one route to each server. A router never sends a letter back into the domain
from which the letter came. Destinations in that direction get the letter through other members of that domain.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from antecede.channel.consumer import MessageConsumer
from antecede.channel.letters import Letter, source_of
from antecede.errors import NoRouteError, UnknownAgentError, UsageError, similar
from antecede.topology import Topology

# Addresses: the server of each agent and client, and clear errors for addresses that do not exist.
#
# An agent of the topology file has a plain name as its address. A client, or an agent that was created at run time, has
# an address ``name@server``. This address never changes, even if its server is removed. In that case, the topology file
# names another server, which has the addresses of the removed server from then on.


class Addresses:
    """The known addresses in one topology, and the server of each address."""

    def __init__(self, homes: dict[str, str], moved: dict[str, str], servers: Iterable[str], objects: set[str]) -> None:
        """``homes``: the server of each agent of the topology. ``moved``: for each removed server, the server that has
        its addresses now. ``objects``: the replicated objects that can be called on this server."""
        self.homes = homes
        self._moved = moved
        self._servers = {*servers, *moved}
        self._objects = objects

    def extended(self, homes: dict[str, str], moved: dict[str, str], servers: Iterable[str]) -> "Addresses":
        """Return a copy that also has the addresses of another topology. If the other topology removes a server, the
        removed server keeps its addresses in the copy, because the change to the other topology may be abandoned."""
        more = {server: successor for server, successor in moved.items() if server not in self._servers}
        return Addresses(homes | self.homes, more | self._moved, {*self._servers, *servers}, self._objects)

    def home(self, address: str) -> str:
        """Return the server of an agent or a client. Raise an error if the address is unknown."""
        server = self.homes.get(address)
        if server is None:
            if address.partition("@")[0].removesuffix("()") in self._objects:
                raise UsageError(
                    f"{address} is a replicated object: call one of its operations, and name no other destination"
                )
            server = address.rpartition("@")[2]
            if "@" not in address or server not in self._servers:
                raise UnknownAgentError(self._unknown(address))
            server = self._moved.get(server, server)
        return server

    def origin(self, sender: str) -> str:
        """Return the server to which a sender's address belongs. The sender need not exist."""
        home = self.homes.get(sender) or sender.rpartition("@")[2]
        return self._moved.get(home, home)

    def plain(self, address: str) -> str:
        """Return an address in the form that letters contain. For an agent of the topology, this form is the name
        without a server. Any other address is returned unchanged. Raise an error if the address combines the name of an
        agent of the topology with a wrong server."""
        name, at, server = address.rpartition("@")
        home = self.homes.get(name) if at else None
        if home is None:
            return address
        if home != server:
            raise UnknownAgentError(f"unknown agent {address!r}: {name} lives on {home}")
        return name

    def _unknown(self, address: str) -> str:
        """Return the reason why a letter cannot be sent to this address, and suggest a similar name."""
        suggestion = similar(address[:_name_chars].partition("@")[0], islice(self.homes, _compared_max))
        return f"unknown agent {address!r}: neither in the topology nor name@server with a known server{suggestion}"

    def no_object(self, name: str) -> str:
        """Return the reason why no object of this name can be called on this server, and suggest a similar name."""
        if name in self.homes:
            return f"{name} is an agent, not a replicated object: send it a notification"
        suggestion = similar(name[:_name_chars], islice(self._objects, _compared_max))
        return f"unknown object {name!r}: no domain of this server has it{suggestion}"


_name_chars = 64
_compared_max = 1_000
"""The maximum number of known names with which an unknown name is compared, to suggest a similar one."""


Hops = tuple[tuple[str, tuple[str, ...]], ...]
Way = tuple[tuple[str, ...], Hops, str]
"""The next part of a letter's route, seen from one server. It has three values. (1) The agents on this server that get
the letter now. (2) Each next domain, and the members of this domain that get the letter. (3) The domain with a total
order through which the letter comes back to this server. This value is empty if the letter does not come back."""


def way_of(
    me: str,
    from_domain: str,
    to: tuple[str, ...],
    home: Callable[[str], str],
    first: Mapping[str, tuple[str, str]],
    total: Mapping[str, bool],
) -> Way:
    """Return the next part of a letter's route, seen from server ``me``. ``from_domain``: the domain that brought the
    letter, or an empty string if the letter was sent on this server. ``to``: its destinations. ``home``: a function
    that returns the server of an address. ``first``: the result of :func:`first_hops`. ``total``: for each domain,
    whether its order is total. Raise NoRouteError if a destination cannot be reached."""
    local: list[str] = []
    onward: dict[str, list[str]] = {}
    for agent in dict.fromkeys(to):
        server = home(agent)
        if server == me:
            local.append(agent)
            continue
        if server not in first:
            raise NoRouteError(f"no route from {me} to {agent} on {server}: no chain of domains connects these servers")
        domain, member = first[server]
        if domain != from_domain:
            members = onward.setdefault(domain, [])
            if member not in members:
                members.append(member)
    returns_by = ""
    if not from_domain and local:
        returns_by = next((domain for domain in onward if total.get(domain)), "")
        if returns_by:
            # Further domains get it when it is back, as they do for any other member.
            onward = {returns_by: [*onward[returns_by], me]}
            local = []
    hops = tuple((domain, tuple(sorted(members))) for domain, members in onward.items())
    return tuple(local), hops, returns_by


def first_hops(topology: Topology, me: str) -> dict[str, tuple[str, str]]:
    """Return the first hop of the route from server ``me`` to each server that ``me`` can reach. A hop is a domain, and
    the member of this domain that gets the letters."""
    before = topology.tree(me)
    first: dict[str, tuple[str, str]] = {}
    for server in before:
        at = server
        while before[at][1] != me:
            at = before[at][1]
        first[server] = (before[at][0], at)
    return first


# A check that finds letters with a forged sender.
#
# A server gets letters from the other members of its domains. A member may bring a letter only if the sender of the
# letter is *behind* this member: the sender's server is this member, or the route from the sender's server to here
# passes through this member. The domains form a forest, so there is only one route from a server to another. A letter
# that does not come on this route is forged.


class Senders:
    """Checks the letters that members of domains bring to one server, and remembers from which senders each member may
    bring letters."""

    def __init__(self, me: str, addresses: Addresses, first: dict[str, tuple[str, str]]) -> None:
        """``first``: for each other server, the domain and the member of the first hop on the route to that server."""
        self._me = me
        self._addresses = addresses
        self._first = first
        self._behind: dict[tuple[str, int], set[str]] = {}
        """For each member, by domain and number: the known senders whose letters this member may bring."""

    def permitted(
        self, consumer: MessageConsumer, source: int, letters: list[Letter], faults: list[tuple[str, str, str]]
    ) -> list[Letter]:
        """Return the letters that member ``source`` of the consumer's domain may bring. For each other letter, add an
        error to ``faults``."""
        known = self._behind.get((consumer.domain, source), _nothing)
        if len(letters) == 1:
            if letters[0].source in known:
                return letters
        elif known.issuperset(map(source_of, letters)):
            return letters
        return self._from_behind(consumer, source, letters, faults)

    def _from_behind(
        self, consumer: MessageConsumer, source: int, letters: list[Letter], faults: list[tuple[str, str, str]]
    ) -> list[Letter]:
        """Do the work of :meth:`permitted` if at least one sender is not known yet: check the sender of every letter.

        In some domains, the members relay messages for each other. There, a message can come from any member, even if
        this server itself sent the message. So the check is weaker in these domains: every member may bring letters
        from senders on this server, and from all senders that this server reaches through the domain.
        """
        domain = consumer.domain
        relays, member = consumer.order.relays, consumer.members[source]
        known = self._behind.setdefault((domain, source), set())
        if len(known) > _senders_max:
            known.clear()
        kept: list[Letter] = []
        for letter in letters:
            sender = letter.source
            home = self._addresses.origin(sender)
            first = self._first.get(home, ("", ""))
            behind = (first[0] == domain or home == self._me) if relays else first == (domain, member)
            if behind:
                known.add(sender)
                kept.append(letter)
            else:
                reason = f"letter of {sender[:_senders_name_chars]} from {member}: {FORGED}"
                faults.append((domain, "" if relays else member, reason))
        return kept


_nothing: frozenset[str] = frozenset()
FORGED = "the route from its sender does not lead through this member"
_senders_name_chars = 64
_senders_max = 65_536
"""The number of senders that are remembered for each member. If there are more, all senders of the member are
forgotten, and are checked again with their next letters."""
