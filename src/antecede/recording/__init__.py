"""Make a trace from the data directory of a server: from its log, and from the segments (files of the log) that were
converted to Parquet.

``segments`` reads data directories, and ``converting`` turns closed segments into Parquet in a separate process. Both
work without a running server.
"""
