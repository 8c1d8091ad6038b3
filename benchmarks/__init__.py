"""Benchmarks: the speed of Antecede, compared in the same run with other systems or with a program that does only the
unavoidable work (the *floor*). README.md lists them; ``./run bench NAME --help`` has the options of each.

``from benchmarks import payload`` is the 100 bytes that each measured message carries.
"""

payload = bytes(range(100))
"""The payload of each message."""
