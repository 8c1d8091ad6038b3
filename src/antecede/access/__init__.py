"""Identities: who may connect to a server, and what each may do there.

* :mod:`~antecede.access.model`: the content of an access file: identities, keys, permissions, limits.
* :mod:`~antecede.access.file`: the access file (``access.toml``) and its errors.
* :mod:`~antecede.access.proof`: both ends of a connection prove their identity before anything else happens.
* :mod:`~antecede.access.authoriser`: **the one place that decides** what an identity may do, for every entry point.
* :mod:`~antecede.access.rates`: limits of rate and bytes.
* :mod:`~antecede.access.audit`: who connected, who was refused, and who changed something.

The package does no I/O, and has no clock, no randomness and no cryptography: these are arguments. So the simulator runs
the same rules as a live server.
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
