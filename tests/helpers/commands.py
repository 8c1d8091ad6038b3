"""Commands that tests run in their own process."""

import logging

import pytest

from antecede.cli import run


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must fail; return its line."""
    capsys.readouterr()
    logger = logging.getLogger("antecede")
    before = (logger.handlers, logger.level, logger.propagate)
    try:
        assert run(list(arguments)) == 2
    finally:
        logger.handlers, logger.level, logger.propagate = before
    return capsys.readouterr().err
