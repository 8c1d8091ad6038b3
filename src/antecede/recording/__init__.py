"""A server's log and its converted segments as rows of a trace.

``segments`` reads one data directory, ``converting`` turns closed segments into Parquet in a process of its own, and
``gathering`` makes a trace of all that a person names, data directories among it. None of them needs a running server.
"""
