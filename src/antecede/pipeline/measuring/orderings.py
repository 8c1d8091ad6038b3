"""``measure`` on Spark: count the orderings that causal order enforces, but significant order does not need.

An *ordering* consists of two messages and a process that delivered both (:mod:`antecede.trace.measure`).
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from antecede.pipeline.judge.operations import Operations, Settings, settings_for
from antecede.pipeline.judge.precedences import precedences_among
from antecede.pipeline.judge.trace import Trace
from antecede.pipeline.kernels.significant import REQUEST, RESPONSE
from antecede.pipeline.kernels.walk import SENT
from antecede.pipeline.match.instances import matched_instances
from antecede.pipeline.packing import pack, unpack
from antecede.trace.conflicts import Conflicts
from antecede.trace.costs import drawn
from antecede.trace.measure import Received, counted_at, figures

_received_as = {0: None, REQUEST: "request", RESPONSE: "response"}


def orderings_on(trace: Trace, conflicts: Conflicts) -> dict[str, Any] | None:
    """Return the report's ``significance``. If no delivery belongs to an instance, return ``None``. The trace must have
    been read with its column of instances (``instances=True``)."""
    pieces = trace.from_buckets(partial(matched_instances, numbering=trace.numbering), 1)
    counts = unpack(pieces.gather(partial(counted, settings=settings_for(trace, conflicts)), [0])[0])
    return figures(counts["messages"], counts["causal"], counts["significant"]) if counts["judged"] else None


def counted(packed: Iterable[bytes], settings: Settings) -> bytes:
    """Count the orderings that causal order enforces. Also count those of them that are necessary for significant
    order. If there are too many messages, only a random sample of them is compared. One task does the work for the
    whole trace."""
    operations = Operations(packed, settings)
    lines = operations.lines
    sends = np.flatnonzero(lines.source == SENT)
    picked = sends[np.array(drawn(len(sends)), np.int64)]
    # Look up the sends before the walk replaces the numbers of deliveries by slot numbers.
    delivered = np.flatnonzero(lines.source >= 0)
    number = np.searchsorted(picked, lines.send_of(delivered))
    some = picked[np.minimum(number, len(picked) - 1)] == lines.send_of(delivered) if len(picked) else number < 0
    delivered, number = delivered[some], number[some]
    causal, significant = precedences_among(operations, picked)
    rivals = np.split(operations.rivals, operations.rival_from[1:-1])
    request_rivals = np.split(operations.request_rivals, operations.request_rival_from[1:-1])
    total = needed = 0
    process = lines.process_at(delivered)
    for p in np.unique(process).tolist():
        received = [
            _received(operations, int(at), int(which))
            for at, which in zip(*_of(p, process, delivered, number), strict=True)
        ]
        found = counted_at(received, causal, significant, rivals, request_rivals)
        total, needed = total + found[0], needed + found[1]
    return pack({"judged": operations.judged, "messages": len(picked), "causal": total, "significant": needed})


def _of(process: int, owner: Any, delivered: Any, number: Any) -> tuple[Any, Any]:
    return delivered[owner == process], number[owner == process]


def _received(operations: Operations, at: int, number: int) -> Received:
    own = int(operations.instance[at])
    if own < 0:
        return Received(number)
    name = operations.instance_names[operations.name[own]]
    return Received(number, name, int(operations.cell[own]), _received_as[int(operations.received_as[at])])
