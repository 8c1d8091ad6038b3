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

from antecede.objects.instances import Answered, Local
from antecede.objects.model import Call, CallFailed, Object, operation, operations_of, relation_of
from antecede.objects.replicas import ReplicatedObject
from antecede.objects.site import Site, SiteSpec, group

__all__ = [
    "Answered",
    "Call",
    "CallFailed",
    "Local",
    "Object",
    "ReplicatedObject",
    "Site",
    "SiteSpec",
    "group",
    "operation",
    "operations_of",
    "relation_of",
]
