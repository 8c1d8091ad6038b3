"""Record Celery: two signals record every task, without a change to the tasks.

    pip install celery
    celery -A with_celery worker --concurrency 2 &
    python with_celery.py
    antecede verify traces

A worker process runs one task at a time, so each is a process of the trace. A task is a message: its publication is the
send, its start is the delivery. Any worker may take it, so its receiver is not known when it is sent.
"""

import os
from functools import cache
from typing import Any

from celery import Celery, signals

from antecede.record import Recorder

app = Celery("shop", broker=os.environ.get("BROKER", "amqp://localhost"), backend=os.environ.get("BACKEND", "rpc://"))
if "FOLDER" in os.environ:  # with BROKER=filesystem:// a folder is the broker, and no server is needed
    folder = os.environ["FOLDER"]
    app.conf.broker_transport_options = {"data_folder_in": folder, "data_folder_out": folder}


@cache
def me(process: int) -> Recorder:
    """Return the recorder of this process; a worker that was forked gets its own."""
    return Recorder(f"traces/shop-{process}.jsonl")


@signals.before_task_publish.connect
def sent(sender: str, headers: dict[str, Any], **_: Any) -> None:
    """A task that is tried again has the same id, but it is another message."""
    me(os.getpid()).sent(f"{headers['id']}.{headers['retries']}", label=sender)


@signals.task_prerun.connect
def delivered(task: Any, **_: Any) -> None:
    me(os.getpid()).delivered(f"{task.request.id}.{task.request.retries}")


@app.task(name="bill")
def bill(item: str) -> None:
    ship.delay(f"payment for {item}")


@app.task(name="ship")
def ship(what: str) -> str:
    return what


if __name__ == "__main__":
    order = ship.delay("order for tea")
    bill.delay("tea")
    print("shipped", order.get(timeout=30))
