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

from antecede.access.audit import REFUSED, Audit
from antecede.access.authoriser import ACTIONS, ANONYMOUS, LOCAL, TOKEN, Authoriser, Who, temporary_name
from antecede.access.file import parse_access
from antecede.access.model import (
    CLIENT,
    COMMANDS,
    OPERATOR,
    SERVER,
    Access,
    AddressLimits,
    Identity,
    Key,
    Limits,
    Refusal,
    matches,
)
from antecede.access.proof import Answering, Dialing, Keyring, signed
from antecede.access.rates import Attempts, Rate

__all__ = [
    "ACTIONS",
    "ANONYMOUS",
    "CLIENT",
    "COMMANDS",
    "LOCAL",
    "OPERATOR",
    "REFUSED",
    "SERVER",
    "TOKEN",
    "Access",
    "AddressLimits",
    "Answering",
    "Attempts",
    "Audit",
    "Authoriser",
    "Dialing",
    "Identity",
    "Key",
    "Keyring",
    "Limits",
    "Rate",
    "Refusal",
    "Who",
    "matches",
    "parse_access",
    "signed",
    "temporary_name",
]
