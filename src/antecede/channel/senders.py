"""A check that finds letters with a forged sender.

A server gets letters from the other members of its domains. A member may bring a letter only if the sender of the
letter is *behind* this member: the sender's server is this member, or the route from the sender's server to here passes
through this member. The domains form a forest, so there is only one route from a server to another. A letter that does
not come on this route is forged.
"""

from antecede.channel.addresses import Addresses
from antecede.channel.consumer import MessageConsumer
from antecede.channel.letters import Letter, source_of


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
                reason = f"letter of {sender[:_name_chars]} from {member}: {FORGED}"
                faults.append((domain, "" if relays else member, reason))
        return kept


_nothing: frozenset[str] = frozenset()
FORGED = "the route from its sender does not lead through this member"
_name_chars = 64
_senders_max = 65_536
"""The number of senders that are remembered for each member. If there are more, all senders of the member are
forgotten, and are checked again with their next letters."""
