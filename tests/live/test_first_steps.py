"""What a newcomer gets wrong, and is told: in one line, with the place, and with what to do."""

import os
import re
import signal
import subprocess
import sys
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


def test_up_says_which_server_was_killed(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1", "s2"]}, {})
    command = [sys.executable, "-m", "antecede", "up", str(world.file), "--data", str(world.folder / "data")]
    errors = world.folder / "errors"
    with errors.open("wb") as log:
        up = subprocess.Popen(command, env=world.environment, cwd=world.folder, stderr=log)
    try:
        world.until(lambda: errors.read_text().count("peer-connected") == 2, "both servers talk")
        listed = subprocess.run(
            ["ps", "-ww", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True
        ).stdout
        (second,) = re.findall(rf"^ *(\d+) +{up.pid} .*--server s2 ", listed, re.MULTILINE)
        os.kill(int(second), signal.SIGKILL)
        assert up.wait(30) == 2
    finally:
        up.kill()
        up.wait()
    said = [line for line in errors.read_text().splitlines() if line.startswith("antecede: s")]
    again = "run the same command again to continue: nothing accepted is lost"
    assert said == ["antecede: s2 ended; stopping the others", f"antecede: s2 was killed (signal 9); {again}"]
    assert errors.read_text().splitlines()[-1] == said[-1], "the cause comes last"


def test_the_reason_why_a_server_cannot_start_comes_last(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1", "s2"]}, {"echo": ("s2", "live_agents:Ecoh")})
    answer = world.command("up", str(world.file))
    assert answer.returncode == 2
    last = answer.stderr.splitlines()[-1]
    assert last.startswith("antecede: s2 ended (exit code 2): ")
    assert "module live_agents has no Ecoh; did you mean Echo?" in last


def test_data_that_is_a_file(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1"]}, {})
    for command in (("up", str(world.file)), ("serve", str(world.file), "--server", "s1")):
        answer = world.command(*command, "--data", str(world.file))
        assert answer.returncode == 2
        assert answer.stderr == f"antecede: --data {world.file}: is a file, expected a directory\n"


def test_send_says_that_it_was_accepted_and_leaves_no_dead_letter(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1", "s2"]}, {"echo": ("s2", "live_agents:Echo")})
    world.start(options=("--durability", "os"))
    sent = world.command("send", str(world.file), "echo", "Ping", '{"number": 5}')
    assert sent.returncode == 0
    assert sent.stdout.startswith("accepted by s1; ")
    assert f"antecede dead list {world.file}" in sent.stdout
    world.until(lambda: world.status()["servers"]["s2"]["reactions"] == 1, "it was replied to")
    unknown = world.command("send", str(world.file), "ecoh", "Ping", "{}")
    assert unknown.stderr.endswith(
        "unknown agent 'ecoh': neither in the topology nor name@server with a known server; did you mean echo?\n"
    )
    misnamed = world.command("send", str(world.file), "echo", "Pin", "{}", "--ask")
    assert misnamed.stderr.endswith("Echo has no handler for Pin: it has Ping\n")
    asked = world.command("send", str(world.file), "echo", "Ping", '{"number": 6}', "--ask")
    assert '"number": 6' in asked.stdout
    (dead,) = world.command("dead", "list", str(world.file)).stdout.splitlines()
    assert "has no handler for Pin:" in dead, "and no other letter"
    world.until(lambda: world.status()["servers"]["s1"]["waiting_letters"] == 0, "it was passed over")


def test_nobody_is_there(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1"]}, {"echo": ("s1", "live_agents:Echo")})
    answer = world.command("send", str(world.file), "echo", "Ping", "--timeout", "0.5")
    assert answer.returncode == 2
    waiting, end = answer.stderr.splitlines()
    why = "connection refused; is `antecede up` or `antecede serve` running?"
    assert waiting == f"antecede: waiting for {world.addresses['s1']} ({why})"
    assert end == f"antecede: no answer from {world.addresses['s1']}: {why}"


def test_a_port_that_is_taken(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1"]}, {})
    world.start(options=("--durability", "memory"))
    for loop in ("asyncio", "uvloop"):
        world.environment["ANTECEDE_LOOP"] = loop
        answer = world.command("serve", str(world.file), "--server", "s1", "--durability", "memory")
        assert answer.returncode == 2
        assert answer.stderr.endswith("; is another antecede up or serve running?\n")
