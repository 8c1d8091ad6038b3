"""The links of this server in all its domains, with the acknowledgements that wait and the frames to send again.

Most steps need not examine the links. A step examines them in three cases. (1) The step sends acknowledgements. (2) A
link may have to send a frame again now. (3) The last examination left no acknowledgement waiting. Then the step
looks for new acknowledgements, so that the server can plan when to send them.
"""

from collections.abc import Collection

from antecede.channel.consumer import MessageConsumer, Outgoing


class Links:
    """All links of one server. This class finds the acknowledgements and the resends that must be sent."""

    def __init__(self, consumers: dict[str, MessageConsumer], resend_after: float) -> None:
        """``resend_after``: the time from the first sending of a frame to its first resend, if the frame was not
        acknowledged."""
        self.ends = [
            (name, peer, link) for name, consumer in consumers.items() for peer, link in consumer.links.items()
        ]
        """All links, each as (domain, peer, link)."""
        self._resend_after = resend_after
        self.acks_wait = False
        """True if the last call of ``look`` found acknowledgements but did not send them."""
        self.resend_at = 0.0
        """The earliest time at which a link may have something to send again."""

    def begin_life(self, life: int, kept: Collection[str] = ()) -> None:
        """Begin a new *life* (the time from one start of the server to the next) on all links, except on the links in
        the domains ``kept``. ``life``: the number of the new life."""
        for domain, _, link in self.ends:
            if domain not in kept:
                link.begin_life(life)

    def look(self, now: float, acknowledge: bool, outgoing: list[Outgoing]) -> None:
        """Add to ``outgoing`` the frames that must be sent now: frames that were not acknowledged in time, and frames
        that waited until the peer could accept more. If ``acknowledge`` is set, also add the acknowledgements."""
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
        """Make the next step examine the links. This is necessary when a peer may accept more frames than before, for
        example after an acknowledgement."""
        self.resend_at = 0.0

    def deadline(self) -> float | None:
        """Return the earliest time at which a link must send a frame again. Return None if no link has to send a frame
        again."""
        first: float | None = None
        for _, _, link in self.ends:
            due = link.deadline() if link.timers else None
            if due is not None and (first is None or due < first):
                first = due
        return first
