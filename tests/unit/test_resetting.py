"""A domain is reset only if one of its servers has lost data; otherwise letters would come twice for nothing."""

import json
from typing import Any

import pytest

from antecede.cli import run
from antecede.errors import UsageError
from antecede.server import next_generation


def _statuses(
    generations: tuple[int, ...], stopped: dict[str, str] | None = None, apart: bool = False
) -> dict[str, dict[str, Any]]:
    """Return the statuses of s1, s2…; ``stopped``: the domains with a stopped link, by server."""
    names = [f"s{place}" for place in range(1, len(generations) + 1)]
    return {
        name: {
            "server": name,
            "domains": {
                "A": {
                    "generation": generation,
                    "links": {peer: {"connected": not apart} for peer in names if peer != name},
                }
            },
            "stopped": [{"domain": of, "peer": "s1"} for one, of in (stopped or {}).items() if one == name],
        }
        for name, generation in zip(names, generations, strict=True)
    }


def test_a_domain_without_lost_data_is_not_reset() -> None:
    with pytest.raises(UsageError, match=r"domain A must not be reset: none of its links is stopped$"):
        next_generation("A", _statuses((3, 3)))
    with pytest.raises(UsageError, match="must not be reset"):
        next_generation("A", _statuses((0, 0), {"s2": "B"}))
    with pytest.raises(UsageError, match=r"not connected: s1 with s2 \(lost data is noticed when servers connect\)"):
        next_generation("A", _statuses((0, 0), apart=True))


def test_a_domain_with_lost_data_is_reset_at_all_its_members() -> None:
    assert next_generation("A", _statuses((0, 0, 0), {"s2": "A"})) == 1, "one link of three is stopped"
    assert next_generation("A", _statuses((2, 0))) == 3, "an old copy was put back, or a reset was interrupted"


def test_statuses_of_others_are_not_trusted() -> None:
    with pytest.raises(UsageError, match="server s2 is not in domain A"):
        next_generation("A", {**_statuses((0, 0), {"s1": "A"}), "s2": {"domains": {}, "stopped": []}})
    with pytest.raises(UsageError, match="unreadable status of server s1"):
        next_generation("A", {"s1": {"domains": [1]}})


@pytest.mark.parametrize("stopped", [None, {"s2": "A"}])
def test_the_command_asks_all_members_first(
    stopped: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(
        '[servers]\ns1 = "tcp://127.0.0.1:1"\ns2 = "tcp://127.0.0.1:2"\n[domains]\nA = { servers = ["s1", "s2"] }\n'
    )
    forgot: list[tuple[str, ...]] = []

    def asked(address: Any, access: Any, command: str, *arguments: str) -> Any:
        if command == "forget":
            forgot.append(arguments)
            return {}
        return _statuses((4, 4), stopped)[f"s{address.port}"]

    monkeypatch.setattr("antecede.cli.servers.ask_server", asked)
    code = run(["topology", "forget", str(file), "A"])
    said = capsys.readouterr()
    if stopped is None:
        assert (code, forgot) == (2, [])
        assert said.err == "antecede: domain A must not be reset: none of its links is stopped\n"
    else:
        assert (code, forgot) == (0, [("A", "5"), ("A", "5")])
        assert [json.loads(line) for line in said.out.splitlines()] == [{}, {}]
