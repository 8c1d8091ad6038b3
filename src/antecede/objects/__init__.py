"""Objects with operations: only conflicting operations are ordered (Enokido, Higaki, Takizawa).

* :mod:`~antecede.objects.model`: an object is a class whose methods are operations, some of which conflict.
* :mod:`~antecede.objects.replay`: computing an operation, and computing it again from the answers to its calls.
* :mod:`~antecede.objects.instances`: operation instances, roots, and the messages between them.
* :mod:`~antecede.objects.site`: one object of a group on top of the order ``objects``, without I/O like every order.
  The docstring of the module shows the parts of such an object.
* :mod:`~antecede.objects.hosting` and :mod:`~antecede.objects.replicas`: the objects of a server, as one member of the
  order.
* :mod:`~antecede.objects.calls` and :mod:`~antecede.objects.remote`: a call at its server, and at its client.
* :mod:`~antecede.objects.search`: looks for two operations whose order matters although no conflict is declared.
* :mod:`~antecede.objects.simulation`: simulated groups.
"""

from antecede.objects.groups import SiteSpec, group
from antecede.objects.hosting import ReplicatedObject
from antecede.objects.instances import Answered, Local
from antecede.objects.model import Call, CallFailed, Object, operation, operations_of, relation_of
from antecede.objects.site import Site

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
