"""``antecede play`` on any bytes: an exit code and one clear line, never a traceback, never an endless play.

Three sources: bytes as they come, lines built from the language's own words, and good files with something changed.
"""

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antecede import cli
from antecede.errors import AntecedeError
from antecede.orders import names, parse
from antecede.simulator.player import Played, play
from antecede.simulator.scenario import parse_scenario

_scenarios = sorted((Path(__file__).parents[1] / "scenarios").glob("*.txt"))
_orders = [*names(), "buffer:pipelined=true", "buffer:multicast=hold-delivery", "skeen:causal=true"]


def _attempt(data: bytes, order: str | None, raw: bool) -> Played | AntecedeError:
    """Play, and let only those errors through that are our own mistakes."""
    try:
        return play(parse_scenario(data, "some file"), parse(order) if order else None, raw=raw)
    except AntecedeError as error:
        return error


def _try(data: bytes, order: str | None, raw: bool) -> None:
    result = _attempt(data, order, raw)
    if isinstance(result, AntecedeError):
        assert re.fullmatch(r"some file:\d+: .+", str(result))
        return
    record = result.world.record
    record.judge()
    record.diagram().text(100)
    for failure in result.failures:
        assert 1 <= failure.line <= len(result.world.scenario.text)


@given(st.binary(max_size=400), st.sampled_from(_orders), st.booleans())
def test_any_bytes(data: bytes, order: str, raw: bool) -> None:
    _try(data, order, raw)


_process = st.sampled_from(["P1", "P2", "P3"])
_message = st.sampled_from(["a", "b", "c", "d", "e"])
_kind = st.sampled_from(["ack", "release", "request", "token", "grant", "propose", "final", "announce"])
_parcel = st.one_of(_message, st.builds("{}({},{})".format, _kind, _message, _process))
_under = st.sampled_from(["", "", " under causal", " under none,fifo", " under total", " under buffer"])
_line = st.one_of(
    st.builds("send {} {} -> {}".format, _message, _process, _process),
    st.builds("send {} {} -> {},{}".format, _message, _process, _process, _process),
    st.builds("arrive {} {}".format, _parcel, _process),
    st.builds("arrive {} {} again".format, _parcel, _process),
    st.builds("lose {} {}".format, _parcel, _process),
    st.builds("receive {}".format, _process),
    st.builds("receive {} from {}".format, _process, _process),
    st.builds("crash {}".format, _process),
    st.builds("restart {}".format, _process),
    st.builds("wait {}".format, st.sampled_from(["0", "0.5", "3", "60"])),
    st.just("drain"),
    st.builds("expect {} delivered {} {}{}".format, _process, _message, _message, _under),
    st.builds("expect {} holds {}{}".format, _process, _message, _under),
    st.builds("expect {} not sent{}".format, _message, _under),
    st.builds("expect stuck{}".format, _under),
)
_declarations = st.sampled_from(
    [
        "processes P1 P2 P3",
        "processes P1 P2 P3\ncontrol manual",
        "domain A P1 P2\ndomain B P2 P3",
        "domain A P1 P2\ndomain B P2 P3\ndomain C P3 P1",
        "domain A P1 P2 pruned\ndomain B P1 P2 P3 buffer",
    ]
)


def _once(lines: list[str]) -> list[str]:
    """Each message sent once, before anybody speaks of it: so that many of the files can be played."""
    sends = {line.split()[1]: line for line in reversed(lines) if line.startswith("send")}
    others = [line for line in lines if not line.startswith("send") or sends.get(line.split()[1]) is line]
    return [f"send {name} P1 -> P2" for name in "abcde" if name not in sends] + others


@given(_declarations, st.lists(_line, max_size=25).map(_once), st.sampled_from(_orders), st.booleans())
@settings(max_examples=300)
def test_any_statements(declared: str, lines: list[str], order: str, raw: bool) -> None:
    _try("\n".join([declared, *lines]).encode(), order, raw)


@given(st.lists(_line, max_size=25).map(_once), st.sampled_from(_orders))
@settings(max_examples=200)
def test_whatever_happens_everything_arrives_in_the_end(lines: list[str], order: str) -> None:
    """With links, after everybody is back and the air is empty, every copy is delivered exactly once."""
    calm = [line for line in lines if line.split()[0] in ("send", "arrive", "lose", "crash", "restart", "wait")]
    calm = [line for line in calm if "(" not in line and not line.endswith("again")]
    down: set[str] = set()
    script = ["processes P1 P2 P3"]
    for line in calm:
        word, process = line.split()[0], line.split()[1]
        if (word == "send" and line.split()[2] in down) or (word == "crash" and process in down):
            continue
        if word == "restart" and process not in down:
            continue
        down = down | {process} if word == "crash" else down - {process} if word == "restart" else down
        script.append(line)
    # A sender that was down has not sent, and nobody can speak of that.
    sent = [line.split() for line in script if line.startswith("send")]
    known = {words[1] for words in sent}
    script = [line for line in script if line.split()[0] not in ("arrive", "lose") or line.split()[1] in known]
    script += [f"restart {process}" for process in sorted(down)] + ["drain"]
    result = _attempt("\n".join(script).encode(), order, raw=False)
    if isinstance(result, AntecedeError):
        # A copy that the script speaks of twice or that is for somebody else, or a broadcast that is none.
        assert re.search("arrived before|never put on the network|broadcasts only", str(result))
        return
    record = result.world.record
    wanted = sorted((target, words[1]) for words in sent for target in set(words[4].split(",")))
    assert sorted((process, m) for process, ms in record.delivered.items() for m in ms) == wanted
    verdict = record.judge()
    assert verdict is not None
    judged = [name for name in result.world.guarantees if name in verdict.orders]
    assert [name for name in judged if verdict.holds(name) is False] == []


@given(st.sampled_from(_scenarios), st.sampled_from(_orders), st.booleans(), st.randoms(use_true_random=False))
@settings(max_examples=300)
def test_changed_files(path: Path, order: str, raw: bool, dice: random.Random) -> None:
    lines = path.read_bytes().split(b"\n")
    for _ in range(dice.randint(1, 4)):
        place = dice.randrange(len(lines))
        change = dice.randrange(5)
        if change == 0:
            del lines[place]
            lines = lines or [b""]
        elif change == 1:
            lines.insert(dice.randrange(len(lines)), lines[place])
        elif change == 2:
            lines[place] = bytes(dice.randrange(256) if dice.random() < 0.1 else byte for byte in lines[place])
        elif change == 3:
            words = lines[place].split(b" ")
            dice.shuffle(words)
            lines[place] = b" ".join(words)
        else:
            other = dice.randrange(len(lines))
            lines[place], lines[other] = lines[other], lines[place]
    _try(b"\n".join(lines), dice.choice([order, None]), raw)


@given(data=st.one_of(st.binary(max_size=200), st.sampled_from(_scenarios).map(Path.read_bytes)))
@settings(max_examples=40)
def test_command_ends_with_an_exit_code(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("play") / "file.txt"
    path.write_bytes(data)
    assert cli.run(["play", str(path), "--order", "matrix", "--json"]) in (0, 1, 2)
