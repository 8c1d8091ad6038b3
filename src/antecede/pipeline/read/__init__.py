"""Read traces: divide files into splits, encode rows as arrays, sort the rows into buckets, and find places (process
and index) that have no row or several rows."""
