"""The names of the package: those that checkers see are those that are imported late."""

from __future__ import annotations

import ast
from pathlib import Path

import autoshard


def seen_by_checkers() -> dict[str, str]:
    """Name -> module of what is imported for type checkers alone."""
    assert autoshard.__file__ is not None
    tree = ast.parse(Path(autoshard.__file__).read_text())
    (block,) = (one for one in tree.body if isinstance(one, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    return {
        name.asname or name.name: one.module or ""
        for one in block.body
        if isinstance(one, ast.ImportFrom)
        for name in one.names
    }


def test_checkers_see_the_names_that_are_imported_late() -> None:
    assert seen_by_checkers() == autoshard._LATE  # pyright: ignore[reportPrivateUsage]
