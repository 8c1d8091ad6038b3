"""Trials: real servers, real sockets and real disks, mistreated on purpose, and judged from what they leave behind.

The load is :mod:`antecede.walks`.

* :mod:`~antecede.trials.rounds`: one round: faults strike while all this goes on, then calm and a verdict.
* :mod:`~antecede.trials.kills`, :mod:`~antecede.trials.powercuts`: the faults.
* :mod:`~antecede.trials.lies`, :mod:`~antecede.trials.mutations`: a server that is told what no correct peer says.
* :mod:`~antecede.trials.disks`: a disk whose power can be cut, under a real process.

A trial is one round from one seed: a fresh folder, some faults, calm, a verdict. The seed fixes what is sent and when
the faults are planned; what a kill meets is decided by the machine, so a finding keeps its folder instead.
"""
