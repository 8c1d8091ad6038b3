"""Syntax trees of many files, kept for later tests."""

import ast
import gc


def parsed(source: str) -> ast.Module:
    """Return the tree of a source, and keep the tree out of all later searches for garbage. With hundreds of trees in
    memory, these searches would take three times as long as the parser."""
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        gc.freeze()
        gc.enable()
