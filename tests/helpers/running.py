"""Running servers in one event loop, and an operator who changes their topology."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from secrets import token_hex
from typing import Any

import msgspec

from antecede.errors import AntecedeError
from antecede.live import ServerRuntime
from antecede.live.client.line import connect
from antecede.live.client.operator import RunningServers
from antecede.server import ChangeRequest, Outcome, Wait, carry_out, end_change
from antecede.topology import TopologyFile, parse_topology
from helpers.ports import free_ports
from helpers.summing import Tell, Total


class System:
    """Running servers, and an operator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = dict(zip(("s1", "s2", "s3", "s4", "s9"), free_ports(5), strict=True))
        self.running: dict[str, ServerRuntime] = {}
        self.token = ""

    def file(
        self, domains: dict[str, str], agents: dict[str, str], kind: str = "helpers.summing:Sum", more: str = ""
    ) -> TopologyFile:
        """Return a topology; the servers of a domain and of an agent are digits."""
        servers = sorted({one for members in domains.values() for one in members})
        lines = ["[servers]", *(f's{one} = "tcp://127.0.0.1:{self.ports[f"s{one}"]}"' for one in servers), "[domains]"]
        for name, members in domains.items():
            listed = ", ".join(f'"s{one}"' for one in members)
            lines.append(f'{name} = {{ servers = [{listed}], order = "matrix" }}')
        lines += ["[agents]", *(f'{name} = {{ server = "s{at}", class = "{kind}" }}' for name, at in agents.items())]
        return parse_topology("\n".join([*lines, more]))

    async def start(self, file: TopologyFile, *servers: str) -> None:
        for server in servers or file.servers:
            data = str(self.folder / server)
            self.running[server] = ServerRuntime(file, server, data, durability="os", token=self.token, trace=True)
            await self.running[server].start()

    async def stop(self, *servers: str) -> None:
        for server in servers or list(self.running):
            await self.running.pop(server).stop()

    def wish(self, new: TopologyFile, **settings: Any) -> ChangeRequest:
        wish = ChangeRequest(new, tuple(new.servers), token_hex(8), 1_000, attempt=token_hex(8), limit_seconds=10.0)
        return msgspec.structs.replace(wish, **settings)

    async def apply(self, new: TopologyFile, **settings: Any) -> Outcome:
        servers = RunningServers([new], self.token)
        return await servers.drive(carry_out(self.wish(new, **settings)))

    async def apply_until(self, new: TopologyFile, name: str, before: bool = True) -> None:
        """Give the commands of a change until the first batch with this name; then the operator is gone. ``before``:
        that batch is not given any more."""
        servers, steps = RunningServers([new]), carry_out(self.wish(new))
        asked = next(steps)
        while True:
            if isinstance(asked, Wait):
                await asyncio.sleep(asked.seconds)
                asked = steps.send([])
                continue
            if before and asked[0].name == name:
                return
            answers = [await servers._answer(command) for command in asked]
            assert not any(isinstance(one, AntecedeError) for one in answers), answers
            if asked[0].name == name:
                return
            asked = steps.send([one for one in answers if not isinstance(one, AntecedeError)])

    async def abandon(self, file: TopologyFile) -> None:
        """Abandon the change that an operator who is gone has staged."""
        outcome = await RunningServers([file]).drive(end_change(self.wish(file)))
        assert outcome.state == "done"

    def organisation(self, server: str) -> Any:
        return self.running[server].machine.organisation

    async def until(self, true: Callable[[], Any]) -> None:
        while not true():
            await asyncio.sleep(0.02)

    async def total(self, server: str, agent: str, amount: int) -> None:
        """Wait until an agent has this total."""
        async with connect(f"tcp://127.0.0.1:{self.ports[server]}", token=self.token) as bus:
            while True:
                total = await bus.ask(agent, Tell(), expect=Total, timeout=20)
                assert total.amount <= amount
                if total.amount == amount:
                    return
                await asyncio.sleep(0.02)


def played(tmp_path: Path, play: Callable[[System], Awaitable[None]]) -> None:
    async def main() -> None:
        system = System(tmp_path)
        try:
            async with asyncio.timeout(60):
                await play(system)
        finally:
            await system.stop()

    asyncio.run(main())


FLAT = {"A": "123"}
BUS = {"A": "12", "B": "23"}
