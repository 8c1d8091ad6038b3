"""The settings of mailboxes in a topology file: quotas, and the treatment of letters that depend on a dead letter.

::

    [mailboxes]
    clients = { letters = 10000, bytes = 50000000, seconds = 86400 }     # of each client; 0: no limit
    agents = { letters = 100000 }                                        # of each agent (default: no limit)
    orders = { letters = 1000, full = "refuse" }                         # of one agent, or of one client name@server

If a mailbox exceeds its quota, its oldest letters **expire**: they become dead letters, and the reason is
recorded. With ``full = "refuse"``, a full mailbox refuses letters from clients of its own server. Letters from agents
and from other servers cannot be refused; they make the oldest letters expire. These settings take effect at the server
of the mailbox. They are not part of the epoch (a hash of the topology), so they may change whenever the server
restarts.
"""

from functools import cached_property
from typing import Final

import msgspec

from antecede import limits

FULL: Final = ("expire", "refuse")
DEAD_FOLLOW: Final = ("deliver", "hold")


class Quota(msgspec.Struct, frozen=True):
    """The limits of one mailbox, and the action when it is full. A limit of 0 means that there is no limit."""

    letters: int = 0
    bytes: int = 0
    """The limit for the total size of all notifications in the mailbox, in bytes. Other parts of the letters, such as
    addresses and ids, are not included."""
    seconds: float = 0
    """The longest time that a letter may wait."""
    full: str = "expire"

    @property
    def limited(self) -> bool:
        """Return whether there is any limit."""
        return bool(self.letters or self.bytes or self.seconds)


class Mailboxes(msgspec.Struct, frozen=True, dict=True):
    """The settings of all mailboxes."""

    clients: Quota = Quota(limits.mailbox_letters_max, limits.mailbox_bytes_max)
    """The quota of each client that is not in ``named``."""
    agents: Quota = Quota()
    """The quota of each agent that is not in ``named``."""
    named: dict[str, Quota] = {}
    """The agents and clients with a separate quota, each with this quota."""
    hold: frozenset[str] = frozenset()
    """The agents with the setting ``dead_follow = "hold"``. If a letter to such an agent becomes a dead letter, the
    server holds all letters to this agent that may depend on the dead letter. The server releases them when an operator
    has decided about the dead letter. If the dead letter has *expired*, no letters are held."""

    def quota(self, address: str, agent: bool) -> Quota:
        """Return the quota of a mailbox. ``agent``: whether the mailbox belongs to an agent, not to a client."""
        return self.named.get(address) or (self.agents if agent else self.clients)

    @cached_property
    def refusing(self) -> bool:
        """Return whether any quota has the setting ``full = "refuse"``."""
        return any(quota.full == "refuse" for quota in (self.clients, self.agents, *self.named.values()))

    def lines(self) -> list[str]:
        """Return the lines of a table ``[mailboxes]``, without its header; empty if all quotas have their defaults."""
        plain = Mailboxes()
        some = {"clients": self.clients} if self.clients != plain.clients else {}
        if self.agents != plain.agents:
            some["agents"] = self.agents
        return [f'"{name}" = {_entry(quota)}' for name, quota in (some | self.named).items()]


def _entry(quota: Quota) -> str:
    full = f', full = "{quota.full}"' if quota.full != "expire" else ""
    return f"{{ letters = {quota.letters}, bytes = {quota.bytes}, seconds = {quota.seconds}{full} }}"
