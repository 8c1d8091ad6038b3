"""What a newcomer gets wrong, and is told: in one line, with the place, and with what to do."""

from collections.abc import Callable
from typing import Any


def test_a_handler_without_annotation(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1"]}, {"x": ("s1", "typo:X")})
    source = "from antecede import Agent\nclass X(Agent):\n    def on_go(self, go, ctx): ...\n"
    (world.folder / "typo.py").write_text(source)
    answer = world.command("up", str(world.file))
    assert answer.returncode == 2
    said = [line for line in answer.stderr.splitlines() if line.startswith("s1 | ")]
    assert said == ["s1 | antecede: X.on_go: expected (self, notification: SomeNotification, ctx: Context)"]


def test_a_bug_in_a_handler_is_told_with_its_place(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1"]}, {"shop": ("s1", "shop:Shop")})
    lines = ["from antecede import Agent, Context, Notification", "class Buy(Notification): ...", "class Shop(Agent):"]
    lines += ["    def on_buy(self, buy: Buy, ctx: Context) -> None:", "        total({})", "def total(prices):"]
    lines += ["    return prices['tea']"]
    (world.folder / "shop.py").write_text("\n".join(lines))
    world.start(options=("--durability", "memory"))
    answer = world.command("send", str(world.file), "shop", "Buy", "--ask", "--timeout", "30")
    assert "KeyError: 'tea' (shop.py:7 in total)" in answer.stderr
    assert "KeyError: 'tea' (shop.py:7 in total)" in world.command("dead", "list", str(world.file)).stdout
    assert world.log("s1").count("    Traceback (most recent call last):") == 1, "once, not at every try"
