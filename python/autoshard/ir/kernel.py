"""The primitive behind ``autoshard.kernel``: a function that is planned as one op, by its rule.

before  y = kernel[call=attend "b h q d, b h s d -> b h q d"] q k
after   ordinary jit: what the function computes
        autoshard:    %y = stablehlo.composite @autoshard.kernel %q, %k {key = .., rule = ..}
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from autoshard.errors import StrategyError
from autoshard.ir.attributes import KERNEL, KERNEL_AMOUNTS
from autoshard.ir.local_functions import LocalFunction, Shape, remember
from autoshard.ir.lowering import lower_at_home, marks_are_lowered
from autoshard.sharding.kernel_rule import KernelRule

Arrays = Sequence[Any]


@dataclass(frozen=True)
class Call:
    """A function of arrays, and what may be cut of it."""

    name: str
    function: Callable[..., list[Any]]
    """Equal for equal calls, so that JAX traces and lowers them once."""
    rule: KernelRule
    is_unproven: bool = False
    """The rule leaves it whole since nobody knows of a part of it."""
    matmul_flops: float = 0.0
    """Operations of its matmuls, two for each multiply-add, where what it is lowered to does not
    show them."""
    moved_again: float = 0.0
    """Bytes that these move beside one pass over operands and results: blocks read again."""
    exponentials: float = 0.0
    """Exponentials, roots and the like, for which they wait."""
    vector_flops: float = 0.0
    """Other operations on vector units for which they wait, two for each element."""
    product: Any = None
    """The dtype of what these multiply; None: that of the widest operand."""
    described: str = ""
    """A key that says all that another process needs to make it, but for the platform; empty: this
    process alone knows it."""

    def __str__(self) -> str:
        """``attend "b h q d, b h s d -> b h q d"``, as jaxprs show it."""
        return f'{self.name} "{self.rule.text}"'


@dataclass(frozen=True)
class Batched:
    """``function`` for each entry of dim 0 of those operands that have one more dim."""

    function: Callable[..., list[Any]]
    batched: tuple[bool, ...]

    def __call__(self, *operands: Any) -> list[Any]:
        """The results, each with one more dim in front."""
        dims = [0 if it else None for it in self.batched]
        return jax.vmap(self.function, in_axes=dims)(*operands)


@dataclass(frozen=True, eq=False)
class _Lowered:
    """A ``LocalFunction`` of a program that is lowered for ``platform``."""

    call: Call
    dtypes: tuple[Any, ...]
    platform: str
    device: Any

    def lowered_at(self, shapes: Sequence[Shape]) -> bytes:
        """See ``LocalFunction``."""
        structs = [
            jax.ShapeDtypeStruct(shape, dtype)
            for shape, dtype in zip(shapes, self.dtypes, strict=True)
        ]
        return lower_at_home(self.call.function, structs, self.platform, self.device)


def lowered_for(call: Call, dtypes: Sequence[Any], platform: str) -> LocalFunction:
    """The function of a call that another process described.

    Args:
        call: Made again.
        dtypes: Of its operands.
        platform: That it is lowered for.
    """
    return _Lowered(call, tuple(dtypes), platform, None)


def check(call: Call, operands: Arrays) -> None:
    """Whether the rule of a call is one for these operands, and the function keeps to it.

    Raises:
        StrategyError: It is not; no location is in it.
    """
    found = _results(call, *(jax.typeof(operand) for operand in operands))
    sizes = call.rule.sizes([jnp.shape(it) for it in (*operands, *found)])
    _check_parts(call, operands, found, sizes)


def _abstract_eval(*operands: Any, call: Call) -> list[Any]:
    return _results(call, *operands)


@functools.lru_cache(maxsize=512)
def _results(call: Call, *operands: Any) -> list[Any]:
    structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in operands]
    closed = jax.make_jaxpr(call.function)(*structs)
    if any(isinstance(const, Tracer) for const in closed.consts):
        raise StrategyError(
            "the kernel reads a traced value that is none of its arguments. Pass it as an argument,"
            " with an array in the rule"
        )
    if closed.effects:
        raise StrategyError(
            f"the kernel has the effects {', '.join(map(str, closed.effects))}, which every device"
            " would repeat. Take them out of it"
        )
    return list(closed.out_avals)


def _check_parts(call: Call, operands: Arrays, found: Arrays, sizes: dict[str, int]) -> None:
    """Whether the function of a part of each factor gives that part of the results."""
    rule, count = call.rule, len(operands)
    for name in rule.cuttable:
        divisor = next((n for n in range(2, sizes[name] + 1) if sizes[name] % n == 0), None)
        if divisor is None:
            continue
        part = {**sizes, name: sizes[name] // divisor}
        structs = [
            jax.ShapeDtypeStruct(_or(rule.shape(number, part), aval.shape), aval.dtype)
            for number, aval in enumerate(operands)
        ]
        try:
            made = jax.eval_shape(call.function, *structs)
        except Exception as error:
            shapes = ", ".join(str(struct.shape) for struct in structs)
            raise StrategyError(
                f'the rule "{rule.text}" says that {name} may be cut, but the kernel fails on'
                f" operands of {shapes}: {type(error).__name__}: {error}. Read sizes off the"
                f" arguments, or name {name} in whole="
            ) from error
        for number, (aval, whole) in enumerate(zip(made, found, strict=True)):
            expected = _or(rule.shape(count + number, part), whole.shape)
            if tuple(aval.shape) != expected:
                raise StrategyError(
                    f'the rule "{rule.text}" says that {name} may be cut, but of part 1 of'
                    f" {divisor} the kernel makes result {number} of shape {tuple(aval.shape)},"
                    f" not {expected}. Name {name} in whole=, or mend the rule"
                )


def _or(shape: Shape | None, default: Sequence[int]) -> Shape:
    return tuple(default) if shape is None else shape


def _batch(operands: Arrays, dims: Arrays, *, call: Call) -> tuple[list[Any], list[int]]:
    batched = tuple(dim is not None for dim in dims)
    moved = [
        jnp.moveaxis(operand, dim, 0) if has_batch else operand
        for operand, dim, has_batch in zip(operands, dims, batched, strict=True)
    ]
    new = Call(call.name, Batched(call.function, batched), call.rule.with_batch(batched))
    results = kernel_p.bind(*moved, call=new)
    return results, [0] * len(results)


def _lower(context: Any, *operands: Any, call: Call) -> Any:
    if marks_are_lowered() and not is_in_composite():
        return lower_as_composite(context, operands, call)
    return mlir.lower_fun(call.function, multiple_results=True)(context, *operands)


def lower_as_composite(context: Any, operands: Arrays, call: Call) -> Any:
    """Lower a call, in a rule of JAX's, to the composite that passes and exports know."""
    platform = context.module_context.platforms[0]
    dtypes = tuple(aval.dtype for aval in context.avals_in)
    device = jax.sharding.get_abstract_mesh().abstract_device
    lowered = _Lowered(call, dtypes, platform, device)
    described = call.described and f"{call.described} {platform}"
    shapes = [tuple(aval.shape) for aval in (*context.avals_in, *context.avals_out)]
    attributes = {
        "key": remember(lowered, described),
        "name": call.name,
        "rule": call.rule.to_sdy(shapes),
        "is_unproven": call.is_unproven,
    }
    attributes |= {name: getattr(call, name) for name in KERNEL_AMOUNTS}
    if call.product is not None:
        attributes["product"] = str(mlir.dtype_to_ir_type(call.product))
    composite = jax.lax.composite(lambda *values, **_: call.function(*values), name=KERNEL)

    def planned(*values: Any) -> Any:
        return composite(*values, **attributes)

    token = _is_in_composite.set(True)
    try:
        return mlir.lower_fun(planned, multiple_results=True)(context, *operands)
    finally:
        _is_in_composite.reset(token)


_is_in_composite: ContextVar[bool] = ContextVar("is_in_composite", default=False)


def is_in_composite() -> bool:
    """Whether what is lowered on this thread is what a composite stands for: no kernel to plan."""
    return _is_in_composite.get()


kernel_p: Any = Primitive("kernel")
kernel_p.multiple_results = True
kernel_p.def_impl(lambda *operands, call: jax.jit(call.function)(*operands))
kernel_p.def_abstract_eval(_abstract_eval)
batching.primitive_batchers[kernel_p] = _batch
mlir.register_lowering(kernel_p, _lower, cacheable=False)
