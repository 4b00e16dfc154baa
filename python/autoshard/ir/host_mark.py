"""The primitive behind ``autoshard.in_host_memory``: an identity that says where an array lives.

before  y = in_host_memory x
after   ordinary jit: nothing, y is x
        autoshard:    %y = stablehlo.custom_call @autoshard.in_host_memory(%x)
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import jax
from jax._src.compute_on import extend_compute_type
from jaxlib.mlir.dialects import stablehlo

from autoshard.ir.attributes import IN_HOST_MEMORY
from autoshard.ir.identity import identity_primitive
from autoshard.ir.lowering import marks_are_lowered


def computed_on_host() -> AbstractContextManager[str | None]:
    """Calls of jitted functions within are lowered as computed by the host.

    As ``jax.experimental.compute_on.compute_on("device_host")`` in JAX 0.10; in 0.12 that is no
    context manager any more, and wants to be told in which memory each result is.
    """
    return extend_compute_type("device_host")


def bind(value: jax.typing.ArrayLike) -> jax.Array:
    """``value`` itself, marked wherever it is traced."""
    return host_mark_p.bind(value)


def _lower(context: Any, value: Any) -> list[Any]:
    if not marks_are_lowered():
        return [value]
    operation: Any = stablehlo.CustomCallOp(
        [value.type], [value], call_target_name=IN_HOST_MEMORY, has_side_effect=False
    ).operation
    return [operation.result]


host_mark_p = identity_primitive("autoshard_in_host_memory", _lower)
"""Identity of one array."""
