"""The engine of a server: its mailboxes, its agents, and the reactions that empty the mailboxes (Laumay et al. §3).

``mailboxes`` has the :class:`Engine`, which keeps letters and saved states, and hands out batches of letters. ``host``
runs the handlers of agents. ``agents`` has what the author of an agent uses, and the batches and reactions that go
between the two. ``dead`` decides which letters wait behind a dead letter, and ``quotas`` which letters a mailbox
refuses.
"""

from antecede.engine.agents import (
    CHANGES_FROM_BYTES,
    STALE,
    Agent,
    Alarm,
    Birth,
    Change,
    Context,
    Notification,
    Outbound,
    React,
    Reaction,
    Returned,
    Subscribe,
    Timeout,
    Topic,
    Unanswered,
    Unsubscribe,
    change_of,
    changed,
    died,
    name_of,
)
from antecede.engine.dead import Choice, Dead, Following, Page, Range, SavedFollowing, Tries, page_of
from antecede.engine.host import Host, Outcome
from antecede.engine.mailboxes import Belongings, Engine, Question, SavedEngine
from antecede.engine.quotas import ALL_FULL, Quotas

__all__ = [
    "ALL_FULL",
    "CHANGES_FROM_BYTES",
    "STALE",
    "Agent",
    "Alarm",
    "Belongings",
    "Birth",
    "Change",
    "Choice",
    "Context",
    "Dead",
    "Engine",
    "Following",
    "Host",
    "Notification",
    "Outbound",
    "Outcome",
    "Page",
    "Question",
    "Quotas",
    "Range",
    "React",
    "Reaction",
    "Returned",
    "SavedEngine",
    "SavedFollowing",
    "Subscribe",
    "Timeout",
    "Topic",
    "Tries",
    "Unanswered",
    "Unsubscribe",
    "change_of",
    "changed",
    "died",
    "name_of",
    "page_of",
]
