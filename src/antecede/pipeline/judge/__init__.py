"""Verdicts on a matched trace. The orders are judged on its lines (the event sequences of the processes), in one walk
or by chunks of time. Then the report is made."""
