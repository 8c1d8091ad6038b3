"""What objects keep, take and answer: plain values, which a crash does not change."""

from antecede.objects import Answered, Object, group, operation


def test_a_crash_changes_no_types() -> None:
    """What comes back from the disk is what was there: tuples are lists from the beginning."""

    class Pairs(Object):
        def __init__(self) -> None:
            self.pair = (0, 0)

        @operation
        def shift(self, by: tuple[int, int]) -> list[str]:
            self.pair = (self.pair[1], by[0])
            return [type(self.pair).__name__, type(by).__name__]

    site = group({"a": Pairs}).create(0, 1)
    _, effects = site.start("shift", [(1, 2)])
    again = group({"a": Pairs}).create(0, 1)
    again.restore(site.snapshot())
    assert again.state == site.state == {"pair": [0, 1]}
    assert [effect.answer for effect in effects if isinstance(effect, Answered)] == [["tuple", "list"]]


def test_values_must_be_plain() -> None:
    class Odd(Object):
        @operation
        def odd(self) -> object:
            return object()

    _, effects = group({"a": Odd}).create(0, 1).start("odd")
    (answered,) = [effect for effect in effects if isinstance(effect, Answered)]
    assert not answered.ok
    assert "not a plain value" in answered.answer
