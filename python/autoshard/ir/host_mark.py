"""The primitive behind ``autoshard.in_host_memory``: an identity that says where an array lives.

before  y = in_host_memory x
after   ordinary jit: nothing, y is x
        autoshard:    %y = stablehlo.custom_call @autoshard.in_host_memory(%x)
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax._src.compute_on import extend_compute_type
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxlib.mlir.dialects import stablehlo

from autoshard.ir.host_memory import MARK
from autoshard.ir.lowering import marks_are_lowered

host_mark_p: Any = Primitive("autoshard_in_host_memory")
"""Identity of one array."""


def computed_on_host() -> AbstractContextManager[str | None]:
    """Calls of jitted functions within are lowered as computed by the host.

    As ``jax.experimental.compute_on.compute_on("device_host")`` in JAX 0.10; in 0.12 that is no
    context manager any more, and wants to be told in which memory each result is.
    """
    return extend_compute_type("device_host")


def bind(value: jax.typing.ArrayLike) -> jax.Array:
    """``value`` itself, marked wherever it is traced."""
    return host_mark_p.bind(value)


def _same(value: Any) -> Any:
    return value


def _jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    return host_mark_p.bind(primals[0]), tangents[0]


def _transpose(cotangent: Any, value: Any) -> list[Any]:
    return [cotangent]


def _batch(values: Sequence[Any], dims: Sequence[Any]) -> tuple[Any, Any]:
    return host_mark_p.bind(values[0]), dims[0]


def _lower(context: Any, value: Any) -> list[Any]:
    if not marks_are_lowered():
        return [value]
    operation: Any = stablehlo.CustomCallOp(
        [value.type], [value], call_target_name=MARK, has_side_effect=False
    ).operation
    return [operation.result]


host_mark_p.def_impl(_same)
host_mark_p.def_abstract_eval(_same)
ad.primitive_jvps[host_mark_p] = _jvp
ad.primitive_transposes[host_mark_p] = _transpose
batching.primitive_batchers[host_mark_p] = _batch
# Not cacheable: the op keeps the location of its own call.
mlir.register_lowering(host_mark_p, _lower, cacheable=False)
