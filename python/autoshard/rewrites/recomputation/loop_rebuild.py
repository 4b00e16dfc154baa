"""Write a loop anew, with other carried values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autoshard.ir import mlir
from autoshard.ir.attributes import MHLO_SHARDING, PIN
from autoshard.rewrites.recomputation.loops import maker_of
from autoshard.sharding import Sharding, format_sharding, to_v2


@dataclass(frozen=True, slots=True)
class Carried:
    """A value that a loop is to carry."""

    init: mlir.Value
    sharding: Sharding | None
    """None in a module that is not planned."""

    @property
    def text(self) -> str:
        """Its ``mhlo.sharding``."""
        assert self.sharding is not None, "the loop is planned"
        return to_v2(self.sharding)

    @property
    def pin(self) -> str:
        """Its sharding as a plan writes it."""
        assert self.sharding is not None, "the loop is planned"
        return format_sharding(self.sharding)


@dataclass(frozen=True, slots=True)
class Now:
    """Where values of a loop's body are while it is rebuilt."""

    of_slot: dict[int, mlir.Value]
    old: list[mlir.Value]
    end: mlir.InsertionPoint
    """Before the body's return."""

    def __call__(self, value: mlir.Value) -> mlir.Value:
        """A value of the old body."""
        return self.of_slot[self.old.index(value)] if value in self.old else value


def rebuilt(
    loop: mlir.Operation,
    gone: set[int],
    added: Sequence[Carried],
    texts: list[str] | None,
    write: Callable[[list[mlir.Value], Now], list[mlir.Value]],
) -> tuple[mlir.Operation, list[mlir.Value]]:
    """A loop without some carried values and with some more; ``loop`` is left without ops.

    Args:
        loop: What is rebuilt.
        gone: Slots that are left out; after ``write`` nothing reads them but their own updates.
        added: New ones.
        texts: Shardings of the old ones; None in a module that is not planned.
        write: Given the new block arguments of the body that were added, and where the old ones
            are now, writes what the body computes and returns what they are in the next trip.
    """
    kept = [slot for slot in range(len(loop.operands)) if slot not in gone]
    operands = [*(loop.operands[slot] for slot in kept), *(one.init for one in added)]
    types = [value.type for value in operands]
    attributes = {name: loop.attributes[name] for name in loop.attributes if name != MHLO_SHARDING}
    if texts is not None:
        attributes |= _said(loop, [texts[slot] for slot in kept], kept, added)
    made = mlir.Operation.create(
        "stablehlo.while",
        results=types,
        operands=operands,
        attributes=attributes,
        regions=2,
        loc=loop.location,
        ip=mlir.InsertionPoint(loop),
    )
    dead: list[mlir.Value] = []
    for number, region in enumerate(loop.regions):
        old = region.blocks[0]
        new = made.regions[number].blocks.append(*types, arg_locs=[loop.location] * len(types))
        ops = [op.operation for op in old.operations]
        for op in ops:
            new.append(op)
        for place, slot in enumerate(kept):
            old.arguments[slot].replace_all_uses_with(new.arguments[place])
        if number == 0:
            continue
        fresh = [new.arguments[len(kept) + place] for place in range(len(added))]
        end = ops[-1]
        of_slot = {slot: new.arguments[place] for place, slot in enumerate(kept)}
        now = Now(of_slot, list(old.arguments), mlir.InsertionPoint(end))
        following = write(fresh, now)
        yielded = [end.operands[slot] for slot in kept]
        dead = [end.operands[slot] for slot in gone if maker_of(end.operands[slot]) is not None]
        mlir.Operation.create(
            "stablehlo.return",
            operands=[*yielded, *following],
            loc=end.location,
            ip=mlir.InsertionPoint(end),
        )
        end.erase()
    for place, slot in enumerate(kept):
        loop.results[slot].replace_all_uses_with(made.results[place])
    return made, dead


def _said(
    loop: mlir.Operation, texts: list[str], kept: Sequence[int], added: Sequence[Carried]
) -> dict[str, mlir.Attribute]:
    """What a plan says of the values that a loop carries, the old ones and the new ones."""
    texts = [*texts, *(one.text for one in added)]
    whole = texts[0] if len(texts) == 1 else f"{{{', '.join(texts)}}}"
    said: dict[str, mlir.Attribute] = {MHLO_SHARDING: mlir.StringAttr.get(whole)}
    if PIN in loop.attributes:
        pins = loop.attributes[PIN]
        old = list(pins) if isinstance(pins, mlir.ArrayAttr) else [pins] * len(loop.results)
        new = [mlir.StringAttr.get(one.pin) for one in added]
        said[PIN] = mlir.ArrayAttr.get([*(old[slot] for slot in kept), *new])
    return said


def erase_unused(*values: mlir.Value) -> None:
    """Erase the ops that make values nobody reads, and what only they read."""
    waiting = list(values)
    erased: set[mlir.Value] = set()
    while waiting:
        current = waiting.pop()
        if current in erased:
            continue
        op = maker_of(current)
        if op is None or any(len(list(result.uses)) for result in op.results):
            continue
        operands = [operand for operand in op.operands if maker_of(operand) is not None]
        erased.update(op.results)
        op.erase()
        waiting.extend(dict.fromkeys(operands))
