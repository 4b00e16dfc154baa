"""A planned function as one op of a program that somebody else traces.

While it is traced it is a primitive with types. When the program around it is lowered, the module
as planned is written into it: its functions, and a call between constraints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax._src import core, dispatch, sharding_impls
from jax._src.interpreters import ad, batching
from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir

from autoshard.errors import PlanError
from autoshard.ir.boundary import main_function
from autoshard.ir.lowering import LoweredProgram
from autoshard.ir.module import parse_bytes
from autoshard.ir.native import run_native


@dataclass(frozen=True)
class PlannedModule:
    """What is written into the program."""

    bytecode: bytes
    """The module in the form that the partitioner keeps."""
    in_shardings: tuple[Any, ...]
    """A ``NamedSharding`` for each flat argument."""
    out_shardings: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class PlannedCall:
    """One function for one set of argument types, wherever it is called."""

    name: str
    program: LoweredProgram
    platform: str
    """Platform of the devices that it is lowered for."""
    num_devices: int
    planned: Callable[[], PlannedModule]
    """Plans; asked when the program around it is lowered, not while it is traced."""
    unplanned: Callable[..., Any]
    """The function of flat arguments, with a list of flat results."""
    warn: Callable[[str], None]
    """Says that it runs unplanned; given what is done to it."""


def bind_planned(call: PlannedCall, leaves: Sequence[Any]) -> list[Any]:
    """Put a planned function into the program that is traced.

    Args:
        call: The function.
        leaves: Its flat arguments, of the types that it is planned for.

    Returns:
        Its flat results.
    """
    arguments = [leaves[number] for number in call.program.kept]
    constants = _lowering(call.program).const_args
    return _planned_p.bind(*constants, *arguments, call=call)


def cannot_be_called(program: LoweredProgram) -> str | None:
    """Why a program cannot become one op of another one; None if it can."""
    lowering = _lowering(program)
    effects = [*lowering.compile_args["unordered_effects"], *lowering.compile_args["keepalive"]]
    if effects or lowering.compile_args["host_callbacks"]:
        return "it calls back into Python"
    return None


def is_inside_shard_map() -> bool:
    """Is the trace the body of a ``jax.shard_map``, which sees one device's part?"""
    mesh: Any = jax.sharding.get_abstract_mesh()
    return bool(mesh.manual_axes)


def is_traced_to_jaxpr() -> bool:
    """Does the current trace write a program, and not differentiate or map it right now?"""
    return not isinstance(
        core.trace_ctx.trace, ad.JVPTrace | ad.LinearizeTrace | batching.BatchTrace
    )


def _lowering(program: LoweredProgram) -> Any:
    stage: Any = program.stage
    return stage._lowering


def _abstract(*_: Any, call: PlannedCall) -> list[Any]:
    return list(_lowering(call.program).compile_args["global_out_avals"])


def _lower(ctx: Any, *operands: Any, call: PlannedCall) -> Sequence[Any]:
    _check_place(ctx.module_context, call)
    planned = call.planned()
    count = call.program.constant_count
    arguments = [
        _constrained(ctx, operand, aval, planned.in_shardings[number])
        for number, operand, aval in zip(
            call.program.kept, operands[count:], ctx.avals_in[count:], strict=True
        )
    ]
    module = parse_bytes(planned.bytecode, ctx.module_context.module.context, call.name)
    # Meshes without names cannot clash with those of the program around it.
    run_native(module, "builtin.module(sdy-inline-meshes)")
    for op in list(module.body.operations):
        if op.operation.name == "sdy.mesh":
            op.operation.erase()
    main = main_function(module)
    for side in ("arg_attrs", "res_attrs"):
        if side in main.attributes:
            del main.attributes[side]
    function = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    name = jax_mlir.merge_mlir_modules(
        ctx.module_context.module,
        f"autoshard_{call.name}",
        module,
        dst_symtab=ctx.module_context.symbol_table,
    )
    made = ir.Operation.create(
        "func.call",
        results=function.results,
        operands=[*operands[:count], *arguments],
        attributes={"callee": ir.FlatSymbolRefAttr.get(name)},
    )
    return [
        _constrained(ctx, *each)
        for each in zip(made.results, ctx.avals_out, planned.out_shardings, strict=True)
    ]


def _constrained(ctx: Any, value: Any, aval: Any, sharding: Any) -> Any:
    def constrain(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x, sharding)

    inner = ctx.replace(avals_in=[aval], avals_out=[aval])
    (constrained,) = jax_mlir.lower_fun(constrain, multiple_results=False)(inner, value)
    return constrained


def _check_place(context: Any, call: PlannedCall) -> None:
    """Refuse a program around it that is for other devices."""
    around = context.axis_context
    if isinstance(around, sharding_impls.SPMDAxisContext):
        size = around.mesh.size
    else:
        size = getattr(around, "num_devices", 1)
    if size != call.num_devices:
        raise PlanError(
            f"{call.name} is planned for {call.num_devices} devices, and the program around it is"
            f" lowered for {size}. Plan the whole program instead: autoshard.jit in place of"
            " jax.jit around it."
        )
    if tuple(context.platforms) != (call.platform,):
        raise PlanError(
            f"{call.name} is planned for {call.platform}, and the program around it is lowered for"
            f" {', '.join(context.platforms)}. Give the cluster of that platform: cluster=."
        )


def _jvp(primals: Any, tangents: Any, *, call: PlannedCall) -> Any:
    call.warn("is differentiated from outside")
    count = call.program.constant_count
    directions = tuple(ad.instantiate_zeros(tangent) for tangent in tangents[count:])
    return jax.jvp(partial(_unplanned, call), tuple(primals[count:]), directions)


def _batch(operands: Any, dims: Any, *, call: PlannedCall) -> Any:
    call.warn("is mapped from outside")
    count = call.program.constant_count
    mapped = jax.vmap(partial(_unplanned, call), in_axes=tuple(dims[count:]))
    results = mapped(*operands[count:])
    return results, [0] * len(results)


def _unplanned(call: PlannedCall, *kept: Any) -> list[Any]:
    """The function, given what it reads; what it does not read is of the right type."""
    infos: Any = jax.tree_util.tree_leaves(call.program.stage.args_info)
    arguments: list[Any] = [jax.ShapeDtypeStruct(info.shape, info.dtype) for info in infos]
    for number, value in zip(call.program.kept, kept, strict=True):
        arguments[number] = value
    return call.unplanned(
        *(
            jax.numpy.empty(leaf.shape, leaf.dtype)
            if isinstance(leaf, jax.ShapeDtypeStruct)
            else leaf
            for leaf in arguments
        )
    )


_planned_p: Any = core.Primitive("autoshard_planned")
_planned_p.multiple_results = True
_planned_p.def_impl(partial(dispatch.apply_primitive, _planned_p))
_planned_p.def_abstract_eval(_abstract)
ad.primitive_jvps[_planned_p] = _jvp
batching.primitive_batchers[_planned_p] = _batch
jax_mlir.register_lowering(_planned_p, _lower)
