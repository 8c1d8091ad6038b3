"""Garg problem 12.4: *assume that all messages are broadcast messages; how can you simplify the algorithm?*

By one counter a process. Under one and the same sequence of sends and arrivals the two deliver the same messages in
the same steps; and over all interleavings of a small program they reach the same joint delivery orders.
"""

from antecede.messages import Deliver, Message, Packet, Send, Verdict
from antecede.orders import parse
from antecede.simulator.draws import below, stream
from antecede.simulator.explorer import ProgramSend, explore


def test_same_verdict_and_deliveries_in_every_step(seeds: int) -> None:
    held = 0
    for seed in range(seeds):
        rng = stream(seed, "12.4")
        members = 2 + below(rng, 6)
        everyone = (1 << members) - 1
        orders = {name: [parse(name).create(me, members) for me in range(members)] for name in ("vector", "matrix")}
        flying: list[dict[str, Packet]] = []
        for step in range(10_000):
            if step < 25 and (not flying or rng.random() < 0.4):
                source = below(rng, members)
                message = Message(f"m{step}", source, everyone if rng.random() < 0.5 else everyone & ~(1 << source))
                sent = {name: orders[name][source].send(message) for name in orders}
                copies = {
                    name: {e.packet.target: e.packet for e in effects if isinstance(e, Send)}
                    for name, effects in sent.items()
                }
                flying += [{name: copies[name][target] for name in orders} for target in sorted(copies["matrix"])]
            elif flying:
                packets = flying.pop(below(rng, len(flying)))
                answers = {name: orders[name][packet.target].receive(packet) for name, packet in packets.items()}
                delivered = [
                    (verdict, [e.message.id for e in effects if isinstance(e, Deliver)])
                    for verdict, effects in answers.values()
                ]
                assert delivered[0] == delivered[1], f"seed {seed}, step {step}"
                held += delivered[0][0] is Verdict.HOLD
            elif step >= 25:
                break
        assert not any(order.held() for group in orders.values() for order in group)
    assert held > seeds


def test_same_joint_delivery_orders() -> None:
    others = (0b110, 0b101, 0b011)
    program = (
        (ProgramSend(others[0], name="a"),),
        (ProgramSend(others[1], name="b"), ProgramSend(0b111, after=1, name="c")),
        (ProgramSend(others[2], after=1, name="d"),),
    )
    vector, matrix = (explore(order, program=program) for order in ("vector", "matrix"))
    assert vector.violation is None
    assert matrix.violation is None
    assert vector.outcomes == matrix.outcomes
    assert len(vector.outcomes) > 10
