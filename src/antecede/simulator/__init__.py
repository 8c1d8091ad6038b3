"""A simulated world that tests ordering protocols on unfavourable networks: virtual time, delays, faults, workloads.

The simulator runs the same orders (ordering protocols) as real servers. It never reads a wall clock, and all its random
numbers come from one seed. So the same seed gives the same trace, byte for byte.
"""
