"""Trials: real servers, sockets and disks under faults, judged from the data that they leave.

The load is :mod:`antecede.walks`.

* :mod:`~antecede.trials.rounds`: one round of faults under load, then a quiet time and a verdict. The faults in this
  module are kills.
* :mod:`~antecede.trials.powercuts`, :mod:`~antecede.trials.backups`, :mod:`~antecede.trials.changes`: other faults.
* :mod:`~antecede.trials.objects`: kills under another load, calls of replicated objects.
* :mod:`~antecede.trials.lies`, :mod:`~antecede.trials.mutations`: a server that receives forged input.
* :mod:`~antecede.trials.disks`: a disk whose power can be cut, under a real process.

A trial is one round from one seed: a new folder, some faults, a quiet time, a verdict. The seed determines the messages
and the plan of the faults. The effect of a kill depends on the machine, so a seed may not show an error again: the
folder of a round with errors is kept.
"""
