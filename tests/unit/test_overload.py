"""The verdict of the overload trial: it notices lost messages, slow answers and memory without bound."""

from pathlib import Path
from typing import Any

import pytest

from antecede.errors import MailboxFullError
from antecede.live.client.bus import Ticket
from campaigns.crowd import Offer
from campaigns.overload import Settings, Trial


def _trial(tmp_path: Path, **figures: Any) -> Trial:
    trial = Trial(tmp_path, Settings(9.0, 3.0, 10, 500, 100.0), lambda text: None)
    trial._times += [0.01] * 985 + [0.2] * 15
    trial._memory["s1"] += [(0.0, 50), (4.0, 90), (8.0, 95)]
    good = {"accepted": 1_000, "handled": 1_000, "news": 30, "news_waiting": 20, "news_dead": 10, "stuck": 2}
    for name, value in {**good, "stuck_waiting": 1, "stuck_dead": 1, **figures}.items():
        setattr(trial.result, name, value)
    return trial


@pytest.mark.parametrize(
    ("figures", "found"),
    [
        ({"handled": 999}, "1000 messages were accepted, but 999 handled"),
        ({"handled": 1_001}, "1000 messages were accepted, but 1001 handled"),
        ({"news_dead": 9}, "of 30 news, 20 wait and 9 are dead"),
        ({"stuck_dead": 0}, "of 2 messages to stuck, 1 wait and 0 are dead"),
    ],
)
def test_what_is_lost_or_repeated_is_found(tmp_path: Path, figures: dict[str, int], found: str) -> None:
    trial = _trial(tmp_path, **figures)
    trial._judge()
    assert found in trial.result.found


def test_memory_and_times(tmp_path: Path) -> None:
    trial = _trial(tmp_path)
    trial._judge()
    result = trial.result
    assert result.found == ["p99 of the probes is 200.0 ms: expected at most 100"]
    assert (result.p50_ms, result.worst_ms, result.probes) == (10.0, 200.0, 1_000)
    assert (result.peak_mib["s1"], result.late_mib["s1"]) == (95, (90, 95))
    trial._memory["s1"].append((8.5, 501))
    trial._judge()
    assert "s1 used 501 MiB: expected at most 500" in result.found


def test_an_offer_counts_accepted_and_refused_messages() -> None:
    offer = Offer()
    tickets = [Ticket(number, "sink", ("sink",), "Item", False) for number in (1, 3, 4)]
    for ticket, number in ((tickets[0], 1), (tickets[0], 2), (tickets[1], 3), (tickets[2], 4)):
        offer.add(ticket, number)
    tickets[0].settle()
    tickets[1].settle(MailboxFullError("full"))
    assert offer.count(), "one is open"
    assert (offer.offered, offer.accepted, offer.refused, offer.digest) == (4, 2, 1, 3)
    tickets[2].settle()
    assert not offer.count()
    assert (offer.accepted, offer.digest) == (3, 7)
