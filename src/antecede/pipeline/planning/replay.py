"""Check a plan in the simulator: send a sample of the traffic through the plan's domains, and measure the cost.

The cost model predicts the size of stamps from a table, which was measured with uniform traffic. A replay measures the
stamps of the given traffic: the simulator sends and routes each message, and each message gets a real stamp of the
chosen order. A message has a stamp in each domain that it enters. The sizes of these stamps are added up. A size is a
number of bytes or, with ``--model paper``, a number of counters. If a multicast has several copies in one domain, only
the mean size of their stamps is added.
"""

from bisect import bisect_right
from itertools import accumulate
from random import Random
from typing import Any

import msgspec

from antecede.messages import COPY, Message, Packet
from antecede.orders import parse
from antecede.orders.contract import Order
from antecede.pipeline.planning.model import Model
from antecede.pipeline.planning.traffic import Traffic
from antecede.simulator.draws import below, parse_draw, stream
from antecede.simulator.kernel import World
from antecede.simulator.observers import Figures
from antecede.simulator.worlds import ChannelWorld
from antecede.topology import Domain, Topology

_gap_seconds = 0.1
"""The mean time between two sends of one server, and the mean delay of a packet, in seconds."""

_bytes_replayed_max = 2.0e7
"""A limit for the expected size of all stamps in a replay. The size is a number of bytes or, with ``--model paper``, a
number of counters. A replay of this size takes some seconds. If the expected size is above the limit, the replay sends
fewer messages. The limit never reduces the number of messages below ``_sample_min``."""

_sample_min = 500


class Replayed(msgspec.Struct, frozen=True):
    """The figures of a replay: the number of messages, and means per message."""

    messages: int
    cost: float
    hops: float
    stamp: float
    """The size of stamps per message, in bytes or, with ``--model paper``, in counters. A message has a stamp in each
    domain that it enters, and the sizes of these stamps are added up. ``stamp`` is the mean of this sum over all
    messages."""


class _Charges(Figures):
    """Adds up two numbers over all messages of a replay: the number of domains that the messages enter, and the size of
    their stamps in these domains."""

    def __init__(self, paper: bool) -> None:
        super().__init__(0, routed=True)
        self._paper = paper
        self.entered = 0.0
        self.stamps = 0.0

    def posted(self, order: Order, packet: Packet) -> None:
        super().posted(order, packet)
        if packet.kind == COPY and packet.message is not None:
            copies = max(1, packet.message.to.bit_count())
            self.entered += 1 / copies
            self.stamps += (order.dependents(packet) if self._paper else order.size(packet)) / copies


class _Sampled:
    """Sends a sample of the traffic, in random order. A *flow* consists of all messages with the same source and the
    same targets. The share of each flow in the sample is its share in the traffic, rounded to whole messages.

    If messages were drawn independently of each other, a small sample would often miss a flow that has only one
    message. So the messages are not drawn independently.
    """

    def __init__(self, traffic: Traffic, number_of: dict[str, int], messages: int, seed: int) -> None:
        flows = list(traffic.flows())
        upto = list(accumulate(count for _, _, count in flows))
        rng: Random = stream(seed, "destinations")
        drawn = [min(bisect_right(upto, (k + 0.5) * upto[-1] / messages), len(flows) - 1) for k in range(messages)]
        for last in range(messages - 1, 0, -1):
            other = below(rng, last + 1)
            drawn[last], drawn[other] = drawn[other], drawn[last]
        self._sends = [
            (number_of[traffic.servers[source]], sum(1 << number_of[traffic.servers[target]] for target in targets))
            for source, targets, _ in (flows[flow] for flow in drawn)
        ]
        self._gap = parse_draw(f"exponential:{_gap_seconds / len(traffic.servers)}", stream(seed, "gap"))

    def start(self, world: World) -> None:
        world.wake_after(self._gap(), 0)

    def wake(self, world: World, process: int) -> None:
        if self._sends:
            world.send(*self._sends.pop())
            world.wake_after(self._gap(), 0)

    def delivered(self, world: World, process: int, message: Message) -> None:
        pass


def replay(
    traffic: Traffic, domains: dict[str, list[str]], model: Model, predicted_stamp: float, most: int, seed: int
) -> Replayed | None:
    """Send a sample of the traffic, at most ``most`` messages, through the domains. Return the figures. Return None if
    there is no message to send, or if there are no domains."""
    wanted = min(most, int(traffic.messages), max(_sample_min, int(_bytes_replayed_max / max(1.0, predicted_stamp))))
    if wanted < 1 or not domains:
        return None
    topology = Topology([Domain(name, tuple(members)) for name, members in domains.items()], traffic.servers)
    charges = _Charges(model.name == "paper")
    spec = parse(model.order)
    world = ChannelWorld(
        topology,
        dict.fromkeys(domains, spec),
        parse_draw(f"exponential:{_gap_seconds}", stream(seed, "delay")),
        figures=charges,
    )
    number_of: dict[str, int] = {name: place for place, name in enumerate(topology.servers)}
    world.run(_Sampled(traffic, number_of, wanted, seed))
    hops, stamp = charges.entered / wanted, charges.stamps / wanted
    return Replayed(wanted, model.alpha * hops + model.beta * stamp, hops, stamp)


def as_json(replayed: Replayed | None) -> dict[str, Any] | None:
    """Return the value of the report's key ``replay``."""
    return None if replayed is None else msgspec.structs.asdict(replayed)
