"""The links of this server, in all its domains: acknowledgements that wait, and frames to send again.

Most steps need not examine the links. A step examines them only if it sends acknowledgements, if a resend may be due,
or if it is not known yet that acknowledgements wait.
"""

from collections.abc import Collection

from antecede.channel.consumer import MessageConsumer, Outgoing


class Links:
    """The links of one server."""

    def __init__(self, consumers: dict[str, MessageConsumer], resend_after: float) -> None:
        """``resend_after``: a link sends a frame again only when the frame has been unacknowledged for this time."""
        self.ends = [
            (name, peer, link) for name, consumer in consumers.items() for peer, link in consumer.links.items()
        ]
        """(domain, peer, link) for each link."""
        self._resend_after = resend_after
        self.acks_wait = False
        """Whether the last call of ``look`` found acknowledgements and did not send them."""
        self.resend_at = 0.0
        """No link has anything to send again before this time."""

    def begin_life(self, life: int, kept: Collection[str] = ()) -> None:
        """Start a life of the server on all links, except in the domains that are ``kept``."""
        for domain, _, link in self.ends:
            if domain not in kept:
                link.begin_life(life)

    def look(self, now: float, acknowledge: bool, outgoing: list[Outgoing]) -> None:
        """Add to ``outgoing`` the resends that are due and, if ``acknowledge`` is set, the acknowledgements."""
        waits, resend_at = False, now + self._resend_after
        for domain, peer, link in self.ends:
            if link.ack_due:
                if not acknowledge:
                    waits = True
                elif (ack := link.ack()) is not None:
                    outgoing.append(Outgoing(domain, peer, ack))
            if link.timers:
                if link.timers[0][0] <= now:
                    outgoing += [Outgoing(domain, peer, frame) for frame in link.tick(now)]
                if link.timers and link.timers[0][0] < resend_at:
                    resend_at = link.timers[0][0]
        self.acks_wait, self.resend_at = waits, resend_at

    def changed(self) -> None:
        """Let the next step look at the links: a peer's window may now admit frames that it did not admit before."""
        self.resend_at = 0.0

    def deadline(self) -> float | None:
        """Return the time at which a link must send something again; None: no link has to."""
        first: float | None = None
        for _, _, link in self.ends:
            due = link.deadline() if link.timers else None
            if due is not None and (first is None or due < first):
                first = due
        return first
