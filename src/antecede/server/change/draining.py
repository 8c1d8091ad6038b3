"""Exchange the letters that are in transit between stopped servers, in memory, until all have arrived.

The state machines of all servers are connected directly. There are no sockets, no clients, no reactions and no timers.
The state machines follow the same rule as running servers: a step processes frames, and the frames that this step sends
reach other servers only after the step's record is durable. So this process can be killed at any point. At the next
start, the servers continue from their logs.
"""

from collections.abc import Callable, Mapping

from antecede.errors import TopologyError
from antecede.server import AgentServer, Input
from antecede.server.inputs import FromPeer

Keep = Callable[[dict[str, bytes]], None]
"""A function that stores one record per server (server → record). When it returns, the records are durable."""


def drain(machines: Mapping[str, AgentServer], keep: Keep) -> None:
    """Exchange frames until every letter is in a mailbox. Raise TopologyError, with the reason, if a letter cannot
    arrive."""
    inputs: dict[str, list[Input]] = {name: [] for name in machines}
    for name, machine in machines.items():
        for domain, peer, _ in machine.channel.links.ends:
            if peer not in machines:
                raise TopologyError(
                    f"domain {domain}: server {name} needs the data of server {peer}, but this data is missing: "
                    f"add the data directory of server {peer}"
                )
            other = machines[peer].channel.consumers.get(domain)
            if other is None or name not in other.links:
                raise TopologyError(f"domain {domain}: servers {name} and {peer} do not agree on its members")
            inputs[name].append(FromPeer(domain, peer, other.links[name].hello()))
    now, idle = 0.0, 0
    while idle < _idle_rounds:
        busy = any(inputs.values())
        records: dict[str, bytes] = {}
        sent: dict[str, list[Input]] = {name: [] for name in machines}
        for name, machine in machines.items():
            step = machine.step(inputs[name], now, 0)
            if step.record is not None:
                records[name] = step.record
            for domain, peer, reason in step.faults:
                raise TopologyError(f"domain {domain}: the link of {name} and {peer} is stopped: {reason}")
            for one in step.outgoing:
                sent[one.peer].append(FromPeer(one.domain, name, one.content))
        if records:
            keep(records)
        inputs = sent
        if not busy and not any(sent.values()):
            # Links may have more to send again than fits into one step.
            idle += 1
            now += _resend_seconds
    for name, machine in machines.items():
        if machine.stopped:
            (domain, peer), reason = next(iter(machine.stopped.items()))
            raise TopologyError(f"domain {domain}: the link of {name} and {peer} is stopped: {reason}")
        left = machine.channel.in_transit(list(machine.channel.consumers))
        if left:
            raise TopologyError(f"server {name} has letters in transit ({left}), but no server sends anything more")


_idle_rounds = 3
_resend_seconds = 60.0
"""A time that is longer than any pause before a frame is sent again."""
