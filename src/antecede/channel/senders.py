"""Senders: a member of a domain may bring only letters whose senders are behind it.

A sender is *behind* a member if it lives on the member's server, or if its letters come through that server. In a
forest there is one way from a server to another, so a letter that does not come by this way is forged.
"""

from antecede.channel.addresses import Addresses
from antecede.channel.consumer import MessageConsumer
from antecede.channel.letters import Letter, source_of


class Senders:
    """The senders behind each member, as one server sees them."""

    def __init__(self, me: str, addresses: Addresses, first: dict[str, tuple[str, str]]) -> None:
        """``first``: for each other server the domain and the member on the way to it."""
        self._me = me
        self._addresses = addresses
        self._first = first
        self._behind: dict[tuple[str, int], set[str]] = {}
        """Senders that are known to live behind a member of a domain."""

    def genuine(
        self, consumer: MessageConsumer, source: int, letters: list[Letter], faults: list[tuple[str, str, str]]
    ) -> list[Letter]:
        """Return the letters that member ``source`` of the domain may bring; add the others to ``faults``."""
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
        """Return the letters whose senders live behind this member of the domain: on its server, or on one whose
        letters come through it. If the domain's order relays messages, each member may bring letters of all senders on
        this server, and of all senders whose letters come through the domain. This rule also holds after a reset of the
        domain."""
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
FORGED = "its sender does not live behind this member"
_name_chars = 64
_senders_max = 65_536
"""How many senders are remembered for each peer; if there are more, all are forgotten and found again."""
