"""Sweeps: run a grid of simulations as Spark tasks, and write their results into one table.

* :mod:`~antecede.pipeline.sweep.grids`: the named studies, and grids from files and options.
* :mod:`~antecede.pipeline.sweep.cells`: a cell is one run, with its settings, its row of the table, and its command.
* :mod:`~antecede.pipeline.sweep.running`: runs the cells as Spark jobs, and reports the progress.
* :mod:`~antecede.pipeline.sweep.results`: stores finished cells and the table on disk.
* :mod:`~antecede.pipeline.sweep.summary`, ``intervals``: means over seeds with confidence intervals.
* :mod:`~antecede.pipeline.sweep.arrays`: simulates one run with the array kernel, which supports only some orders.
* :mod:`~antecede.pipeline.sweep.kernel`, ``schedule``, ``basics`` and one module per order: the kernel itself.

This package knows orders and the simulator. It must not know servers, sockets or traces.
"""
