"""Changes of the topology of a system: the sequence of commands that makes a change, and each server's part in it.

* ``requests`` defines the commands and their answers. ``changing`` is the sequence of commands that the operator's
  process gives; ``surveying`` is the beginning of this sequence.
* ``participation`` carries out the commands at one server. ``reorganising`` connects ``participation`` to a
  running server. If the operator's process is gone, ``deciding`` ends the change.
* ``draining`` and ``renewal`` are for stopped servers. ``draining`` exchanges their letters in transit; ``renewal``
  makes the states of a restored system.

The durable state of a server (the topology in force, the history, a change that is staged) is in
:mod:`antecede.server.organisation`. ``docs/design/change.md`` argues why no letter is lost, repeated or overtaken.
"""
