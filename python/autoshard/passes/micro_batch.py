"""Work through the batch in micro-batches, one after the other in one loop.

before  %l = stablehlo.dot_general %x, %w .. : (tensor<8x4xf32>, tensor<4x2xf32>) -> tensor<8x2xf32>
        %s = stablehlo.reduce(%l init: %zero) applies stablehlo.add across dimensions = [0, 1]
after   %xs = stablehlo.reshape %x : (tensor<8x4xf32>) -> tensor<4x2x1x4xf32>
        %r:4 = stablehlo.while(%m = 0, %xs, %w, %sum = 0) : m < 2
          %part = dynamic_slice %xs [0, %m, 0, 0], reshape to tensor<4x4xf32>
          %l = stablehlo.dot_general %part, %w .. -> tensor<4x2xf32>
          %s = stablehlo.reduce(%l init: %zero) ..
          yields %m + 1, %xs, %w, %sum + %s
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

from autoshard.errors import PassOptionError, PlanError
from autoshard.importer.dataflow import dataflow
from autoshard.importer.roles import Role, argument_roles
from autoshard.ir import mlir
from autoshard.ir.attributes import MICRO_BATCHES
from autoshard.ir.boundary import main_function
from autoshard.passes.base import Pass
from autoshard.planned.write import populate_rules
from autoshard.rewrites.given_arguments import arguments_called
from autoshard.rewrites.micro_batches.rewrite import into_micro_batches


@dataclass(frozen=True)
class MicroBatch(Pass):
    """Run a step over micro-batches in one loop, with the results of the whole batch.

    Gradients and other sums over the batch are added up, the optimizer runs once behind the loop,
    and only one micro-batch's activations live at a time. Runs before planning. What would not be
    the same is refused.
    """

    name: ClassVar[str] = "autoshard-micro-batch"

    micro_batches: int = 1
    """How many; they divide dim 0 of the arguments that hold the batch. 1: nothing is changed."""

    batch: tuple[str | int, ...] = ()
    """Arguments that hold examples in dim 0, by name (batch) or number among all arrays, from 0;
    none: found by structure."""

    per_micro_batch: tuple[str, ...] = ()
    """Lines (model.py:41) whose sums over the batch are those of each micro-batch, scaled to the
    whole, where they are needed in the middle of the step: other semantics than without."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch", tuple(map(str, self.batch)))
        super().__post_init__()
        if self.micro_batches < 1:
            raise PassOptionError(
                f"{self.name}: option micro-batches={self.micro_batches} is out of range. Give 1 or"
                " more."
            )

    def run(self, module: mlir.Module) -> None:
        """See ``Pass.run``."""
        if self.micro_batches == 1:
            return
        with module.context, mlir.Location.unknown():
            batch = self.arguments(module, main_function(module))
            made = into_micro_batches(module, batch, self.micro_batches, self.per_micro_batch)
            said = {"count": self.micro_batches, "whole": made.whole, "each": made.each}
            module.operation.attributes[MICRO_BATCHES] = mlir.StringAttr.get(json.dumps(said))

    def arguments(self, module: mlir.Module, main: mlir.Operation) -> list[int]:
        """Numbers of the arguments of ``main`` that hold the batch.

        Raises:
            PlanError: No argument has such a name, or none is known to hold it.
        """
        if self.batch:
            return sorted(set(arguments_called(main, map(str, self.batch), self.name)))
        return batch_by_structure(module, main)


def batch_by_structure(module: mlir.Module, main: mlir.Operation) -> list[int]:
    """Numbers of the arguments of ``main`` that hold the batch, as the program uses them.

    Raises:
        PlanError: There is none.
    """
    populate_rules(module)
    roles = argument_roles(main, dataflow(module))
    found = list(roles.of(Role.BATCH))
    if not found:
        raise PlanError(
            f"{MicroBatch.name}: no argument is known to hold the batch. Name them: batch=1,2."
        )
    return found
