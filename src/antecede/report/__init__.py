"""The page of ``antecede report``: verdicts, violations and costs of one trace, for people who have no terminal.

The page is one HTML document without scripts and without anything from outside. It shows what ``verify``, ``measure``
and ``explain`` have found and judges nothing itself. ``page`` writes the document, ``charts`` draws figures as SVG.
Every text from a trace is escaped, and long ones are cut: a name in a trace may contain anything.

``curves`` draws measured points and the curves of laws; ``paper000`` draws the figures of ``antecede bench paper000``.
"""

from antecede.report.page import page_of

__all__ = ["page_of"]
