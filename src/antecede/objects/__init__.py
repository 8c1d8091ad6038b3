"""Objects with operations: only conflicting operations are ordered (Enokido, Higaki, Takizawa).

* :mod:`~antecede.objects.model`: an object is a class. Its methods are operations, and some operations conflict.
* :mod:`~antecede.objects.state`: the state of an object, as cells that are changed, compared and saved separately.
* :mod:`~antecede.objects.replay`: computes an operation. After each answer to a call that the operation makes, the
  operation is computed again from the beginning.
* :mod:`~antecede.objects.instances`: operation instances, roots (operations that users start), and their messages.
* :mod:`~antecede.objects.site`: the code of one object in a group of objects. It sends messages with the order
  ``objects`` and, like an order, does no I/O. The docstring of ``site`` shows its parts.
* :mod:`~antecede.objects.replicas`: combines all objects of a server into one member of the order.
* :mod:`~antecede.objects.calls`: the calls at the server. (``RemoteObject`` of ``model`` is a client's side.)
* :mod:`~antecede.objects.search`: looks for two operations that do not commute although no conflict is declared.
"""

from antecede.objects.calls import Calls, unfit
from antecede.objects.execution import Execution
from antecede.objects.instances import DONE, Answered, Instance, Local, Made, Request, Root, Table
from antecede.objects.model import (
    Call,
    CallFailed,
    Object,
    blind_operations,
    initial,
    operation,
    operations_of,
    relation_of,
    unconfirmed_operations,
)
from antecede.objects.replay import Intentions, Outcome, answer_bytes, compute, fold, run
from antecede.objects.replicas import Placed, Placement, Replicas, ReplicatedObject, hosting, state_in
from antecede.objects.roots import Roots, Wounds
from antecede.objects.search import counter_example
from antecede.objects.site import Site, SiteSpec, group
from antecede.objects.state import UNTYPED, Change, Entries, Live, State, encode_state, forms_of

__all__ = [
    "DONE",
    "UNTYPED",
    "Answered",
    "Call",
    "CallFailed",
    "Calls",
    "Change",
    "Entries",
    "Execution",
    "Instance",
    "Intentions",
    "Live",
    "Local",
    "Made",
    "Object",
    "Outcome",
    "Placed",
    "Placement",
    "Replicas",
    "ReplicatedObject",
    "Request",
    "Root",
    "Roots",
    "Site",
    "SiteSpec",
    "State",
    "Table",
    "Wounds",
    "answer_bytes",
    "blind_operations",
    "compute",
    "counter_example",
    "encode_state",
    "fold",
    "forms_of",
    "group",
    "hosting",
    "initial",
    "operation",
    "operations_of",
    "relation_of",
    "run",
    "state_in",
    "unconfirmed_operations",
    "unfit",
]
