"""The page of ``antecede report``: verdicts, violations and costs of one trace, for people who have no terminal.

The page is one HTML document. It has no scripts, and loads nothing from elsewhere. It only shows the results of
``verify``, ``measure`` and ``explain``. The module ``page`` writes the document, and ``charts`` draws figures as SVG. A
name in a trace may contain anything, so every text from a trace is escaped, and long texts are cut.

``curves`` draws measured points, and curves that were fitted to these points. ``paper000`` draws the figures of
``antecede bench paper000``.
"""

from antecede.report.page import page_of

__all__ = ["page_of"]
