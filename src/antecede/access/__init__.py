"""Access control: which identities may connect to a server, and what each identity may do there.

* :mod:`~antecede.access.model`: the content of an access file: identities, keys, permissions, limits.
* :mod:`~antecede.access.file`: turns the text of the access file (``access.toml``) into objects, and reports errors.
* :mod:`~antecede.access.proof`: both ends of a connection prove their identity before anything else happens.
* :mod:`~antecede.access.authoriser`: **the one place that decides** what an identity may do, for every entry point.
* :mod:`~antecede.access.rates`: limits of messages and bytes per second.
* :mod:`~antecede.access.audit`: the log of who connected, who was refused, and who changed something.

The package itself does no I/O, reads no clock, makes no random numbers, and neither makes nor checks signatures.
Callers pass functions that do this. So the simulator applies the same rules as a live server.
"""

from antecede.access.authoriser import LOCAL, TOKEN, Authoriser, Who
from antecede.access.file import parse_access
from antecede.access.model import Access, Identity, Key, Limits, Refusal, matches

__all__ = [
    "LOCAL",
    "TOKEN",
    "Access",
    "Authoriser",
    "Identity",
    "Key",
    "Limits",
    "Refusal",
    "Who",
    "matches",
    "parse_access",
]
