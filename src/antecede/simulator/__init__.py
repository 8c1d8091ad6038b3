"""A seeded world in which ordering protocols meet every adversary: virtual time, delays, faults, workloads.

The simulator drives the very orders that servers run. It never looks at a wall clock and draws everything from one
seed, so that the same seed gives the same trace, byte for byte.
"""
