"""Traces in: files as splits, rows as arrays, encoded rows by bucket, and which places are missing or contested."""
