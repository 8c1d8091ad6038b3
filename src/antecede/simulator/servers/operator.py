"""Simulated operators. They send the requests of real operators, each on a separate connection."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from antecede import wire
from antecede.access.model import OPERATOR
from antecede.errors import AntecedeError, ClosedError, OverloadError, UsageError
from antecede.server.operations.operator import OperatorRequest
from antecede.server.operations.resetting import next_generation
from antecede.simulator.servers.network import End, connect
from antecede.simulator.servers.server import SimulatedServer

if TYPE_CHECKING:
    from antecede.simulator.servers.world import ServerWorld


class Operators:
    """The operators of one world, and the answers that they got."""

    def __init__(self, world: "ServerWorld") -> None:
        self._world = world
        self._requests = 0
        self.buried: set[tuple[str, str]] = set()
        """The dead letters that operators wanted to bury (to take off the server's list). Each is a pair: the server's
        name, and the letter's key."""
        self.off_the_list: list[tuple[str, str]] = []
        """The dead letters that were buried or sent again, according to the server's answer. Each is a pair: the
        server's name, and the letter's key."""

    def settle_dead(self, server: SimulatedServer) -> None:
        """Send the dead letters of a server again, or bury them (take them off its list). The choice between the two
        is random."""
        command = "dead-replay" if self._world.random.random() < 0.7 else "dead-bury"
        singly = self._world.random.random() < 0.5

        def listed(document: Any, error: AntecedeError | None) -> None:
            if document and not singly:
                of = self._world.random.choice(("", "Riddle"))
                meant = {_number(dead): dead["key"] for dead in document if of in ("", dead["type"])}
                if meant:
                    self._settle_page(server, command, of, meant, 0)
                return
            for dead in document or ():
                self.settle(server, command, dead["key"])

        self.request(server, "dead-list", [], listed)

    def _settle_page(self, server: SimulatedServer, command: str, of: str, listed: dict[int, str], upto: int) -> None:
        """Send dead letters again, or bury them (take them off the server's list), as ``command`` says. One request
        handles at most two letters. If there are more letters, further requests follow. ``of``: the type of the
        letters, or an empty text for any type. ``listed``: the numbers of the letters, each with the letter's key.
        ``upto``: the number of the last letter that earlier requests have handled."""
        if command == "dead-bury":
            self.buried |= {(server.name, key) for number, key in listed.items() if number > upto}
        page = [str(upto), str(max(listed)), str(_page_letters), "", of, "", "0"]

        def answered(document: Any, error: AntecedeError | None) -> None:
            if error is None:
                settled = [key for number, key in listed.items() if upto < number <= document["upto"]]
                # While an agent moves, its letters have no destination and stay on the list.
                self.off_the_list += [(server.name, key) for key in settled if not document.get("skipped")]
                if document["upto"] > max(listed):
                    self._world.report_error(
                        server.name, f"an operator's {command} went beyond the letters that were meant"
                    )
                if document["more"]:
                    self._settle_page(server, command, of, listed, document["upto"])
            elif not isinstance(error, ClosedError | OverloadError):
                self._world.report_error(server.name, f"an operator's {command} failed: {error}")

        self.request(server, f"{command}-page", page, answered)

    def settle(self, server: SimulatedServer, command: str, key: str) -> None:
        """Send one dead letter again, or bury it (take it off the server's list), as ``command`` says."""
        place = (server.name, key)
        if command == "dead-bury":
            self.buried.add(place)

        def answered(document: Any, error: AntecedeError | None) -> None:
            if error is None:
                self.off_the_list.append(place)
            elif not isinstance(error, ClosedError | OverloadError | UsageError):
                self._world.report_error(server.name, f"an operator's {command} failed: {error}")

        self.request(server, command, [key], answered)

    def reset_lost(self, domain: str, members: list[SimulatedServer]) -> bool:
        """Send a reset of a domain to all members, if the status of the members shows that the domain needs it. Return
        whether a reset was sent."""
        try:
            generation = next_generation(domain, {one.name: one.core.operations.status() for one in members})
        except UsageError:
            return False
        self._forget(domain, members, generation)
        return True

    def reset(self, domain: str, members: list[SimulatedServer]) -> None:
        """Reset a domain at all its members, even if no reset is needed. The members do not check whether a reset is
        needed."""
        self._forget(domain, members, 1 + max(one.machine.channel.consumers[domain].generation for one in members))

    def _forget(self, domain: str, members: list[SimulatedServer], generation: int) -> None:
        for server in members:
            self._forget_at(server, domain, generation)

    def _forget_at(self, server: SimulatedServer, domain: str, generation: int) -> None:
        """Reset a domain at one member. If the member crashes before it answers, send the command again later, unless
        the member has already reset the domain."""

        def answered(document: Any, error: AntecedeError | None) -> None:
            if isinstance(error, ClosedError):
                self._world.later(_again_seconds, self._forget_at, server, domain, generation)
            elif error is not None:
                self._world.report_error(domain, f"the domain was not reset: {error}")

        if not (server.listens and server.machine.channel.consumers[domain].generation >= generation):
            self.request(server, "forget", [domain, str(generation)], answered)

    def request(
        self,
        server: SimulatedServer,
        command: str,
        arguments: list[str],
        answered: Callable[[Any, AntecedeError | None], None],
    ) -> None:
        """Send a request. ``answered`` is called with (the document of the answer, None) or (None, the error)."""
        world = self._world
        if not server.listens:
            world.later(0.0, answered, None, ClosedError("the server does not listen"))
            return

        def received(end: End, parts: list[wire.AnyPart]) -> None:
            assert end.receiver is not None
            end.receiver.received(parts)

        def closed(end: End, reason: str) -> None:
            assert end.receiver is not None
            end.receiver.closed(reason, world.now)

        mine = End(world, server.name, received, closed, lambda end: None)
        # Each request has a separate address, because there may be more requests than connections allowed per address.
        self._requests += 1
        theirs = server.end(f"operator {self._requests}")
        connect(mine, theirs)
        server.guard(server.life, server.accept, theirs)
        known = world.identities
        keyring = None if known is None else known.keyring(OPERATOR, "admin")
        mine.receiver = OperatorRequest(mine, wire.Request("", command, arguments), answered, keyring)


def _number(listed: dict[str, Any]) -> int:
    return int(listed["place"].rpartition(":")[2])


_again_seconds = 0.1
"""The time after which an operator repeats a command that got no answer."""
_page_letters = 2
