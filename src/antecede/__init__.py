"""Antecede: messages between processes in which nothing arrives before what it follows from.

The rooms of the house, lowest first, are listed in ``docs/architecture.md``;
a room imports only from the rooms below it.
"""

__version__ = "0.1.0"
