"""Changes of the topology of a system: the sequence of commands that makes a change, and each server's part in it.

* ``requests`` are the commands and their answers. ``changing`` is their sequence, carried out by the operator's
  process; ``surveying`` is its beginning.
* ``participation`` is one server's part. ``reorganising`` runs it on a server with its driver, and ``deciding`` ends a
  change whose operator is gone.
* ``draining`` and ``renewal`` are for stopped servers: letters in transit, and the states of a restored system.

The durable state of a server (the topology in force, the history, a change that is staged) is in
:mod:`antecede.server.organisation`. ``docs/design/change.md`` argues why no letter is lost, repeated or overtaken.
"""
