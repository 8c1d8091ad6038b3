"""The effects of items that occur only in few records of the log. Examples are resets, dead letters that are dropped,
clients that have left, and the start of a log."""

from typing import TYPE_CHECKING

from antecede.server.items import (
    Began,
    Buried,
    BuriedMany,
    Clocked,
    Forgot,
    Holding,
    Item,
    Left,
    Met,
    Related,
    Seen,
    Tried,
)
from antecede.server.truncations import CutItem

if TYPE_CHECKING:
    from antecede.server import AgentServer


def apply_rare(machine: "AgentServer", item: Item, now: float) -> None:
    """Carry out the effect of a rare item, in a step of the running server or in a replay of the log."""
    if isinstance(item, Related):
        machine.calls.recorded(item.conflicts)
    elif isinstance(item, Forgot):
        machine.channel.begin_again(item.domain, item.generation, item.again)
        machine.stopped = {place: reason for place, reason in machine.stopped.items() if place[0] != item.domain}
    elif isinstance(item, Buried | BuriedMany):
        machine.engine.bury_all(item.keys)
    elif isinstance(item, Seen):
        machine.clock.passed(item.clock_ms)
        machine.engine.seen(item.agents, item.clock_ms)
    elif isinstance(item, Holding):
        machine.channel.hold_for(*machine.engine.hold_for(item.agents))
    elif isinstance(item, Clocked):
        machine.clock.set(item)
    elif isinstance(item, CutItem):
        machine.truncations.apply(item)
    elif isinstance(item, Left):
        machine.clients.pop(item.client, None)
    elif isinstance(item, Met):
        link = machine.channel.consumers[item.domain].links[item.peer]
        link.peer, link.peer_life = item.incarnation, item.life
    elif isinstance(item, Began):
        machine.epoch = item.epoch
    elif isinstance(item, Tried):
        machine.engine.tries.ended(item.life, item.calls)
