"""The letters that a client had begun to handle when it published something.

A client reports a letter as handled when its handler has returned, or later, together with others. The handler's
publishes reach the server before this report. So a publish names the last letter that its client had begun to handle.
The record of the publish then names this letter, and the letters before it in the mailbox. In the trace, their
deliveries come before the publish, so the trace shows that the publish depends on them. Nothing else changes: the
letters stay in the mailbox.

A client can name only the first letters of its own mailbox, at most as many as a batch may have. Each letter is
recorded once.
"""

from itertools import islice

from antecede import limits
from antecede.engine import Engine
from antecede.server.items import Begun


def begun_letters(engine: Engine, address: str, claims: tuple[Begun, ...], clock_ms: int) -> tuple[Begun, ...]:
    """Return the letters to record: each named letter, and the letters before it, unless they are recorded already.
    ``claims``: the letters that the client names, each with the position (in its batch) of the publish that names
    it."""
    last = engine.read.get(address)
    named = {claim.letters[0]: claim.at for claim in claims if claim.letters[0] != last}
    found: list[Begun] = []
    letters: list[str] = []
    for letter in islice(engine.mailboxes.get(address, ()), limits.reactions_together_max) if named else ():
        letters.append(letter.id)
        if letter.id == last:
            # All letters so far are recorded.
            found, letters = [], []
        elif letter.id in named:
            found.append(Begun(named[letter.id], tuple(letters), clock_ms))
            letters = []
    return tuple(found)
