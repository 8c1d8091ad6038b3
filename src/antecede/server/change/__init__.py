"""Changes of the topology of a system: the sequence of commands that makes a change, and each server's part in it.

* ``requests`` defines the commands and their answers. ``changing`` is the sequence of commands that the operator's
  process sends; ``surveying`` is the beginning of this sequence.
* ``participation`` carries out the commands at one server. ``reorganising`` connects ``participation`` to a
  running server. If the operator's process is gone, ``deciding`` ends the change.
* ``draining`` and ``renewal`` are for stopped servers. ``draining`` delivers the letters that are in transit between
  them. ``renewal`` makes the snapshots of a system that is restored from a backup.

The durable state of a server (the topology in force, the history, a change that is staged) is in
:mod:`antecede.server.organisation`. ``docs/design/change.md`` explains why no letter is lost, repeated or overtaken.
"""
