"""``antecede inspect``: a log is shown, and not changed by it."""

import hashlib
import json
from pathlib import Path

import pytest

from antecede.cli import run
from antecede.store import Sizes, open_log


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "data"
    sizes = Sizes(segment_bytes=1 << 14, group_bytes_max=1 << 10, pending_bytes_max=1 << 12, log_bytes_max=1 << 16)
    with open_log(str(place), sizes=sizes, threaded=False) as log:
        for record in (b"one", b"\x93\x01\x02\x03", b"three"):
            log.wait(log.append(record))
        log.snapshot([b"some", b"state"], 2)
    return place


def digest(place: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in place.iterdir()}


def report(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, object]:
    assert run(["inspect", *arguments, "--json"]) == code
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_a_folder_of_data_directories_names_them(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(place.parent)]) == 2
    assert f"not a data directory; choose one inside it: {place}" in capsys.readouterr().err


def test_a_whole_log(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = digest(place)
    found = report(capsys, str(place), "--groups", "--records", "--as", "msgpack")
    assert digest(place) == before
    assert (found["records"], found["record_bytes"], found["groups"]) == (3, 12, 4)
    assert (found["first"], found["last"], found["torn"], found["corrupt"]) == (1, 3, None, None)
    assert [row["records"] for row in found["segments"]] == [3, 0]  # type: ignore[attr-defined]
    assert found["snapshots"] == [
        {"file": "snapshot-00000000000000000002.state", "upto": 2, "parts": 2, "bytes": 9, "damage": None}
    ]
    values = [row["value"] for row in found["listed_records"]]  # type: ignore[attr-defined]
    assert values[1] == "[1, 2, 3]"
    assert values[0].startswith("6f6e65 (not decoded")
    groups = found["listed_groups"]
    assert [row["previous"] for row in groups[1:]] == [row["checksum"] for row in groups[:-1]]  # type: ignore[index]


def test_listings_begin_and_end_where_asked(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, str(place), "--records", "--after", "1", "--first", "1", "--as", "builtins:len")
    assert found["listed_records"] == [{"record": 2, "group": 2, "bytes": 4, "value": "4"}]


def test_text_for_people(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(place), "--records", "--as", "text"]) == 0
    said = capsys.readouterr().out
    assert "3 records (1 to 3), 12 bytes in 4 groups" in said
    assert "record 3 (5 bytes): three" in said
    assert "every checksum is correct" in said


def test_damage_is_exit_1_and_torn_is_not(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = place / "segment-000000000001.log"
    data = bytearray(segment.read_bytes())
    data[data.index(b"one")] ^= 1
    segment.write_bytes(data)
    found = report(capsys, str(place), code=1)
    assert found["corrupt"]["offset"] == 0  # type: ignore[index]
    data[data.index(b"nne")] ^= 1
    # The closing group, the last of the log, begins where the third record ends.
    data[data.index(b"three") + 5] ^= 1
    segment.write_bytes(data)
    found = report(capsys, str(place))
    assert found["torn"] is not None
    assert found["records"] == 3
    snapshot = place / "snapshot-00000000000000000002.state"
    snapshot.write_bytes(snapshot.read_bytes()[:-1])
    found = report(capsys, str(place), code=1)
    assert "does not fit" in found["snapshots"][0]["damage"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{tmp}"], "not a data directory"),
        (["{tmp}/nothing"], "No such file or directory"),
        (["{tmp}/file"], "Not a directory"),
        (["{tmp}/data", "--as", "junk"], "--as must be hex, text, msgpack or MODULE:FUNCTION"),
        (["{tmp}/data", "--as", "json:junk"], "has no attribute 'junk'"),
        (["{tmp}/data", "--as", "json:__doc__"], "not a function"),
        (["{tmp}/junk"], "identity: byte 0: not the identity of a data directory"),
    ],
)
def test_junk_is_one_line_and_exit_2(
    arguments: list[str], said: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp = place.parent
    (tmp / "file").write_text("x")
    (tmp / "junk").mkdir()
    (tmp / "junk" / "identity").write_bytes(bytes(range(40)))
    assert run(["inspect", *(argument.format(tmp=tmp) for argument in arguments)]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1
