"""Groups of objects in the simulated world: random workloads, campaigns (many runs, with a check of each run), and a
study of delays.

Objects run on the general simulator, with its machines, networks and faults. This package adds only the parts that
concern objects: roots that users start, operations with a known result, and a check of that result. No other part of
:mod:`antecede.objects` imports the simulator.
"""
