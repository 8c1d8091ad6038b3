"""Verdicts on a matched trace. First the orders are judged: the lines of the trace (the event sequences of the
processes) are examined in one walk, or in chunks of time. Then the report is made."""
