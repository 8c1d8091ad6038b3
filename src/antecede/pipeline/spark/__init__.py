"""Spark itself: which Java runs it, what a remote master needs, and how stages are joined by it."""
