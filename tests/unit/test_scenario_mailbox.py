"""Messages of programs that receive: who can choose, and who must take the head."""

from antecede.link import Frame
from antecede.messages import COPY, Message, Send
from antecede.orders import Order, parse
from antecede.simulator.machine import FLAT, InTransit
from antecede.simulator.player import Flight, Programs, play
from antecede.simulator.scenario import Parcel, parse_scenario

_names = ("P1", "P2", "P3")


def _sent(order: Order, name: str, to: int) -> Flight:
    message = Message(name, order.me, 1 << to)
    (packet,) = [effect.packet for effect in order.send(message) if isinstance(effect, Send)]
    return Flight(Parcel(COPY, name), _names[order.me], InTransit(FLAT, _names[to], Frame(1, 1, 1, b"")), packet)


def test_selective_takes_what_the_order_would_deliver() -> None:
    first, second, third = (parse("matrix").create(me, 3) for me in range(3))
    x = _sent(first, "x", 2)
    y = _sent(first, "y", 1)
    second.receive(y.packet)
    z = _sent(second, "z", 2)
    programs = Programs(_names, ["P3"], selective=True)
    programs.choices["P3"][z] = None
    assert programs.choose("P3", third, None) is None
    programs.choices["P3"][x] = None
    assert programs.choose("P3", third, "P2") is None
    assert programs.kept("P3") == ["z", "x"]
    assert programs.choose("P3", third, None) is x
    assert not programs.choosing(x)
    third.receive(x.packet)
    assert programs.choose("P3", third, "P1") is None
    assert programs.choosing(z)
    assert programs.choose("P3", third, "P2") is z


def test_selective_forgets_in_a_crash() -> None:
    lines = b"processes P1 P2\norder matrix\nsend x P1 -> P2\narrive x P2\nexpect P2 holds x\ncrash P2\n"
    crashed = play(parse_scenario(lines + b"receive P2\n", "crash.txt"))
    assert crashed.holds
    assert crashed.world.programs.choices == {"P2": {}}
    again = b"restart P2\ndrain\nexpect P2 holds x\nreceive P2\nexpect P2 delivered x\n"
    assert play(parse_scenario(lines + again, "crash.txt")).holds


def test_queue_gives_its_head_only() -> None:
    programs = Programs(_names, ["P2"], selective=False)
    assert programs.take("P2", None) is None
    programs.queues["P2"].extend([("y", "P3"), ("x", "P1")])
    assert programs.take("P2", "P1") is None
    assert programs.take("P2", "P3") == "y"
    assert programs.take("P2", None) == "x"
