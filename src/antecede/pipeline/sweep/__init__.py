"""Sweeps: grids of simulated runs as Spark tasks, and one table with their results.

* :mod:`~antecede.pipeline.sweep.grids`: the named studies, and grids from files and options.
* :mod:`~antecede.pipeline.sweep.cells`: one run: its settings, its row of the table, the command that repeats it.
* :mod:`~antecede.pipeline.sweep.running`: cells as Spark jobs, and progress.
* :mod:`~antecede.pipeline.sweep.results`: finished cells and the table on disk.
* :mod:`~antecede.pipeline.sweep.summary`, ``intervals``: means over seeds with confidence intervals.
* :mod:`~antecede.pipeline.sweep.arrays`: one run in the array kernel, for the orders that it knows.
* :mod:`~antecede.pipeline.sweep.kernel`, ``schedule``, ``basics`` and one module per order: the kernel itself.

This package knows orders and the simulator. It must not know servers, sockets or traces.
"""
