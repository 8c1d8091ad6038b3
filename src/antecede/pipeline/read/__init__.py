"""Read traces: divide files into splits, encode rows as arrays, sort them into buckets, and find missing and contested
places."""
