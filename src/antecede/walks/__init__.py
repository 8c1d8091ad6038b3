"""Walks: load on real servers whose outcome is known. The demo runs it, and the trials mistreat servers under it.

* :mod:`~antecede.walks.walkers`: agents that pass walks on; what each must have seen at the end can be computed.
* :mod:`~antecede.walks.processes`: the servers of one topology as processes that come and go.
* :mod:`~antecede.walks.load`: clients that send walks out and wait until all are home; what must be so then.
"""
