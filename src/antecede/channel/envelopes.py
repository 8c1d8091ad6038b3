"""Checks of the envelope of a client's notification, used by the client library, and by the server, which trusts no
client."""

from antecede import limits
from antecede.limits import address_chars_max, publish_to_max, type_chars_max


def envelope_fault(to: tuple[str, ...], kind: str) -> str:
    """Return what is wrong with the destinations or the type of a notification, or an empty string."""
    if len(kind) > type_chars_max:
        return f"notification type of {len(kind)} characters: expected at most {type_chars_max}"
    if len(to) > publish_to_max:
        return f"{len(to)} destinations: expected at most {publish_to_max}, or a topic"
    for address in to:
        if len(address) > address_chars_max:
            return f"address of {len(address)} characters: expected at most {address_chars_max}"
    return ""


def body_fault(size: int) -> str:
    """Return what is wrong with the size of a notification, or an empty string."""
    most = limits.letter_bytes_max
    return f"notification of {size} bytes: at most {most}" if size > most else ""
