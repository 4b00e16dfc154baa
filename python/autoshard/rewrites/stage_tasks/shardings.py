"""Shardings of results of ops, as texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from autoshard.errors import AutoshardError
from autoshard.ir import mlir, place
from autoshard.ir.attributes import MHLO_SHARDING
from autoshard.sharding.hlo_text import NamedHlo, parse_hlo, to_v2

_BRACE = re.compile("[{}]")


def shardings_of(op: mlir.Operation) -> list[str | None]:
    """The planned sharding of each result of an op.

    Raises:
        AutoshardError: It cannot be read.
    """
    count = len(op.results)
    if MHLO_SHARDING not in op.attributes or not count:
        return [None] * count
    text = mlir.StringAttr(op.attributes[MHLO_SHARDING]).value
    if count == 1:
        return [text]
    try:
        return list(_elements(text))
    except AutoshardError as error:
        raise type(error)(f"{op.name}: {error.message}", place(op.location)) from error


@lru_cache(maxsize=64)
def _elements(text: str) -> tuple[str, ...]:
    """Those of a tuple, as texts."""
    if not text.startswith("{{") or '"' in text:
        return _canonical(text)
    found: list[str] = []
    depth, start = 0, 0
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            start = brace.start() if depth == 1 else start
            depth += 1
            continue
        depth -= 1
        if depth == 1:
            found += _canonical(text[start : brace.end()])
    return tuple(found)


@lru_cache(maxsize=4096)
def _canonical(text: str) -> tuple[str, ...]:
    """One text, or those of a tuple; a loop has thousands of elements, and few that differ."""
    read = parse_hlo(text)
    elements = read if isinstance(read, tuple) else (read,)
    return tuple(
        to_v2(element.sharding) if isinstance(element, NamedHlo) else str(element)
        for element in elements
    )


def sharding_attribute(shardings: Sequence[str | None]) -> dict[str, mlir.Attribute]:
    """``mhlo.sharding`` of an op with these results; empty where nothing is planned."""
    if not shardings or any(sharding is None for sharding in shardings):
        return {}
    texts = [sharding for sharding in shardings if sharding is not None]
    text = texts[0] if len(texts) == 1 else "{" + ", ".join(texts) + "}"
    return {MHLO_SHARDING: mlir.StringAttr.get(text)}
