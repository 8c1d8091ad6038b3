"""The report of ``antecede import`` is documented."""

from pathlib import Path

_root = Path(__file__).resolve().parents[2]


def test_the_report_is_documented(tmp_path: Path) -> None:
    from antecede.trace.foreign import Mapping, convert_mapped

    log = tmp_path / "log.jsonl"
    log.write_text('{"p": "a", "k": "s", "m": "1", "t": "b"}\n{"p": "b", "k": "d", "m": "1"}\n')
    names = {"process": "p", "kind": "k", "message": "m", "to": "t"}
    report = convert_mapped([log], Mapping(map=names, send="s", deliver="d"))
    documented = (_root / "docs" / "json.md").read_text(encoding="utf-8")
    section = documented.partition("### `antecede import --map … --json`")[2].partition("\n## ")[0]
    assert section
    assert [key for key in report if f"`{key}`" not in section] == []
