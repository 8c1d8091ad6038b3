"""Groups of objects in the simulated world: random workloads, campaigns that judge them, and a study of their delays.

Objects run on the general simulator, on its machines, networks and faults. This package adds only what is about
objects: roots that users start, operations with a known result, and a judge of that result. It imports the simulator;
nothing else in :mod:`antecede.objects` imports it.
"""
