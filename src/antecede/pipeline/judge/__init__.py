"""Verdicts on a matched trace. First the orders are judged. One task reads all events. For FIFO and causal order,
many tasks may each read a chunk (the events of some period of time) instead. Then the report is made."""
