"""Forget what the program says of recomputing: compute everything once, and keep it.

before  %h = stablehlo.tanh %a
        ..
        %b:2 = stablehlo.optimization_barrier %a, %dy
        %h2 = stablehlo.tanh %b#0
        %g = stablehlo.multiply %b#1, %h2
after   %h = stablehlo.tanh %a
        ..
        %g = stablehlo.multiply %dy, %h

The inverse of autoshard-recompute. A backward scan that computes values again reads stacks in their
place, which the forward scan writes. What a policy sends to the host stays on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from autoshard.ir import mlir
from autoshard.passes.base import Pass
from autoshard.rewrites.checkpoints.undo import undo_checkpoints


@dataclass(frozen=True)
class UndoCheckpoints(Pass):
    """Undo ``jax.checkpoint``, so that what is computed again is decided anew.

    Runs before planning. A module in which nothing is computed again stays as it is.
    """

    name: ClassVar[str] = "autoshard-undo-checkpoints"

    def run(self, module: mlir.Module) -> None:
        """See ``Pass.run``; warns of what is still computed again, and why."""
        undo_checkpoints(module)
