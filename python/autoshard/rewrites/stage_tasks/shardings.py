"""Shardings of results of ops, as texts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from autoshard.errors import AutoshardError
from autoshard.ir import mlir, place
from autoshard.ir.attributes import MHLO_SHARDING
from autoshard.sharding.hlo_text import NamedHlo, parse_hlo, to_v2


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
