"""The page of ``antecede report``: verdicts, violations and costs of one trace, for people who have no terminal.

The page is one HTML document. It has no scripts, and loads nothing from elsewhere. It only shows the results of
``verify``, ``measure`` and ``explain``. A name in a trace may contain anything, so every text from a trace is escaped,
and long texts are cut.
"""

from antecede.report.page import busiest, heat_map, page_of, per_second

__all__ = ["busiest", "heat_map", "page_of", "per_second"]
