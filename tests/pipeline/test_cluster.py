"""A standalone Spark of a master and two workers, each with a directory of its own, gives the same verdict as we do.

They are started through ``spark-class``, as an operator would, and share nothing with the driver but the machine.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from antecede.trace import Event, verify, write_trace
from helpers.ports import free_ports

_script = """
import json, sys
from antecede.pipeline import verify_files
print(json.dumps(verify_files([sys.argv[2]], ("fifo", "causal", "total", "synchronous"), master=sys.argv[1],
    late=sys.argv[3], quarantine=sys.argv[3])))
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    import pyspark

    from antecede.pipeline.sessions import java_home

    launcher = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    (port,) = free_ports(1)
    url = f"spark://127.0.0.1:{port}"
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK", "SPARK"))}
    # The workers' Python must not find this package by itself: that it is shipped is part of what is tested.
    environment.pop("PYTHONPATH", None)
    environment |= {"JAVA_HOME": java_home(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1"}
    deploy = "org.apache.spark.deploy."
    commands = [[f"{deploy}master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]]
    for number in (1, 2):
        place = tmp_path / f"worker-{number}"
        place.mkdir()
        commands.append(
            [
                f"{deploy}worker.Worker",
                "--cores",
                "1",
                "--memory",
                "1g",
                "--work-dir",
                str(place),
                "--webui-port",
                "0",
                url,
            ]
        )
    started = []
    try:
        for number, command in enumerate(commands):
            log = open(tmp_path / f"log-{number}", "wb")  # noqa: SIM115 (the process keeps it)
            with log:
                started.append(
                    subprocess.Popen([launcher, *command], env=environment, stdout=log, stderr=log, cwd=tmp_path)
                )
            if number == 0:
                _wait_for(port, started[0])
        yield url
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert process.poll() is None, "the master did not start"
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the master does not answer")


def test_a_cluster_gives_the_same_verdict(
    master: str,
    tmp_path: Path,
    random_trace: Callable[[int], list[Event]],
    spoken: Any,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import json

    rows = spoken.several([random_trace(seed) for seed in range(2000, 2020)])
    path = tmp_path / "trace.parquet"
    write_trace(path, rows)
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    environment = dict(os.environ) | {"PYTHONPATH": str(root / "src"), "TMPDIR": str(scratch)}
    done = subprocess.run(
        # A relative path, which is relative to where the command was given and not to where workers are.
        [sys.executable, "-c", _script, master, path.name, str(tmp_path / "out")],
        env=environment, capture_output=True, text=True, timeout=570, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    monkeypatch.chdir(tmp_path)
    wanted = verify([path.name], spoken.ALL, tmp_path / "here", tmp_path / "here")
    assert spoken.judged(json.loads(done.stdout)) == spoken.judged(wanted)
    mine, theirs = ((tmp_path / name / "quarantine.jsonl").read_text().splitlines() for name in ("here", "out"))
    assert sorted(mine) == sorted(theirs)
    assert list((tmp_path / "worker-1").iterdir()), "both workers worked"
    assert list((tmp_path / "worker-2").iterdir()), "both workers worked"
    left = [one.name for one in scratch.iterdir()]
    assert [name for name in left if not name.startswith(("antecede-numba", "antecede-warm"))] == []
