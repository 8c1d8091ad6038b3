"""The engine of verdicts: windows of a trace are judged without their past, and small summaries are folded.

:mod:`~antecede.judge.window` judges one window: a run of rows between two consistent cuts.
:mod:`~antecede.judge.fold` takes the summaries of consecutive windows, knows the true vectors at each cut, and judges
the messages that cross cuts. A rule exists once: in one process, on Spark and on streams, the same two functions work.
"""

from antecede.judge.fold import Fold
from antecede.judge.window import DELIVER, OTHER, SEND, Late, NotCleanError, Rows, Summary, judge_window

__all__ = ["DELIVER", "OTHER", "SEND", "Fold", "Late", "NotCleanError", "Rows", "Summary", "judge_window"]
