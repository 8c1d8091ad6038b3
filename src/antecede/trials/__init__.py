"""Trials: tests in which servers are killed, disks fail, or other faults happen. At the end, each trial checks the
servers and their data.

In most trials, the messages come from the clients of :mod:`antecede.walks`.

* :mod:`~antecede.trials.rounds`: one round of faults under load, then a quiet time and a verdict. The faults in this
  module are kills.
* :mod:`~antecede.trials.powercuts`, :mod:`~antecede.trials.backups`, :mod:`~antecede.trials.changes`: other faults.
* :mod:`~antecede.trials.objects`: kills with another load, in which clients call replicated objects.
* :mod:`~antecede.trials.lies`, :mod:`~antecede.trials.mutations`: a server that receives forged input.
* :mod:`~antecede.trials.overload`: two servers that receive more messages than they can handle.
* :mod:`~antecede.trials.disks`: a simulated disk for a real process. The power of this disk can be cut.

Each round has its own folder and its own seed. The seed determines the messages and the plan of the faults. But the
effect of a kill also depends on the timing of the machine, so a second round with the same seed possibly does not show
the same error. Therefore the folder of a round with errors is kept.
"""
