"""Verdicts on a matched trace: the orders on its lines, by one walk or by chunks of time, and the report."""
