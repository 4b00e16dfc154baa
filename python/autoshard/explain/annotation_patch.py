"""Constraints that reproduce a plan, as a diff of the files that the program is written in."""

from __future__ import annotations

import ast
import difflib
import io
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autoshard.explain.halves import Half

if TYPE_CHECKING:
    from autoshard.explain.annotation import Annotation
    from autoshard.explain.annotations import Annotations

_NO_NEWLINE = "\\ No newline at end of file\n"
"""What a diff says behind a last line that does not end."""

_NO_ARRAY = (ast.Tuple, ast.List, ast.Dict, ast.ListComp, ast.DictComp)
"""Expressions of what is no array, though a line with them makes some."""


_LISTED: Mapping[str, Callable[[Annotation], bool]] = {
    "by hand, constrained(x, forward=..), which to_python() has": lambda line: line.is_one_sided,
    "by hand, constrained(x, backward=..)": lambda line: line.half is Half.COTANGENT,
    "by hand, on what jax.grad gives": lambda line: line.half is Half.GRADIENT,
    "inside the backward half, which no line names": lambda line: not line.is_writable,
}
"""What is not edited, by what stands above it."""


def patch_text(found: Annotations) -> str:
    """See ``Annotations.to_patch``."""
    at: defaultdict[str, dict[int, Annotation]] = defaultdict(dict)
    by_hand: list[Annotation] = []
    for line in found.constraints:
        if line.half is not Half.FORWARD or line.is_by_custom_vjp:
            continue
        file, _, number = (line.location or "").rpartition(":")
        if line.is_whole and number.isdigit() and int(number) not in at[file]:
            at[file][int(number)] = line
        else:
            by_hand.append(line)
    parts: list[str] = []
    for file, lines in at.items():
        diff, left = _diff(Path(file), lines)
        parts.append(diff)
        by_hand += left
    parts += _listed("by hand", by_hand)
    for title, is_one in _LISTED.items():
        parts += _listed(title, [line for line in found.constraints if is_one(line)])
    return "".join(parts)


def _listed(title: str, lines: Sequence[Annotation]) -> list[str]:
    rows = [f"#   {one.text}\n" for one in lines]
    return [f"# {title}:\n", *rows] if rows else []


def _diff(path: Path, lines: dict[int, Annotation]) -> tuple[str, list[Annotation]]:
    """The diff of one file, and the lines that cannot be edited safely."""
    text = _text_of(path)
    tree = _tree_of(text)
    if not _imports_jax(tree):
        return "", list(lines.values())
    assigned = _assigned(tree)
    old = io.StringIO(text, newline="").readlines()
    new = list(old)
    left: list[Annotation] = []
    for number in sorted(lines, reverse=True):
        name, column = assigned.get(number, ("", 0))
        before = new[number - 1] if name else ""
        indent = before[:column]
        if not name or indent.strip():  # as behind an else:
            left.append(lines[number])
            continue
        spec = lines[number].spec_text.replace("P(", "jax.sharding.PartitionSpec(", 1)
        said = f"{name} = jax.lax.with_sharding_constraint({name}, {spec})"
        assignment = before.rstrip("\r\n")
        end = before.removeprefix(assignment) or "\n"
        new[number - 1 : number] = [assignment + end, f"{indent}{said}{end}"]
    rows = difflib.unified_diff(old, new, str(path), str(path))
    return "".join(row if row.endswith("\n") else f"{row}\n{_NO_NEWLINE}" for row in rows), left


def _text_of(path: Path) -> str:
    """The file with its line ends; empty where it cannot be read."""
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return ""


def _tree_of(text: str) -> ast.Module:
    """The statements of a file; none where it is no Python: a notebook's, or a module's text."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _assigned(tree: ast.Module) -> dict[int, tuple[str, int]]:
    """Lines that are ``name = ..`` and nothing else, with the name and its column."""
    found: dict[int, tuple[str, int]] = {}
    seen: dict[int, int] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt):
            continue
        seen[node.lineno] = seen.get(node.lineno, 0) + 1
        if isinstance(node, ast.Assign) and node.end_lineno == node.lineno:
            (target, *others) = node.targets
            if isinstance(target, ast.Name) and not others and not _is_no_array(node.value):
                found[node.lineno] = (target.id, node.col_offset)
    return {line: what for line, what in found.items() if seen[line] == 1}


def _is_no_array(value: ast.expr) -> bool:
    return isinstance(value, _NO_ARRAY) or any(isinstance(n, ast.Lambda) for n in ast.walk(value))


def _imports_jax(tree: ast.Module) -> bool:
    names: Sequence[ast.alias] = [
        name for node in tree.body if isinstance(node, ast.Import) for name in node.names
    ]
    return any(name.name == "jax" and name.asname is None for name in names)
