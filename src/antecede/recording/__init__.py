"""A server's log and its converted segments as rows of a trace.

``segments`` reads one data directory, ``converting`` turns closed segments into Parquet in a separate process, and
``gathering`` makes a trace from all given paths, including data directories. None of them needs a running server.
"""
