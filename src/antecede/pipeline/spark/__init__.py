"""Spark itself: the Java that runs it, the needs of a remote master, and the connection of stages."""
