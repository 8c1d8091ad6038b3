"""librdkafka's mock cluster as a process: ``python mock_kafka.py FILE`` writes its port into FILE and runs until its
input is closed. It keeps everything in memory."""

import os
import sys
from pathlib import Path

from confluent_kafka import Producer


def main(told: str) -> None:
    servers: list[str] = []
    producer = Producer(
        {"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": 1, "log_level": 7, "debug": "mock"},
        logger=None,
    )
    metadata = producer.list_topics(timeout=10)
    servers = [f"{one.host}:{one.port}" for one in metadata.brokers.values()]
    made = Path(told + ".new")
    made.write_text(servers[0].rpartition(":")[2] + "\n")
    os.replace(made, told)
    sys.stdin.buffer.read()


main(sys.argv[1])
