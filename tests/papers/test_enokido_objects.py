"""Enokido, Higaki, Takizawa, *Protocol for a Group of Objects*: its figures and its definitions, one test a claim."""

from collections.abc import Iterable

import pytest

from antecede.messages import (
    ABORT,
    COPY,
    REQUEST,
    RESPONSE,
    Deliver,
    Effects,
    Label,
    Message,
    Packet,
    Send,
    Verdict,
    mask_of,
)
from antecede.orders import CLOCK, Objects, Stamp, receipt

I, J, K = 0, 1, 2  # noqa: E741 (as the paper calls them)
ALPHABET = "ijk"


class Group:
    """Objects of which every packet is let through by hand, but for the time, which is told at once."""

    def __init__(self, members: int = 3, conflicts: str = "none") -> None:
        self.objects = [Objects(me, members, conflicts=conflicts) for me in range(members)]
        self.air: dict[tuple[str, int], Packet] = {}
        self.delivered: list[list[str]] = [[] for _ in range(members)]

    def send(self, name: str, source: int, to: Iterable[int], label: Label) -> None:
        self._put(source, self.objects[source].send(Message(name, source, mask_of(to), b"", label)))

    def arrive(self, name: str, at: int) -> Verdict:
        verdict, effects = self.objects[at].receive(self.air.pop((name, at)))
        self._put(at, effects)
        return verdict

    def stamp(self, name: str, at: int) -> Stamp:
        stamp: Stamp = self.air[name, at].stamp
        return stamp

    def _put(self, me: int, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):
                self.delivered[me].append(effect.message.id)
            elif isinstance(effect, Send) and effect.packet.kind == COPY:
                self.air[effect.packet.subject, effect.packet.target] = effect.packet
            elif isinstance(effect, Send) and effect.packet.kind == CLOCK:
                target = effect.packet.target
                self._put(target, self.objects[target].receive(effect.packet)[1])


def number(source: int, event: tuple[int, int]) -> str:
    """An event number as the paper writes it."""
    return f"{event[0]}{ALPHABET[source]}{event[1]}"


def row(group: Group, name: str, source: int, at: int, members: int = 3) -> tuple[str, list[str], list[str]]:
    """A row of Table 1: tno, V, RV."""
    stamp = group.stamp(name, at)
    carried = {member: (clock, no) for member, clock, no in stamp.vector}
    received = receipt(source, stamp)
    shown = [[number(k, v[k]) if k in v else "0" for k in range(members)] for v in (carried, received)]
    return number(source, (stamp.clock, stamp.no)), shown[0], shown[1]


def test_fig_7_receipt_vector() -> None:
    """m.tno = 1i0 and m.V = ⟨0, 0⟩; o_j gives it RV = ⟨1i0, 0⟩, while m.V is still ⟨0, 0⟩."""
    group = Group(2)
    group.send("m", I, [J], Label(REQUEST, "op2", "x/1", "op1", "x"))
    assert row(group, "m", I, J, 2) == ("1i0", ["0", "0"], ["1i0", "0"])


def test_fig_6_the_instance_knows_what_fig_7_calls_rv() -> None:
    """After sending m, op1's vector is ⟨1i0, 0⟩; on receipt op2 changes its own to ⟨1i0, 0⟩, and when it commits o_j's
    is the same. Printed is also that *m carries* ⟨1i0, 0⟩: that is Fig. 7's RV, not its V."""
    group = Group(2, "op2~op3")
    group.send("m", I, [J], Label(REQUEST, "op2", "x/1", "op1", "x"))
    assert group.objects[I].vectors["x"] == {I: (1, 0)}
    group.arrive("m", J)
    assert group.objects[J].vectors["x/1"] == {I: (1, 0)}
    group.objects[J].forget("x/1")
    # What o_j keeps is kept by operation: it reaches those, and only those, that conflict with op2.
    assert group.objects[J].vector_of("later", "op3") == {I: (1, 0)}
    assert group.objects[J].vector_of("later", "op4") == {}


def _fig_8(conflicts: str = "op2~op3") -> Group:
    """op1 at o_i calls op2 at o_j and o_k; op2 at o_j calls op3 at o_i and o_k (as printed: "o_i and o_j", but Fig. 8
    and the text after it compute op3 at o_k); at o_k op2 and op3 are interleaved; m3 and m4 answer to o_i."""
    group = Group(3, conflicts)
    group.send("m1", I, [J, K], Label(REQUEST, "op2", "x/1", "op1", "x"))
    return group


def test_table_1_rows_m1_and_m2() -> None:
    group = _fig_8("op8~op9")
    assert row(group, "m1", I, J) == ("1i0", ["0", "0", "0"], ["1i0", "0", "0"])
    assert row(group, "m1", I, K) == row(group, "m1", I, J)
    assert group.arrive("m1", J) is Verdict.DELIVER
    group.send("m2", J, [I, K], Label(REQUEST, "op3", "x/1/1", "op2", "x/1"))
    assert row(group, "m2", J, K) == ("2j0", ["1i0", "0", "0"], ["1i0", "2j0", "0"])


def test_table_1_row_m3() -> None:
    """op2 at o_k answers: its first send."""
    group = _fig_8("op8~op9")
    group.arrive("m1", K)
    group.send("m3", K, [I], Label(RESPONSE, "op1", "x", "op2", "x/1", True))
    assert row(group, "m3", K, I) == ("2k0", ["1i0", "0", "0"], ["1i0", "0", "2k0"])


def _m3_and_m4(conflicts: str) -> Group:
    group = _fig_8(conflicts)
    group.arrive("m1", J)
    group.arrive("m1", K)
    group.send("m2", J, [I, K], Label(REQUEST, "op3", "x/1/1", "op2", "x/1"))
    group.arrive("m2", I)
    group.send("m3", K, [I], Label(RESPONSE, "op1", "x", "op2", "x/1", True))
    group.arrive("m2", K)
    group.send("m4", K, [I], Label(RESPONSE, "op1", "x", "op3", "x/1/1", True))
    return group


def test_fig_8_m4_is_delivered_without_waiting_for_m3() -> None:
    """op2 and op3 are compatible at o_k, so m3 ∥ m4, although o_k sent m3 first: causal order would hold m4."""
    group = _m3_and_m4("op8~op9")
    assert group.arrive("m4", I) is Verdict.DELIVER
    assert group.arrive("m3", I) is Verdict.DELIVER
    assert group.delivered[I] == ["m2", "m4", "m3"]


def test_fig_8_if_they_conflict_m4_waits_for_m3() -> None:
    """The same messages with op2 ~ op3: now m3 → m4, and both go to op1 (SO 1-1)."""
    group = _m3_and_m4("op2~op3")
    assert group.arrive("m4", I) is Verdict.HOLD
    group.arrive("m3", I)
    assert group.delivered[I] == ["m2", "m3", "m4"]


def test_table_1_m4_and_m5_contradict_the_definition() -> None:
    """m4 is printed with V = ⟨0, 0, 0⟩. But m2 → m4 by (2-1): op3 at o_k received m2 and sent m4, and Table 1 itself
    gives m2 the vector ⟨1i0, 0, 0⟩ for the same reason (op2 received m1). m5 is printed with V_j = 0 although op2 and
    op3 conflict in o_j and op2 sent m2 there: m2 → m5 by (1-2). The definition wins."""
    group = _m3_and_m4("op8~op9")
    tno, carried, received = row(group, "m4", K, I)
    assert carried == ["1i0", "2j0", "0"]
    assert received == ["1i0", "2j0", tno]
    assert tno == "3k1", "its second send: a number that counts sends, where 3k0 repeats the count of m3"

    later = Group(3, "op2~op3")
    later.send("m1", I, [J], Label(REQUEST, "op2", "x/1", "op1", "x"))
    later.arrive("m1", J)
    later.send("m2", J, [I], Label(REQUEST, "op3", "x/1/1", "op2", "x/1"))
    later.send("m5", J, [I], Label(RESPONSE, "op9", "y", "op3", "y/1"))
    assert row(later, "m5", J, I)[1] == ["1i0", "2j0", "0"]


@pytest.mark.parametrize(
    ("case", "by_1", "by_2", "conflicts", "related"),
    [
        ("S1", ("op1", "x"), ("op1", "x"), "none", True),
        ("S2.1, conflicting", ("op1", "x"), ("op2", "y"), "op1~op2", True),
        ("S2.1, compatible", ("op1", "x"), ("op2", "y"), "op1~op3", False),
    ],
)
def test_send_send_precedence(
    case: str, by_1: tuple[str, str], by_2: tuple[str, str], conflicts: str, related: bool
) -> None:
    group = Group(2, conflicts)
    group.send("m1", I, [J], Label(REQUEST, "op", "a", *by_1))
    group.send("m2", I, [J], Label(REQUEST, "op", "b", *by_2))
    assert (row(group, "m2", I, J, 2)[1][I] == "1i0") is related, case


@pytest.mark.parametrize(
    ("case", "received_by", "sent_by", "conflicts", "related"),
    [
        ("R1", ("op1", "x"), ("op1", "x"), "none", True),
        ("R2.1, conflicting", ("op1", "x"), ("op2", "y"), "op1~op2", True),
        ("R2.1, compatible", ("op1", "x"), ("op2", "y"), "op1~op3", False),
    ],
)
def test_receive_send_precedence(
    case: str, received_by: tuple[str, str], sent_by: tuple[str, str], conflicts: str, related: bool
) -> None:
    group = Group(3, conflicts)
    group.send("m1", I, [J], Label(REQUEST, *received_by))
    group.arrive("m1", J)
    group.send("m2", J, [K], Label(REQUEST, "op", "a", *sent_by))
    assert (row(group, "m2", J, K)[1][I] == "1i0") is related, case


def test_conflict_is_not_transitive() -> None:
    """Two deposits conflict with an audit and not with each other: no classes, so a vector for each operation."""
    group = Group(2, "deposit~audit")
    group.send("m1", I, [J], Label(REQUEST, "note", "", "deposit"))
    assert group.objects[I].vector_of("", "deposit") == {}
    assert group.objects[I].vector_of("", "audit") == {I: (1, 0)}


def test_conflicting_requests_in_one_order_everywhere() -> None:
    """C1 (Fig. 4): two requests to o_i and o_j, unrelated, conflicting; they arrive in different orders."""
    group = Group(3, "op1~op2")
    group.send("m1", J, [I, J], Label(REQUEST, "op1", "x", "a"))
    group.send("m2", K, [I, J], Label(REQUEST, "op2", "y", "b"))
    group.arrive("m1", I)
    group.arrive("m2", I)
    group.arrive("m2", J)
    group.arrive("m1", J)
    assert group.delivered[I] == group.delivered[J]
    assert len(group.delivered[I]) == 2


def test_numbers_compare_as_numbers() -> None:
    """Printed is the concatenation of the parts, and as text "10i0" < "2j0"."""
    group = Group(2, "op~op")
    for step in range(10):
        group.send(f"m{step}", I, [J], Label(REQUEST, "op", "", "op"))
    last = row(group, "m9", I, J, 2)[0]
    assert last == "10i9"
    assert last < "2j0"
    for step in reversed(range(10)):
        group.arrive(f"m{step}", J)
    assert group.delivered[J] == [f"m{step}" for step in range(10)]


def test_stable_needs_more_than_the_next_of_the_same_sender() -> None:
    """Condition (1): m2 is followed by another message of its sender, and m1, from a third object, is still missing."""
    group = Group(3, "op~op")
    group.send("m1", I, [K], Label(REQUEST, "op", "", "op"))
    group.send("m0", I, [J], Label(REQUEST, "op", "", "op"))
    group.arrive("m0", J)
    group.send("m2", J, [K], Label(REQUEST, "op", "", "op"))
    group.send("later", J, [K], Label(REQUEST, "op", "", "op"))
    assert group.arrive("later", K) is Verdict.HOLD
    assert group.arrive("m2", K) is Verdict.HOLD
    group.arrive("m1", K)
    assert group.delivered[K] == ["m1", "m2", "later"]


def test_anything_whose_predecessors_are_in_is_delivered() -> None:
    """Not only the top of the queue: a compatible request passes one that waits."""
    group = Group(3, "op~op")
    group.send("m1", I, [K], Label(REQUEST, "op", "", "op"))
    group.send("m2", I, [K], Label(REQUEST, "op", "", "op"))
    group.send("m3", I, [K], Label(REQUEST, "other", "", "op"))
    assert group.arrive("m2", K) is Verdict.HOLD
    assert group.arrive("m3", K) is Verdict.DELIVER
    assert group.delivered[K] == ["m3"]


def test_a_response_never_waits_for_a_request() -> None:
    """SO (1-2) as printed holds a response back behind a request that cannot run before its instance ends."""
    group = Group(3, "op~op")
    group.send("request", I, [K], Label(REQUEST, "op", "y", "op"))
    group.send("call", I, [J], Label(REQUEST, "op", "x/1", "op"))
    group.arrive("call", J)
    group.send("response", J, [K], Label(RESPONSE, "op", "x", "op", "x/1"))
    assert group.arrive("response", K) is Verdict.DELIVER
    assert group.arrive("request", K) is Verdict.DELIVER


def test_an_abort_comes_after_its_request() -> None:
    """Both go to one instance (SO 1-1)."""
    group = Group(2, "none")
    group.send("request", I, [J], Label(REQUEST, "op", "x/1", "op", "x"))
    group.send("abort", I, [J], Label(ABORT, "op", "x/1", "op", "x"))
    assert group.arrive("abort", J) is Verdict.HOLD
    group.arrive("request", J)
    assert group.delivered[J] == ["request", "abort"]
