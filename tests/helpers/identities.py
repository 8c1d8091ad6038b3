"""Keys for identities of tests."""

from base64 import b64encode


def public_key(number: int) -> str:
    """Return a different public key for each number; nobody has the private one."""
    return "ed25519:" + b64encode(bytes([number]) * 32).decode()
