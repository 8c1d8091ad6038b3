"""The interface between the driver of a server and its adapters (the live server and the simulator): the work after a
turn, and the time of the next commit of the log."""

from enum import Enum
from typing import Final

import msgspec

from antecede.engine import React


class Turn(msgspec.Struct, gc=False):
    """The work that an adapter must do after a turn of the driver, in the sequence of the fields."""

    records: list[bytes]
    """First, append these records to the log, in this sequence, and call ``Driver.appended`` with the number of records
    that were appended. All output that depends on these records waits in the gate until they are durable. If the log
    has no space for a record, stop before this record: the next turn returns it again."""
    reactions: list[React]
    """Then run these batches of reactions, and report the outcome of each batch with ``Driver.reacted``. Each batch
    belongs to a different agent, so the batches are independent of each other. A batch need not wait until the records
    above are durable, because its results become part of the record of an open step, or of a later record."""


class Commit(Enum):
    """The answer of ``Driver.rest``, after one or more turns: when and where to commit the log."""

    HERE = "here"
    """The adapter commits immediately: output waits for the records, or the records have waited long enough. There is
    no other work. The store usually commits in the thread of the adapter. In some cases it commits in its commit
    thread, for example if recent syncs were slow or many bytes wait."""
    SOON = "soon"
    """Output waits for the records, or the records have waited long enough, as for ``HERE``. But there is other work.
    So the commit thread commits the records, together with records that come in the meantime."""
    LATER = "later"
    """Do not commit now, because there are no records, or no output waits for them. The records are committed at the
    deadline, or as soon as new output waits for them. A step without a record can also have such output (for example
    an acknowledgement)."""


HERE: Final = Commit.HERE
SOON: Final = Commit.SOON
LATER: Final = Commit.LATER
"""``HERE``, ``SOON`` and ``LATER`` are separate names for the members of :class:`Commit`. Every turn uses one of these
members. It is slow to get a member from the class: this takes as long as ten other instructions."""
