"""Constraints that reproduce a plan, as a diff of the files that the program is written in."""

from __future__ import annotations

import ast
import difflib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoshard.explain.annotations import Annotation, Annotations


def patch_text(found: Annotations) -> str:
    """See ``Annotations.to_patch``."""
    at: defaultdict[str, dict[int, Annotation]] = defaultdict(dict)
    by_hand: list[Annotation] = []
    for line in found.constraints:
        file, _, number = (line.location or "").rpartition(":")
        if line.is_whole and int(number) not in at[file]:
            at[file][int(number)] = line
        else:
            by_hand.append(line)
    parts: list[str] = []
    for file, lines in at.items():
        diff, left = _diff(Path(file), lines)
        parts.append(diff)
        by_hand += left
    if by_hand:
        parts.append("# by hand:\n")
    parts += [f"#   {one.location}: {one.name} {one.type} as {one.spec_text}\n" for one in by_hand]
    return "".join(parts)


def _diff(path: Path, lines: dict[int, Annotation]) -> tuple[str, list[Annotation]]:
    """The diff of one file, and the lines that cannot be edited safely."""
    if not path.is_file():
        return "", list(lines.values())
    text = path.read_text()
    tree = ast.parse(text)
    assigned = _assigned(tree)
    if not _imports_jax(tree):
        return "", list(lines.values())
    old = text.splitlines(keepends=True)
    new = list(old)
    left: list[Annotation] = []
    for number in sorted(lines, reverse=True):
        if number not in assigned:
            left.append(lines[number])
            continue
        name, column = assigned[number]
        spec = lines[number].spec_text.replace("P(", "jax.sharding.PartitionSpec(", 1)
        said = f"{name} = jax.lax.with_sharding_constraint({name}, {spec})"
        new.insert(number, f"{' ' * column}{said}\n")
    return "".join(difflib.unified_diff(old, new, str(path), str(path))), left


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
            if isinstance(target, ast.Name) and not others:
                found[node.lineno] = (target.id, node.col_offset)
    return {line: what for line, what in found.items() if seen[line] == 1}


def _imports_jax(tree: ast.Module) -> bool:
    names: Sequence[ast.alias] = [
        name for node in tree.body if isinstance(node, ast.Import) for name in node.names
    ]
    return any(name.name == "jax" and name.asname is None for name in names)
