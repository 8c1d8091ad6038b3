"""The kernel and the network of all simulated worlds."""

from random import Random

from antecede.simulator.draws import parse_draw
from antecede.simulator.kernel import Kernel, Network


def test_events_take_place_by_time_and_then_as_they_were_scheduled() -> None:
    kernel = Kernel()
    seen: list[tuple[float, str]] = []

    def note(word: str) -> None:
        seen.append((kernel.now, word))
        if word == "c":
            kernel.at(kernel.now, note, "at once")

    for time, word in ((2.0, "c"), (1.0, "a"), (2.0, "d"), (1.0, "b"), (5.0, "late")):
        kernel.at(time, note, word)
    kernel.step()
    assert seen == [(1.0, "a")]
    kernel.run_until(4.0)
    assert [word for _, word in seen] == ["a", "b", "c", "d", "at once"]
    kernel.run_until()
    assert seen[-1] == (5.0, "late")


def _carried(count: int = 400, **settings: float | bool) -> list[int]:
    """The packets that arrive on one link, in the order of their arrival."""
    kernel = Kernel()
    network = Network(kernel, parse_draw("exponential:1", Random(1)), Random(2), **settings)  # type: ignore[arg-type]
    arrived: list[int] = []
    for number in range(count):
        network.carry(0, 1, arrived.append, number)
    kernel.run_until()
    return arrived


def test_links_reorder_unless_they_are_fifo() -> None:
    assert sorted(_carried()) == list(range(400))
    assert _carried() != list(range(400))
    assert _carried(fifo=True) == list(range(400))


def test_loss_and_duplicates_strike_their_share() -> None:
    assert 100 < len(_carried(loss=0.5)) < 300
    twice = _carried(duplicate=0.5)
    assert set(twice) == set(range(400))
    assert 500 < len(twice) < 700


def test_a_cut_network_carries_nothing_across() -> None:
    kernel = Kernel()
    network = Network(kernel, lambda: 1.0)
    network.cut = {0, 1}
    arrived: list[str] = []
    for source, target in ((0, 1), (1, 2), (2, 0), (2, 3)):
        network.carry(source, target, arrived.append, f"{source}{target}")
    kernel.run_until()
    assert arrived == ["01", "23"]
