"""Verdicts on a matched trace: judge the orders on its lines (the event sequences of the processes), in one walk or by
chunks of time, and make the report."""
