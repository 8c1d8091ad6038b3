"""The amount of data that waits at a server: the number of letters and frames, and their bytes in memory."""

import msgspec

from antecede.channel import Channel
from antecede.engine import Engine
from antecede.server.clock import Timers


class Backlog(msgspec.Struct, frozen=True):
    """The amount of data that waits at a server for agents, clients, operators or other servers."""

    letters: int
    """The number of letters that wait. They wait in mailboxes, or they are held because they depend on a dead letter,
    or they wait for the end of a change of the topology. A letter in several mailboxes is counted once per mailbox."""
    dead: int
    """The number of dead letters. A separate limit applies to them."""
    letter_bytes: int
    """The memory of mailboxes with their letters, of held letters and of timers, in bytes."""
    frames: int
    """The number of frames that their receivers have not acknowledged."""
    frame_bytes: int
    """The memory of the frames that are not acknowledged, in bytes."""


def backlog_of(channel: Channel, engine: Engine, timers: Timers, exact: bool) -> Backlog:
    """Return the amount of waiting data. If ``exact`` is true, also count the bytes of letters that arrived since the
    last count. The time for this count grows with the number of these new letters, not with the number of all
    letters."""
    footprint = engine.count() if exact else engine.footprint
    mailboxes = _mailbox_bytes * len(engine.mailboxes)
    letter_bytes = footprint.bytes + mailboxes + _timer_bytes * len(timers)
    links = [link for _, _, link in channel.links.ends]
    return Backlog(
        sum(map(len, engine.mailboxes.values())) + engine.following.count() + channel.letters_waiting,
        len(engine.dead),
        letter_bytes,
        sum(link.unacknowledged for link in links),
        sum(link.unacknowledged_bytes for link in links),
    )


_mailbox_bytes = 1_000
"""The memory of a mailbox without letters: a deque with its first block, the agent's address, entries in
dictionaries."""
_timer_bytes = 350
"""The memory of a timer without its letter: two tuples, three numbers, entries in a dictionary and a heap."""
