"""The letters that a client had begun to handle before it published something.

A client reports a letter as handled only after the letter's handler has returned. The handler's publishes reach the
server before this report. So each publish names the last letter that its client had begun to handle. The server writes
this letter, and the letters before it in the mailbox, into the record of the publish. In the trace, the deliveries of
these letters come before the publish, so the trace shows that the publish depends on the letters. Nothing else changes:
the letters stay in the mailbox.

The server searches for the named letter only at the beginning of the client's own mailbox. It reads no more letters
than one batch can contain. Each letter is recorded only one time.
"""

from itertools import islice

from antecede import limits
from antecede.engine import Engine
from antecede.server.items import Begun


def begun_letters(engine: Engine, address: str, claims: tuple[Begun, ...], clock_ms: int) -> tuple[Begun, ...]:
    """Return the letters to record: each letter that the client names, and the letters before it in the mailbox.
    Letters that are already recorded are left out. ``claims``: one entry for each publish that names a letter. The
    entry contains this letter, and the position of the publish in its batch."""
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
