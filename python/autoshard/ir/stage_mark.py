"""The primitive behind ``autoshard.pipeline_stage``: an identity that says where an array is.

before  y = pipeline_stage[stage=2] x
after   ordinary jit: nothing, y is x
        autoshard:    %y = stablehlo.custom_call @autoshard.pipeline_stage(%x) {autoshard.stage = 2}
"""

from __future__ import annotations

from typing import Any

import jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from autoshard.ir.attributes import PIPELINE_STAGE, STAGE
from autoshard.ir.identity import identity_primitive
from autoshard.ir.lowering import marks_are_lowered


def bind(value: jax.typing.ArrayLike, stage: int) -> jax.Array:
    """``value`` itself, marked wherever it is traced; its tangents and cotangents, too."""
    return stage_mark_p.bind(value, stage=stage)


def _lower(context: Any, value: Any, *, stage: int) -> list[Any]:
    if not marks_are_lowered():
        return [value]
    operation: Any = stablehlo.CustomCallOp(
        [value.type], [value], call_target_name=PIPELINE_STAGE, has_side_effect=False
    ).operation
    operation.attributes[STAGE] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), stage)
    return [operation.result]


stage_mark_p = identity_primitive("autoshard_pipeline_stage", _lower, marks_derivatives=True)
"""Identity of one array with parameter ``stage``."""
