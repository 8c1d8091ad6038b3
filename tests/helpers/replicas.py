"""Three servers with replicated objects, for tests."""

from typing import Any

from antecede import ReplicatedObject
from antecede.live.application import plan_of
from antecede.objects import Replicas
from antecede.server import AgentServer, FromPeer, Step
from antecede.topology import parse_topology

_servers = """
[servers]
s1 = "tcp://127.0.0.1:7101"
s2 = "tcp://127.0.0.1:7102"
s3 = "tcp://127.0.0.1:7103"
[domains]
A = { servers = ["s1", "s2", "s3"], order = "objects" }
[agents]
"""


def topology(**objects: str) -> str:
    """Return a topology of three servers: each object by its name, with the servers that hold a replica."""
    held = {name: ", ".join(f'"{server}"' for server in servers.split()) for name, servers in objects.items()}
    return _servers + "".join(f'{name} = {{ servers = [{on}], class = "x:X" }}\n' for name, on in held.items())


class ReplicaNet:
    """Three servers without a network: frames wait in boxes until a test takes them."""

    def __init__(self, text: str, classes: dict[str, type[ReplicatedObject]]) -> None:
        plan = plan_of(parse_topology(text), classes)
        self.servers = {name: AgentServer(name, plan, at) for at, name in enumerate(("s1", "s2", "s3"), 1)}
        self.logs: dict[str, list[bytes]] = {name: [] for name in self.servers}
        self.boxes: dict[str, list[Any]] = {name: [] for name in self.servers}

    def meet(self) -> None:
        """Let all servers exchange hellos."""
        for name, server in self.servers.items():
            for peer, link in server.channel.consumers["A"].links.items():
                self.servers[peer].channel.consumers["A"].links[name].on_hello(link.hello(), 0.0)

    def take(self, name: str, inputs: list[Any], now: float, clock_ms: int) -> Step:
        """Let a server take inputs: keep its record, and put its frames into the boxes of its peers."""
        step = self.servers[name].step(inputs, now, clock_ms)
        if step.record is not None:
            self.logs[name].append(step.record)
        for out in step.outgoing:
            self.boxes[out.peer].append(FromPeer(out.domain, name, out.content))
        return step

    @property
    def quiet(self) -> bool:
        """Whether nothing is on its way and no call is open."""
        return not any(self.boxes.values()) and not any(server.calls.open for server in self.servers.values())

    def site(self, name: str) -> Replicas:
        """Return the replicas of a server."""
        site = self.servers[name].calls.site
        assert site is not None
        return site

    def check_logs(self) -> None:
        """The records alone lead to the same state, and nothing is left. Subclasses can be made without arguments."""
        again = type(self)()  # type: ignore[call-arg]
        for name, server in again.servers.items():
            for record in self.logs[name]:
                server.replay(record, 0.0)
            assert again.site(name).snapshot() == self.site(name).snapshot()
            assert not self.site(name).unended()
