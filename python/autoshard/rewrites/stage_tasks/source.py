"""A program in micro-batches and stages before it is split: parts, and what its loop carries."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.errors import PlanError
from autoshard.ir import mlir, place
from autoshard.ir.attributes import MHLO_SHARDING, PIPELINE_STAGES, RESHARDED
from autoshard.ir.boundary import attributes_at, main_function
from autoshard.ir.micro_batch_loop import micro_batch_loop
from autoshard.rewrites.stage_tasks.shardings import sharding_attribute, shardings_of


@dataclass(frozen=True, slots=True)
class CarriedValue:
    """A value that a micro-batch hands on to the next one."""

    argument: mlir.Value
    """As the body reads it."""
    start: mlir.Operation
    """The constant that it is at first, right before the loop."""
    update: mlir.Value
    """As the body yields it."""
    result: mlir.Value
    """Behind the loop."""
    sharding: str | None


class SourceProgram:
    """Reads a program. What its loop only passes through, the body then reads from outside."""

    def __init__(self, module: mlir.Module) -> None:
        """Read a module.

        Args:
            module: Changed a little: what the loop starts from becomes constants of its own.

        Raises:
            PlanError: It has no stages, no loop, or a loop that no pass of autoshard writes.
        """
        attributes = module.operation.attributes
        if PIPELINE_STAGES not in attributes:
            raise PlanError("the program has no stages. Run autoshard-pipeline-stages before.")
        self.module = module
        self.stages = mlir.IntegerAttr(attributes[PIPELINE_STAGES]).value
        self.main = main_function(module)
        self.block = self.main.regions[0].blocks[0]
        self.loop = micro_batch_loop(self.main)
        self.body = self.loop.regions[1].blocks[0]
        self.number: mlir.Value = self.body.arguments[0]
        """Which micro-batch it is."""
        self.end = _last(self.block)
        self.sharding: dict[mlir.Value, str | None] = {}
        """What is known: those of arguments, and such as differ from what is planned."""
        self.held: list[mlir.Operation] = []
        """Ops before the loop that split what it reads as it is carried."""
        self._read_arguments()
        self.first = self._own_constant(self.loop.operands[0])
        """The number of the first micro-batch."""
        self.carried = self._read_carried()
        self.counted, self.one = self._read_count()
        """The op that counts micro-batches, and the constant by which."""

    def _read_arguments(self) -> None:
        """Know the shardings of arguments of ``main`` and of the loop."""
        at = attributes_at(self.main, "arg_attrs")
        for argument, entry in zip(self.block.arguments, at, strict=True):
            attribute = entry.get(MHLO_SHARDING)
            text = None if attribute is None else mlir.StringAttr(attribute).value
            self.sharding[argument] = text
        self.sharding.update(zip(self.body.arguments, shardings_of(self.loop), strict=True))

    def sharding_of(self, value: mlir.Value) -> str | None:
        """How a value is sharded; None: nothing is planned."""
        if value not in self.sharding and not isinstance(value, mlir.BlockArgument):
            maker = mlir.OpResult(value).owner.operation
            for result, text in zip(maker.results, shardings_of(maker), strict=True):
                self.sharding.setdefault(result, text)
        return self.sharding.get(value)

    def _read_carried(self) -> list[CarriedValue]:
        yielded = _last(self.body).operands
        carried: list[CarriedValue] = []
        for k, argument in enumerate(self.body.arguments):
            start, result = self.loop.operands[k], self.loop.results[k]
            if k and yielded[k] == argument:
                argument.replace_all_uses_with(self._as_carried(start, argument))
                result.replace_all_uses_with(start)
            elif k:
                own = self._own_constant(start)
                self.loop.operands[k] = own.results[0]
                text = self.sharding[argument]
                carried.append(CarriedValue(argument, own, yielded[k], result, text))
        if list(self.loop.results[0].uses):
            raise self._unknown("hands out how many micro-batches there are")
        return carried

    def _own_constant(self, value: mlir.Value) -> mlir.Operation:
        """A copy of a constant from which the loop starts, right before it."""
        maker = value.owner
        if isinstance(maker, mlir.Block) or maker.name != "stablehlo.constant":
            raise self._unknown(f"carries a value of type {value.type} that starts as no constant")
        made = mlir.OpResult(value).owner.operation.clone(ip=mlir.InsertionPoint(self.loop))
        return made.operation

    def _unknown(self, what: str) -> PlanError:
        return PlanError(
            f"the loop over micro-batches {what}, which no pass of autoshard writes. Let"
            " autoshard-micro-batch write it.",
            place(self.loop.location),
        )

    def _as_carried(self, start: mlir.Value, argument: mlir.Value) -> mlir.Value:
        """What the body reads, split as it is carried: where that differs, once before the loop."""
        text = self.sharding[argument]
        if text is None or text == self.sharding_of(start):
            return start
        held = mlir.Operation.create(
            "stablehlo.optimization_barrier",
            results=[start.type],
            operands=[start],
            attributes={**sharding_attribute([text]), RESHARDED: mlir.UnitAttr.get()},
            loc=self.loop.location,
            ip=mlir.InsertionPoint(self.loop),
        )
        self.held.append(held)
        return held.results[0]

    def _read_count(self) -> tuple[mlir.Operation, mlir.Operation]:
        counted = mlir.OpResult(_last(self.body).operands[0]).owner.operation
        step = 1 if counted.operands[0] == self.number else 0
        maker = mlir.OpResult(counted.operands[step]).owner.operation
        one = maker.clone(ip=mlir.InsertionPoint(counted)).operation
        counted.operands[step] = one.results[0]
        return counted, one


def _last(block: mlir.Block) -> mlir.Operation:
    return block.operations[len(block.operations) - 1].operation
