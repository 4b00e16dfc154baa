"""Primitives that do nothing: what they say of a value is read out of the lowered program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir


def identity_primitive(
    name: str,
    lower: Callable[..., list[Any]],
    on_new_dim: Callable[..., dict[str, Any]] | None = None,
    *,
    marks_derivatives: bool = False,
) -> Any:
    """An identity of one array, for ``jax.jit``, derivatives and ``vmap``.

    Args:
        name: Of the primitive, as jaxprs show it.
        lower: ``lower(context, value, **parameters)`` makes the op, or returns ``value``.
        on_new_dim: ``on_new_dim(position, **parameters)`` are the parameters of the value with one
            more dim before ``position``. None: the same.
        marks_derivatives: What is said of a value holds for its tangent and cotangent, too; else
            these pass by unmarked.

    Returns:
        A ``jax.extend.core.Primitive``.
    """
    primitive: Any = Primitive(name)

    def same(value: Any, **parameters: Any) -> Any:
        return value

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **parameters: Any) -> tuple[Any, Any]:
        return primitive.bind(primals[0], **parameters), derivative(tangents[0], parameters)

    def transpose(cotangent: Any, value: Any, **parameters: Any) -> list[Any]:
        return [derivative(cotangent, parameters)]

    def derivative(value: Any, parameters: dict[str, Any]) -> Any:
        is_marked = marks_derivatives and not isinstance(value, ad.Zero)
        return primitive.bind(value, **parameters) if is_marked else value

    def batch(values: Sequence[Any], dims: Sequence[Any], **parameters: Any) -> tuple[Any, Any]:
        if on_new_dim is not None:
            parameters = on_new_dim(dims[0], **parameters)
        return primitive.bind(values[0], **parameters), dims[0]

    primitive.def_impl(same)
    primitive.def_abstract_eval(same)
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = batch
    # Not cacheable: the op keeps the location of its own call.
    mlir.register_lowering(primitive, lower, cacheable=False)
    return primitive
