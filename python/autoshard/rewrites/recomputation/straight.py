"""Compute values again in straight-line code, or send them to the host and back, behind barriers.

The barrier takes a value that exists late only, so that neither copies nor transfers can run early,
and what copies read, so that they are not merged with the originals. passes/recompute.py shows it.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard._core import Batch, Clones, Fetch, Storage
from autoshard.importer.imported_program import NO_VALUE
from autoshard.ir import mlir
from autoshard.ir.attributes import MHLO_SHARDING
from autoshard.ir.host_memory import DEVICE, PINNED_HOST
from autoshard.ir.inline import substitute
from autoshard.planned.summarize import shardings_of
from autoshard.rewrites.recomputation.block import Block
from autoshard.rewrites.recomputation.gradients import gradients_before
from autoshard.rewrites.recomputation.moves import write_move
from autoshard.sharding import Sharding, to_v2


def write_clones(
    block: Block, clones: Clones, fetches: Sequence[Fetch] = (), *, keep_parameters: bool = False
) -> None:
    """Write the copies and the transfers to the module."""
    _Writer(block, clones, keep_parameters).write(fetches)


class _Writer:
    def __init__(self, block: Block, clones: Clones, keep_parameters: bool) -> None:
        self.block, self.clones = block, clones
        self.keep_parameters = keep_parameters
        costed = block.costed
        self.shardings = shardings_of(costed.plan, costed.mesh)
        self.texts = [to_v2(one) for one in self.shardings]
        self.copies: dict[int, mlir.Value] = {}
        """Value -> what was computed again."""
        self.behind: dict[int, mlir.Value] = {}
        """Value -> what a barrier made of it, or what came back from the host, for the readers
        behind."""
        self.gradients: dict[int, list[int]] = {}
        """Position of a barrier -> gradients that it waits for."""
        self.fetched: set[int] = set()
        """Values that came back from the host."""
        self.sent: set[int] = set()
        """Values that go there."""

    def write(self, fetches: Sequence[Fetch]) -> None:
        clones = self.clones
        batches = {batch.position: batch for batch in clones.batches}
        barriers = sorted(position for position, batch in batches.items() if batch.ops)
        self.gradients = gradients_before(self.block, barriers)
        going: dict[int, list[Fetch]] = {}
        coming: dict[int, list[Fetch]] = {}
        for fetch in fetches:
            going.setdefault(fetch.gone, []).append(fetch)
            coming.setdefault(fetch.back, []).append(fetch)
        self.sent = {one.number for one in fetches}
        there: dict[int, mlir.Value] = {}
        for position in sorted(batches.keys() | going.keys() | coming.keys()):
            for fetch in going.get(position, ()):
                there[fetch.number] = self._send(fetch)
            for fetch in coming.get(position, ()):
                self._bring_back(fetch, there[fetch.number])
            if position in batches:
                self._serve(batches[position])

    def _send(self, fetch: Fetch) -> mlir.Value:
        """Move a value to the host, where the program has to have done so; the value there."""
        value = self.block.ssa(fetch.number)
        point = mlir.InsertionPoint(self.block.ops[fetch.gone])
        there = write_move(value, PINNED_HOST, self._sharding_of(fetch.number), point)
        return (
            self._with_late(fetch.number, there, fetch.gone) if fetch.gone < fetch.back else there
        )

    def _bring_back(self, fetch: Fetch, there: mlir.Value) -> None:
        """Move a value to the device, not before what runs last before it."""
        there = self._with_late(fetch.number, there, fetch.back)
        point = mlir.InsertionPoint(self.block.ops[fetch.back])
        back = write_move(there, DEVICE, self._sharding_of(fetch.number), point)
        self.behind[fetch.number] = back
        self.fetched.add(fetch.number)

    def _with_late(self, number: int, there: mlir.Value, position: int) -> mlir.Value:
        """A value on the host, behind a barrier with what was made last before ``position``.

        What is behind that waits until the value is there, and what takes it from there runs late.
        """
        anchor = self._anchor_before(position, self.block.core.value(number).maker)
        if anchor is None:
            return there
        reader = self.block.ops[position]
        late = self.behind.get(anchor, self.block.ssa(anchor))
        barrier = mlir.Operation.create(
            "stablehlo.optimization_barrier",
            results=[there.type, late.type],
            operands=[there, late],
            attributes={MHLO_SHARDING: self._sharding([number, anchor])},
            loc=reader.location,
            ip=mlir.InsertionPoint(reader),
        )
        self._read_behind(anchor, position, barrier.results[1])
        return barrier.results[0]

    def _serve(self, batch: Batch) -> None:
        if batch.ops:
            self._write_batch(batch)
        op = self.block.ops[batch.position]
        operands = self.block.core.operands(batch.position)
        for place, number in enumerate(operands[: len(op.operands)]):
            now = self._now(number)
            if now is not None:
                op.operands[place] = now
        self._replace_captured(op, operands[len(op.operands) :])

    def _now(self, number: int) -> mlir.Value | None:
        """What a late reader takes for a value; None for the value itself."""
        if number in self.fetched:
            return self.behind[number]
        return self.copies.get(number)

    def _replace_captured(self, op: mlir.Operation, numbers: Sequence[int]) -> None:
        """Ops in the regions of a reader read the copies, too."""
        changed = {self.block.ssa(n): now for n in numbers if (now := self._now(n)) is not None}
        if changed:
            for region in op.regions:
                for inner_block in region.blocks:
                    for inner in inner_block.operations:
                        substitute(inner.operation, changed)

    def _write_batch(self, batch: Batch) -> None:
        reader = self.block.ops[batch.position]
        through = [
            number
            for number in batch.inputs
            if not (self.keep_parameters and self.block.core.value(number).is_parameter)
        ]
        anchor = self._anchor(batch)
        # Else what is made of them alone may run early, as one kernel for all batches.
        copied = [] if anchor is None else self._copied_before(batch)
        elsewhere = {*through, anchor} | self.copies.keys() | self.sent
        late = [n for n in self.gradients.get(batch.position, ()) if n not in elsewhere]
        taken = [*through, *copied, *late, *([] if anchor is None else [anchor])]
        seen: dict[int, mlir.Value] = {}
        if taken:
            operands = [self._newest(number) for number in taken]
            barrier = mlir.Operation.create(
                "stablehlo.optimization_barrier",
                results=[operand.type for operand in operands],
                operands=operands,
                attributes={MHLO_SHARDING: self._sharding(taken)},
                loc=reader.location,
                ip=mlir.InsertionPoint(reader),
            )
            seen = dict(zip(through, barrier.results, strict=False))
            for place, number in enumerate(copied, len(through)):
                self.copies[number] = barrier.results[place]
            for place, number in enumerate(late, len(through) + len(copied)):
                self._read_behind(number, batch.position, barrier.results[place])
            if anchor is not None:
                self._read_behind(anchor, batch.position, barrier.results[len(barrier.results) - 1])
        for position in batch.ops:
            original = self.block.ops[position]
            copy = original.clone(ip=mlir.InsertionPoint(reader)).operation
            for place, number in enumerate(self.block.core.operands(position)):
                if place < len(copy.operands):
                    copy.operands[place] = self._read(number, seen)
            for number, result in zip(self.block.core.results(position), copy.results, strict=True):
                self.copies[number] = result

    def _copied_before(self, batch: Batch) -> list[int]:
        """What ops of a batch read that was computed again, and stored, for an earlier one."""
        core = self.block.core
        read = dict.fromkeys(n for position in batch.ops for n in core.operands(position))
        return [n for n in read if n in self.copies and core.value(n).storage is Storage.STORED]

    def _newest(self, number: int) -> mlir.Value:
        """A value as it is read from now on; of what was computed again the copy."""
        if number in self.copies:
            return self.copies[number]
        return self.behind.get(number, self.block.ssa(number))

    def _read(self, number: int, seen: dict[int, mlir.Value]) -> mlir.Value:
        if number in self.copies:
            return self.copies[number]
        return seen.get(number, self.behind.get(number, self.block.ssa(number)))

    def _core_value(self, number: int) -> int:
        return self.block.core.value(number).in_program

    def _sharding_of(self, number: int) -> Sharding:
        return self.shardings[
            self.block.costs.value_sharding[self.block.core.value(number).in_program]
        ]

    def _sharding(self, numbers: list[int]) -> mlir.Attribute:
        texts = [
            self._sharding_text(self.block.core.value(number).in_program) for number in numbers
        ]
        text = texts[0] if len(texts) == 1 else f"{{{', '.join(texts)}}}"
        return mlir.StringAttr.get(text)

    def _sharding_text(self, core: int) -> str:
        if core == NO_VALUE:
            return "{replicated}"
        return self.texts[self.block.costs.value_sharding[core]]

    def _anchor(self, batch: Batch) -> int | None:
        """What was made last before the reader, is in memory, and is read at or behind it.

        XLA drops from a barrier what nobody reads behind it, so that has to be an op that is still
        needed. None if nothing late is: then nothing keeps the copies from running early.
        """
        makers = [self.block.core.value(number).maker for number in batch.inputs]
        return self._anchor_before(batch.position, max([*makers, *batch.ops]))

    def _anchor_before(self, reader: int, newest: int) -> int | None:
        """What is in memory, made behind ``newest`` and before ``reader``, and read behind both."""
        position = reader
        while position > newest:
            position, numbers = self.clones.anchors(self.block.core, reader, newest, position)
            for number in numbers:
                if number not in self.copies and number not in self.sent:
                    return number
        return None

    def _read_behind(self, number: int, position: int, result: mlir.Value) -> None:
        """Readers from ``position`` on take what the barrier gives."""
        before = self.behind.get(number, self.block.ssa(number))
        changed = {before: result}
        for reader in self.block.core.readers(number):
            if reader >= position:
                substitute(self.block.ops[reader], changed)
        self.behind[number] = result
