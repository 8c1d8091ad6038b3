"""Make a trace from the data directory of a server: from its log, and from the segments (files of the log) that were
converted to Parquet.

``segments`` reads one data directory, ``converting`` turns closed segments into Parquet in a separate process, and
``gathering`` makes a trace from all given paths, including data directories. None of these modules needs a running
server.
"""
