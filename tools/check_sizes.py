"""Files, classes and functions stay small enough to be read at once.

    python tools/check_sizes.py [FOLDER]

Reads sources below FOLDER (the repository). Docstrings do not count for functions and classes:
they are the contract, and a longer one is no fault. Comments and empty lines do.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

_PYTHON_FILE = 650
_FUNCTION = 80
_CLASS = 300
_CPP_FILE = 600

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def complaints(root: Path) -> Iterator[str]:
    """``file:line: what is too long``, in order."""
    for path in sorted((root / "python/autoshard").rglob("*.py")):
        place = path.relative_to(root).as_posix()
        text = path.read_text()
        yield from _long_file(place, text, _PYTHON_FILE)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, _Definition):
                yield from _long_definition(place, node)
    for path in sorted((root / "passes").rglob("*")):
        if path.suffix in (".h", ".cpp"):
            yield from _long_file(path.relative_to(root).as_posix(), path.read_text(), _CPP_FILE)


def _long_file(place: str, text: str, limit: int) -> Iterator[str]:
    lines = len(text.splitlines())
    if lines > limit:
        yield f"{place}:1: {lines} lines, and {limit} is the most. Move a part that stands alone."


def _long_definition(place: str, node: _Definition) -> Iterator[str]:
    is_class = isinstance(node, ast.ClassDef)
    kind, limit = ("class", _CLASS) if is_class else ("function", _FUNCTION)
    lines = _lines(node) - sum(_lines(inner) for inner in ast.walk(node) if _is_docstring(inner))
    if lines > limit:
        yield (
            f"{place}:{node.lineno}: {kind} {node.name} has {lines} lines without docstrings, and"
            f" {limit} is the most. Cut it where it does a second thing."
        )


def _lines(node: ast.AST) -> int:
    assert isinstance(node, ast.stmt)
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def _is_docstring(node: ast.AST) -> bool:
    """A string that stands alone: of a module, class, function or field."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]
    found = list(complaints(root))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
