"""What may stand on the envelope of a client's notification: checked by the client library, and by the server, which
trusts no client."""

from antecede import limits


def envelope_fault(to: tuple[str, ...], kind: str) -> str:
    """Return what is wrong with the destinations or the type of a notification; empty: nothing."""
    if len(kind) > limits.type_chars_max:
        return f"notification type of {len(kind)} characters: expected at most {limits.type_chars_max}"
    if len(to) > limits.publish_to_max:
        return f"{len(to)} destinations: expected at most {limits.publish_to_max}, or a topic"
    for address in to:
        if len(address) > limits.address_chars_max:
            return f"address of {len(address)} characters: expected at most {limits.address_chars_max}"
    return ""
