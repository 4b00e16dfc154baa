"""Which arguments of a lowered function hold the batch, and the function with another one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.errors import PlanError
from autoshard.frontend.arguments import committed_sharding
from autoshard.frontend.batch import batch_arguments
from autoshard.frontend.lower import Source, Traced
from autoshard.frontend.pins import Pins, fed_back_arguments
from autoshard.frontend.request import Request
from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.passes.micro_batch import MicroBatch

_tree: Any = jax.tree_util


def places_of(source: Source) -> dict[int, int]:
    """Number of a flat argument -> number of the argument of ``main``, if it has it."""
    program = source.program
    return {number: at + program.constant_count for at, number in enumerate(program.kept)}


def arrays_of_batch(
    source: Source, module: mlir.Module, batch_argnums: int | Sequence[int] | None
) -> list[int]:
    """Arrays that hold the batch and are read, by number."""
    infos, place = source.program.argument_types, places_of(source)
    fed_back = set(fed_back_arguments(source, module).values())
    state = {number for number, at in place.items() if at in fed_back}
    held = batch_arguments(_tree.tree_leaves(infos), infos[0], state, batch_argnums, source.name)
    return [number for number in held if number in place]


def batch_of_source(source: Source, batch_argnums: int | Sequence[int] | None) -> list[int]:
    """As ``arrays_of_batch``, of the function as it was lowered."""
    module = parse_bytes(source.program.bytecode, new_context(), source.name)
    return arrays_of_batch(source, module, batch_argnums)


def rows_of(source: Source, held: Sequence[int]) -> list[int]:
    """Dim 0 of each of these arrays."""
    leaves = _tree.tree_leaves(source.program.argument_types)
    return [leaves[number].shape[0] for number in held]


def pieces_of_batch(source: Source, request: Request, held: Sequence[int]) -> int:
    """Into how many pieces the mode, or pins, cut dim 0 of the batch, whatever the plan."""
    if source.mode == "data_parallel":
        return source.machine.mesh.size
    pinned, _ = Pins(source).read(request.in_shardings, request.out_shardings)
    places = places_of(source)
    cuts = [pinned[places[n]].num_shards(0) for n in held if places[n] in pinned]
    return math.lcm(*cuts)


def into_micro_batches(source: Source, request: Request, module: mlir.Module) -> MicroBatch:
    """The pass, told which arguments of ``main`` hold the batch.

    Raises:
        PlanError: Nobody knows.
    """
    places = places_of(source)
    batch = arrays_of_batch(source, module, request.batch_argnums)
    if not batch:
        raise PlanError(no_batch(source, request))
    numbers = tuple(str(places[number]) for number in batch)
    return MicroBatch(request.micro_batch_count, numbers, tuple(request.per_micro_batch))


def no_batch(source: Source, request: Request) -> str:
    """What is wrong with a program that does not tell its batch."""
    asked = f"micro_batches={request.micro_batches!r}"
    if request.pipeline == "auto":
        asked = "pipeline='auto'"
    return (
        f"{source.name}: {asked}, but no result replaces an"
        " argument, as a training step returns its parameters, so nothing tells the batch from"
        " the parameters. Say which arguments hold the batch: batch_argnums=1."
    )


def with_batch(source: Source, traced: Traced, held: Sequence[int], batch: int) -> Traced:
    """The function with another batch.

    Args:
        source: The function lowered for the batch that it has.
        traced: The same, to be lowered again.
        held: Numbers of the arrays that hold the batch in dim 0.
        batch: Examples.

    Raises:
        PlanError: Nothing tells which arguments hold it, or they are not of one length.
    """
    rows = set(rows_of(source, held))
    if len(rows) != 1:
        found = "none are known" if not held else f"they have {sorted(rows)} rows"
        raise PlanError(
            f"{source.name}: another batch is dim 0 of the arguments that hold it, but {found}."
            " Return the state of a step, which tells it from the batch, or name them:"
            " batch_argnums=1."
        )
    shapes = {number: (batch, *traced.leaves[number].shape[1:]) for number in held}
    return _with_shapes(traced, shapes)


def with_sequence(source: Source, traced: Traced, held: Sequence[int], length: int) -> Traced:
    """The function with longer or shorter sequences.

    They are dim 1 of the ids, which are the batch's integers of two dims; without ids, dim 1 of its
    arrays of three dims and more. All dims of that size change behind dim 0 of the batch's arrays,
    but for the last one of real numbers: that of features.

    Args:
        source: The function lowered for the sequences that it has.
        traced: The same, to be lowered again.
        held: Numbers of the arrays that hold the batch in dim 0.
        length: Of a sequence.

    Raises:
        PlanError: Nothing tells what a sequence is, or they are not of one length.
    """
    leaves = traced.leaves
    lengths = {leaves[number].shape[1] for number in ids_among(leaves, held)}
    lengths = lengths or {leaves[n].shape[1] for n in held if len(leaves[n].shape) > 2}
    if len(lengths) != 1:
        found = f"they have {sorted(lengths)}" if lengths else "there are none"
        raise PlanError(
            f"{source.name}: another sequence is dim 1 of the batch's ids, or of its arrays of"
            f" three dims, but {found}. Give arguments with one length, or plan the function for"
            " each."
        )
    (before,) = lengths
    return _with_shapes(traced, {n: _longer(leaves[n], before, length) for n in held})


def ids_among(leaves: Sequence[Any], held: Sequence[int]) -> list[int]:
    """Numbers of the arrays of integers of two dims: a row an example, a token an entry."""
    return [n for n in held if len(leaves[n].shape) == 2 and _is_integer(leaves[n])]


def _is_integer(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.integer)


def _longer(leaf: Any, before: int, length: int) -> tuple[int, ...]:
    """The shape with sequences of another length."""
    rank = len(leaf.shape)
    last = rank - 1 if rank > 2 and jnp.issubdtype(leaf.dtype, jnp.inexact) else rank
    return tuple(
        length if 0 < dim < last and size == before else size for dim, size in enumerate(leaf.shape)
    )


def _with_shapes(traced: Traced, shapes: Mapping[int, tuple[int, ...]]) -> Traced:
    leaves = list(traced.leaves)
    for number, shape in shapes.items():
        leaf = leaves[number]
        at = committed_sharding(leaf)
        leaves[number] = jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=at)
    args, kwargs = traced.arguments.with_leaves(leaves)
    return replace(
        traced, arguments=replace(traced.arguments, args=args, kwargs=kwargs, leaves=leaves)
    )
