"""The session of a client at the other end of a connection."""

from collections import deque

from antecede import limits, wire
from antecede.access import TOKEN, Who
from antecede.channel.letters import Letter, encode_train
from antecede.errors import WireError
from antecede.server.connections import Connection, break_off
from antecede.server.inputs import Accepted, Refused
from antecede.server.sessions import MOVED, REPLACED, Sessions


class RemoteSession:
    """The session of a client at the other end of a connection. It receives the client's *parts* (the units of a
    frame, for example a publish or a report) and passes them to :class:`Sessions`. It sends replies and letters to the
    client."""

    def __init__(self, sessions: Sessions, connection: Connection, client: str, who: Who = TOKEN) -> None:
        self.client = client
        self.rights = sessions.rights(who)
        self.forbidden: dict[str, str] = {}
        self.address = ""
        self.listening = False
        self.handed: list[str] = []
        self._sessions = sessions
        self._connection = connection
        self._welcomed = False
        self._ended = False
        self._rest: deque[wire.AnyPart] = deque()
        """Parts that have arrived and are not yet handled."""
        connection.trust(server=False)
        sessions.begin(self)

    def welcome(self, address: str, last: int) -> None:
        self._welcomed = True
        self._connection.send([wire.Welcome(self._sessions.server, address, last)])

    def reply(self, reply: Accepted | Refused) -> None:
        if not self._welcomed:
            return
        if isinstance(reply, Accepted):
            self._connection.send([wire.Accepted(reply.number)])
        else:
            self._connection.send([wire.Refused(reply.number, reply.count, reply.reason, reply.retry, reply.code)])

    def deliver(self, letters: list[Letter]) -> None:
        if self._sessions.is_current(self):
            self._connection.send([wire.Deliver(encode_train(letters))])

    def end(self, reason: str, code: str) -> None:
        self._ended = True
        if code == MOVED:
            self._connection.send([wire.Bye(reason, False, MOVED, self._sessions.moved_to)])
        self._connection.close(reason, final=code == REPLACED, code=code)

    # From the connection.

    def received(self, parts: list[wire.AnyPart]) -> None:
        if self._rest:
            self._rest.extend(parts)
        elif len(parts) > limits.session_parts_max:
            self._rest.extend(parts)
            self._connection.busy(True)
            self._take_some()
        else:
            self._handle(parts)

    def _take_some(self) -> None:
        """Handle some of the parts in ``_rest`` now, and the others in the driver's next turns (calls of
        ``Driver.turn``)."""
        rest = self._rest
        self._handle([rest.popleft() for _ in range(min(len(rest), limits.session_parts_max))])
        if rest:
            self._sessions.defer(self._go_on)
        else:
            self._connection.busy(False)

    def _go_on(self) -> None:
        if self._rest:
            try:
                self._take_some()
            except WireError as error:
                self._rest.clear()
                break_off(self._connection, error, client=True)

    def _handle(self, parts: list[wire.AnyPart]) -> None:
        sessions, pinged = self._sessions, False
        for part in parts:
            if isinstance(part, wire.Publish):
                fault = sessions.malformed(self.client, part)
                if fault:
                    raise WireError(f"malformed publish from client {self.client}: {fault}", "bad-publish")
                sent = part.number, part.to, part.type, part.bodies, part.ask, part.context, part.begun
                sessions.publish(self, *sent)
            elif isinstance(part, wire.Done):
                sessions.done(self, part.letters, part.dead)
            elif isinstance(part, wire.Listen):
                sessions.listen(self)
            elif isinstance(part, wire.Ping):
                pinged = True
            elif isinstance(part, wire.Bye):
                if part.final:
                    sessions.leave(self)
            elif not isinstance(part, wire.Pong):
                raise WireError(f"unexpected {type(part).__name__} from client {self.client}", "unexpected-part")
        if pinged:
            self._connection.send([wire.Pong()])

    def closed(self, reason: str, now: float) -> None:
        self._rest.clear()
        self._sessions.finish(self, "" if self._ended else reason, self._connection.code)

    def writable(self) -> None:
        return
