"""The live server: where the machine meets I/O (asyncio). *Persist, then send, then acknowledge.*

**One tick a turn of the event loop.** Whatever arrives (frames, publishes, outcomes of reactions) gathers in a list;
the next tick hands the list to ``machine.step``, appends the record to the store, and queues what the step wants to
send under the number of the newest record: even an acknowledgement from a step without a record must not overtake the
records before it. Reactions that are due run at once. When the store's commit thread says that records are durable,
everything queued up to there leaves, one write a connection.

**Back-pressure.** Above its high-water marks the server refuses what clients publish (they get a typed error), and goes
on with everything else. If the disk is full the server stops reading and waits, for nothing may be forgotten that was
stepped; if the disk fails it ends, and recovers by replay at its next start.

**The data directory** remembers in its first record whose it is and under which topology. Another server's directory,
or one of another topology, is refused by name.
"""

from antecede.runtime.server import ServerRuntime

__all__ = ["ServerRuntime"]
