"""Docstrings and comments name what they are about.

    python tools/check_docstrings.py [FOLDER]

Reads sources below FOLDER (the repository). A docstring, or a string behind a field, does not begin
with Of, That or Likewise: ``peak_bytes`` are ``Bytes of one step``, not ``Of one step``. The same
holds for comments in C++, of which consecutive lines are one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_PYTHON = ("bench", "examples", "python/autoshard", "test", "tools")
_FRAGMENT = re.compile(r"\s*(Of|That|Likewise)\b")
_COMMENT = re.compile(r"\s*//+")


def complaints(root: Path) -> Iterator[str]:
    """``file:line: what is wrong``, in order."""
    for folder, kinds, fragments in (
        *((folder, (".py", ".pyi"), _python_fragments) for folder in _PYTHON),
        ("passes", (".h", ".cpp"), _cpp_fragments),
    ):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in kinds:
                place = path.relative_to(root).as_posix()
                for number, word in fragments(path.read_text()):
                    yield (
                        f"{place}:{number}: this begins with {word}. Begin with a noun: what it"
                        " is, for a number its unit."
                    )


def _python_fragments(text: str) -> Iterator[tuple[int, str]]:
    """Line and first word of each string that stands alone and is a fragment."""
    strings = [
        (node.lineno, node.value.value)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    for number, string in sorted(strings):
        if found := _FRAGMENT.match(string):
            yield number, found[1]


def _cpp_fragments(text: str) -> Iterator[tuple[int, str]]:
    """Line and first word of each comment that is a fragment."""
    is_in_comment = False
    for number, line in enumerate(text.splitlines(), start=1):
        slashes = _COMMENT.match(line)
        if slashes and not is_in_comment and (found := _FRAGMENT.match(line, slashes.end())):
            yield number, found[1]
        is_in_comment = slashes is not None


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]
    found = list(complaints(root))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
