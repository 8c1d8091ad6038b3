"""Find the deliveries that, according to a trace, happened before their own send. The events of such a trace cannot
have happened as they were recorded.

An example: p delivers message b before it sends a, and q delivers a before it sends b. According to this trace, each of
these four events happened before itself.

The events form a graph with two kinds of edges: from each event to the next event of its process, and from each send to
its deliveries. A delivery is *on a cycle with its send* if a path leads from the delivery back to the send. In other
words: the delivery and the send are in one strongly connected component. For all such deliveries, the edge from the
send to the delivery is removed. The rest of the graph has no cycle. The reason: a cycle would lie inside one
component, but only the edges along processes remain there, and these form no cycle. So the rest is a partial order.

A process may send a message to itself between two events of a larger cycle. The edge of this message is removed, too,
because according to the trace its delivery also happened before its send.

The components are found by Tarjan's algorithm. It is written as a loop, because a recursion would be too deep for a
long path in a trace.
"""

from antecede.trace.matched import Matched
from antecede.trace.schema import DELIVER, SEND, Event


def circular_deliveries(trace: Matched) -> list[Event]:
    """Return the deliveries that, according to the trace, happened before the send of their own message."""
    events: list[Event] = []
    following: list[list[int]] = []
    node_of_send: dict[str, int] = {}
    for line in trace.lines:
        first = len(events)
        for event in line:
            if event.kind in (SEND, DELIVER):
                if event.kind == SEND:
                    node_of_send[event.message or ""] = len(events)
                following.append([])
                if len(events) > first:
                    following[len(events) - 1].append(len(events))
                events.append(event)
    for node, event in enumerate(events):
        if event.kind == DELIVER:
            following[node_of_send[event.message or ""]].append(node)
    component = _components(following)
    return [
        event
        for node, event in enumerate(events)
        if event.kind == DELIVER and component[node] == component[node_of_send[event.message or ""]]
    ]


def _components(following: list[list[int]]) -> list[int]:
    """Return a number for each node. Two nodes have the same number iff each can be reached from the other.
    ``following`` contains, for each node, the nodes to which its edges lead."""
    unseen = -1
    number = [unseen] * len(following)
    lowest = [0] * len(following)
    component = [unseen] * len(following)
    open_nodes: list[int] = []
    count = 0
    for root in range(len(following)):
        if number[root] != unseen:
            continue
        path = [(root, 0)]
        while path:
            node, edge = path.pop()
            if edge == 0:
                number[node] = lowest[node] = count
                count += 1
                open_nodes.append(node)
            else:
                lowest[node] = min(lowest[node], lowest[following[node][edge - 1]])
            while edge < len(following[node]):
                target = following[node][edge]
                edge += 1
                if number[target] == unseen:
                    path.append((node, edge))
                    path.append((target, 0))
                    break
                if component[target] == unseen:
                    lowest[node] = min(lowest[node], number[target])
            else:
                if lowest[node] == number[node]:
                    while True:
                        member = open_nodes.pop()
                        component[member] = node
                        if member == node:
                            break
    return component
