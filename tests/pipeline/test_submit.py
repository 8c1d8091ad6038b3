"""A program that ``spark-submit`` started uses the master and the settings that it was given, and its JVM."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark

from antecede.pipeline.sessions import java_home
from antecede.trace import Event, verify, write_trace

_script = """
import json, sys
from antecede import pipeline

with pipeline.session(conf={"spark.sql.shuffle.partitions": "7"}) as running:
    conf = running.spark.conf
    print(running.context.master, conf.get("spark.submit.mine"), conf.get("spark.sql.shuffle.partitions"))
print(json.dumps(pipeline.verify_files([sys.argv[1]])), flush=True)
"""


def test_a_submitted_program_uses_what_it_was_given(tmp_path: Path, spoken: Any) -> None:
    rows = [
        Event("p", 0, "send", "x", ("q",)),
        Event("p", 1, "send", "y", ("q",)),
        Event("q", 0, "deliver", "y"),
        Event("q", 1, "deliver", "x"),
    ]
    trace, script, scratch = tmp_path / "t.jsonl", tmp_path / "judge.py", tmp_path / "scratch"
    write_trace(trace, rows)
    script.write_text(_script)
    scratch.mkdir()
    settings = ["spark.submit.mine=yes", "spark.sql.shuffle.partitions=5", "spark.ui.enabled=false"]
    options = ["--master", "local[1]", *(word for setting in settings for word in ("--conf", setting))]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK", "SPARK"))}
    environment |= {"JAVA_HOME": java_home(tmp_path), "PYSPARK_PYTHON": sys.executable, "TMPDIR": str(scratch)}
    done = subprocess.run(
        [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), *options, str(script), str(trace)],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    master, report = done.stdout.splitlines()
    assert master == "local[1] yes 7"
    assert spoken.judged(json.loads(report)) == spoken.judged(verify([trace]))
    left = [one.name for one in scratch.iterdir()]
    assert [name for name in left if name.startswith(("antecede-spark", "spark-", "blockmgr-"))] == []
