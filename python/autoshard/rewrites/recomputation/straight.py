"""Compute values again in straight-line code, behind barriers; passes/recompute.py shows how.

The barrier takes a value that exists late only, so that the copies cannot run early, and what
they read, so that they are not merged with the originals.
"""

from __future__ import annotations

from autoshard.ir import mlir
from autoshard.ir.attributes import MHLO_SHARDING
from autoshard.ir.inline import substitute
from autoshard.planned.summarize import shardings_of
from autoshard.rewrites.recomputation.block import Block, Kind
from autoshard.rewrites.recomputation.clones import Batch, Clones
from autoshard.sharding import to_v2


def write_clones(block: Block, clones: Clones, *, keep_parameters: bool = False) -> int:
    """Write the copies to the module; how many ops run again."""
    return _Writer(block, keep_parameters).write(clones)


class _Writer:
    def __init__(self, block: Block, keep_parameters: bool) -> None:
        self.block = block
        self.keep_parameters = keep_parameters
        costed = block.costed
        self.texts = [to_v2(one) for one in shardings_of(costed.plan, costed.mesh)]
        self.copies: dict[int, mlir.Value] = {}
        """Value -> what was computed again."""
        self.behind: dict[int, mlir.Value] = {}
        """Value -> what a barrier made of it, for the readers behind."""

    def write(self, clones: Clones) -> int:
        for batch in clones.batches:
            if batch.ops:
                self._write_batch(batch)
            op = self.block.ops[batch.position]
            for place, number in enumerate(self.block.operands[batch.position]):
                if place < len(op.operands) and number in self.copies:
                    op.operands[place] = self.copies[number]
            self._replace_captured(op, batch.position)
        return sum(len(batch.ops) for batch in clones.batches)

    def _replace_captured(self, op: mlir.Operation, position: int) -> None:
        """Ops in the regions of a reader read the copies, too."""
        numbers = self.block.operands[position][len(op.operands) :]
        changed = {self.block.values[n].ssa: self.copies[n] for n in numbers if n in self.copies}
        if changed:
            for region in op.regions:
                for inner_block in region.blocks:
                    for inner in inner_block.operations:
                        substitute(inner.operation, changed)

    def _write_batch(self, batch: Batch) -> None:
        values = self.block.values
        reader = self.block.ops[batch.position]
        through = [
            number
            for number in batch.inputs
            if not (self.keep_parameters and number in self.block.made_of_arguments)
        ]
        anchor = self._anchor(batch)
        taken = [*through, anchor] if anchor is not None else through
        seen: dict[int, mlir.Value] = {}
        if taken:
            operands = [self.behind.get(number, values[number].ssa) for number in taken]
            barrier = mlir.Operation.create(
                "stablehlo.optimization_barrier",
                results=[operand.type for operand in operands],
                operands=operands,
                attributes={MHLO_SHARDING: self._sharding(taken)},
                loc=reader.location,
                ip=mlir.InsertionPoint(reader),
            )
            seen = dict(zip(through, barrier.results, strict=False))
            if anchor is not None:
                self._read_behind(anchor, batch.position, barrier.results[len(barrier.results) - 1])
        for position in batch.ops:
            original = self.block.ops[position]
            copy = original.clone(ip=mlir.InsertionPoint(reader)).operation
            for place, number in enumerate(self.block.operands[position]):
                if place < len(copy.operands):
                    copy.operands[place] = self._read(number, seen)
            for number, result in zip(self.block.results[position], copy.results, strict=True):
                self.copies[number] = result

    def _read(self, number: int, seen: dict[int, mlir.Value]) -> mlir.Value:
        if number in self.copies:
            return self.copies[number]
        return seen.get(number, self.block.values[number].ssa)

    def _sharding(self, numbers: list[int]) -> mlir.Attribute:
        texts = [self.block.sharding_text(number, self.texts) for number in numbers]
        text = texts[0] if len(texts) == 1 else f"{{{', '.join(texts)}}}"
        return mlir.StringAttr.get(text)

    def _anchor(self, batch: Batch) -> int | None:
        """What was made last before the reader, is in memory, and is read at or behind it.

        None if nothing late is: then nothing keeps the copies from running early.
        """
        values = self.block.values
        newest = max((values[number].maker for number in batch.inputs), default=-1)
        newest = max(newest, max(batch.ops))
        for position in range(batch.position - 1, newest, -1):
            for number in self.block.results[position]:
                value = values[number]
                is_there = value.kind in (Kind.STORED, Kind.KEPT) and value.core >= 0
                is_read = value.readers and value.readers[-1] >= batch.position
                if is_there and is_read and number not in self.copies:
                    return number
        return None

    def _read_behind(self, number: int, position: int, result: mlir.Value) -> None:
        """Readers from ``position`` on take what the barrier gives."""
        value = self.block.values[number]
        before = self.behind.get(number, value.ssa)
        changed = {before: result}
        for reader in value.readers:
            if reader >= position:
                substitute(self.block.ops[reader], changed)
        self.behind[number] = result
