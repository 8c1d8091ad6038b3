"""A process that writes a log is killed at any moment, again and again, on a real file system.

The writer prints a number when it hears that all records up to it are durable, and nothing else can be relied upon:
after each kill at least those are there, each record is the one that its number says, and none is missing. The next
writer goes on from there. ``ANTECEDE_KILLS`` sets how often.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from antecede.store import Sizes, open_log

_kills = int(os.environ.get("ANTECEDE_KILLS", "10"))

_writer = """
import sys
from antecede.errors import StoreFullError
from antecede.store import Sizes, open_log

def content(number):
    return b"%d:" % number + bytes(number * 7919 % 300)

def tell(number):
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()

sizes = Sizes(segment_bytes=1 << 20, group_bytes_max=1 << 16, pending_bytes_max=1 << 18, log_bytes_max=1 << 24)
with open_log(sys.argv[1], durability=sys.argv[2], sizes=sizes, on_durable=tell) as log:
    tell(log.recovered.last)
    while True:
        try:
            log.append(content(log.last + 1))
        except StoreFullError:
            log.wait(log.last)
        if log.last % 2000 == 0:
            upto = log.durable
            log.snapshot([b"state of ", b"%d" % upto], upto)
            log.release(upto)
"""


def _content(number: int) -> bytes:
    return b"%d:" % number + bytes(number * 7919 % 300)


@pytest.mark.parametrize("durability", ["disk", "os"])
def test_a_killed_writer_loses_nothing_that_it_called_durable(tmp_path: Path, durability: str) -> None:
    place = str(tmp_path / "data")
    random.seed(durability)
    reached = 0
    for kill in range(_kills):
        with subprocess.Popen(
            [sys.executable, "-c", _writer, place, durability], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            # It has opened the log when it says the first number; a kill may also come before that.
            if kill % 4:
                reached = max(reached, int(writer.stdout.readline()))
            time.sleep(random.uniform(0, 0.3))
            writer.send_signal(signal.SIGKILL)
            # A line that was cut off in the middle would be a smaller number, never a larger one.
            for line in writer.stdout:
                if line.endswith("\n"):
                    reached = max(reached, int(line))
        reached = _check(place, reached)
    assert reached > 0


def _check(place: str, reached: int) -> int:
    sizes = Sizes(segment_bytes=1 << 20, group_bytes_max=1 << 16, pending_bytes_max=1 << 18, log_bytes_max=1 << 24)
    with open_log(place, sizes=sizes) as log:
        recovered = log.recovered
        covered = 0
        if recovered.snapshot:
            covered = recovered.snapshot.upto
            assert recovered.snapshot.data() == b"state of %d" % covered
        assert recovered.last >= reached
        expected = covered + 1
        for number, record in recovered.records():
            assert number == expected
            assert record == _content(number)
            expected += 1
        assert expected == recovered.last + 1
    return recovered.last
