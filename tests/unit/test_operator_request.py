"""An operator's request to a server of an older version."""

from antecede import wire
from antecede.errors import AntecedeError
from antecede.server.operations.operator import OperatorRequest


class _Connection:
    """Keeps what it is told to send."""

    remote = "127.0.0.1:1"

    def __init__(self) -> None:
        self.sent: list[wire.AnyPart] = []
        self.open = True

    def trust(self, server: bool) -> None:
        pass

    def send(self, parts: list[wire.AnyPart]) -> None:
        self.sent += parts

    def close(self, reason: str, final: bool = False, code: str = "") -> None:
        self.open = False


def test_a_server_that_knows_no_long_requests() -> None:
    """It refuses the announcement, and its reason does not name the command that the user gave."""
    answers: list[AntecedeError | None] = []
    connection = _Connection()
    request = OperatorRequest(
        connection,  # type: ignore[arg-type]
        wire.Request("", "topology", ["stage"]),
        lambda _, error: answers.append(error),
        long=True,
    )
    request.received([wire.Answer(False, b"\"unknown request 'long' with 0 arguments\"")])
    assert [str(error) for error in answers] == ["this command needs a newer version of the server"]
    assert not connection.open
    assert len(connection.sent) == 1, "the request itself is not sent"
