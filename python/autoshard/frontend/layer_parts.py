"""A step whose loops over layers are cut for stages is planned as one of parts, and read as one.

before  step(params = {"w": float32[8, 4, 4]}, x): one loop of 8 trips
planned step(params = {"w": (float32[4, 4, 4], float32[4, 4, 4])}, x): two loops of 4
after   the plan of the step, whose array "w" lies half on one stage and half on the other
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import jax

from autoshard.cluster import Cluster
from autoshard.errors import PlanError
from autoshard.frontend.batch_arrays import arrays_of_batch, no_batch, places_of
from autoshard.frontend.fingerprint import LoweredProgram
from autoshard.frontend.lower import Source
from autoshard.frontend.plan import Plan, PlannedValue
from autoshard.frontend.planned_pipeline import PlannedPipeline
from autoshard.frontend.request import Request
from autoshard.frontend.result_names import result_names
from autoshard.ir import mlir, new_context, parse_bytes, print_module
from autoshard.ir.boundary import say_trips
from autoshard.ir.module import operations_of
from autoshard.passes.optimizer_parallel import OptimizerParallel
from autoshard.passes.split_loops import SplitLoops
from autoshard.pipeline.options import Pipeline
from autoshard.rewrites.given_arguments import numbers_called
from autoshard.rewrites.layer_loops.parts import ArrayParts, ProgramParts, part_shape
from autoshard.rewrites.layer_loops.split import cut_layer_loops
from autoshard.rewrites.lockstep.export import Rows
from autoshard.sharding import Sharding

_tree: Any = jax.tree_util
_PartOf = Callable[[Any, tuple[int, ...]], Any]
_Pins = tuple[tuple[int, Sharding], ...]


@dataclass(frozen=True, slots=True)
class _Stage:
    """What is read of JAX's record of a lowered function."""

    args_info: Any
    in_tree: Any
    out_info: Any
    out_tree: Any


@dataclass(frozen=True, slots=True)
class InParts:
    """A step as it is planned, and as the user knows it."""

    whole: Source
    source: Source
    """Its arguments and results are parts."""
    arrays: ProgramParts
    """The flat arguments and results of ``whole``, by those of ``source``."""

    @staticmethod
    def of(source: Source, request: Request) -> InParts | None:
        """The step in parts for a pipeline; None: nothing is cut.

        Raises:
            PlanError: A loop cannot be cut, or nobody knows which arguments hold the batch.
        """
        bytecode = (
            source.program.bytecode if request.policy == "keep" else source.without_checkpoints
        )
        if not _has_loops(bytecode, source.name):
            return None
        module = parse_bytes(bytecode, new_context(), source.name)
        batch, places = arrays_of_batch(source, module, request.batch_argnums), places_of(source)
        if not batch:
            raise PlanError(no_batch(source, request))
        held = (*range(source.program.constant_count), *(places[number] for number in batch))
        asked = cast(Pipeline, request.stages)
        bytecode, parts = _cut(
            bytecode,
            (asked.stages, asked.chunks),
            cast(Cluster, source.cluster),
            held,
            request.trip_count,
            source.name,
        )
        return _in_parts(source, bytecode, parts) if parts.is_cut else None

    @property
    def rows(self) -> frozenset[int]:
        """How many those arrays have that are cut."""
        stage = cast(Any, self.whole.program.stage)
        types = _tree.tree_leaves(stage.args_info)
        return frozenset(
            type_.shape[parts.dim]
            for type_, parts in zip(types, self.arrays.arguments, strict=True)
            if parts.is_cut
        )

    @property
    def row_bytes(self) -> float:
        """Those of all arrays that are cut, as arguments and as results."""
        stage = cast(Any, self.whole.program.stage)
        sides = (stage.args_info, self.arrays.arguments), (stage.out_info, self.arrays.results)
        return sum(
            math.prod(type_.shape) * jax.dtypes.itemsize_bits(type_.dtype) / 8
            for types, arrays in sides
            for type_, parts in zip(_tree.tree_leaves(types), arrays, strict=True)
            if parts.is_cut
        )

    def plan(self, request: Request, plan_once: Callable[[Source, Request], Plan]) -> Plan:
        """Plan the parts, and read the plan as one of the whole.

        Parts of an array lie alike: where the search lets some differ it plans once more, with
        those of each array as most of them are. Free ones could differ then.
        """
        request = self.with_names(request)
        plan = plan_once(self.source, request)
        sides = (plan.arguments, self.arrays.arguments), (plan.results, self.arrays.results)
        if not all(_are_alike(*side) for side in sides):
            arguments, results = (_pins_as_most(*side) for side in sides)
            source = replace(
                self.source,
                machine=plan.machine,
                has_mesh=True,  # pins name axes of the plan's mesh
                committed=(*self.source.committed, *arguments),
                result_pins=results,
            )
            plan = plan_once(source, request)
        return self._joined(plan)

    def with_names(self, request: Request) -> Request:
        """The same, with names of arrays, which their parts begin with, in place of numbers.

        Raises:
            PlanError: The step has no array of this name or number.
        """
        wanted = request.optimizer_parallel
        if not isinstance(wanted, OptimizerParallel):
            return request
        names = self.whole.argument_names

        def named(said: Sequence[str | int]) -> tuple[str, ...]:
            return tuple(names[n] for n in numbers_called(names, map(str, said), wanted.name))

        by_name = replace(wanted, parameters=named(wanted.parameters), states=named(wanted.states))
        return replace(request, optimizer_parallel=by_name)

    def _joined(self, plan: Plan) -> Plan:
        stage: Any = self.whole.program.stage
        pipeline = plan.pipeline
        assert isinstance(pipeline, PlannedPipeline)
        types = _tree.tree_leaves(stage.args_info), _tree.tree_leaves(stage.out_info)
        names = self.whole.argument_names, result_names(stage.out_tree)
        arrays = self.arrays
        sides = (plan.arguments, arrays.arguments), (plan.results, arrays.results)
        assert all(_are_alike(*side) for side in sides), "parts of an array lie unlike"
        return replace(
            plan,
            arguments=_whole_values(names[0], types[0], arrays.arguments, plan.arguments),
            results=_whole_values(names[1], types[1], arrays.results, plan.results),
            in_tree=stage.in_tree,
            out_tree=stage.out_tree,
            made_for=LoweredProgram.of(self.whole),
            pipeline=pipeline.with_arrays(arrays),
        )


def _are_alike(values: Sequence[PlannedValue], arrays: Sequence[ArrayParts]) -> bool:
    """Do all parts of each array lie as each other?"""
    return all(len({values[number].sharding for number in parts.numbers}) == 1 for parts in arrays)


def _pins_as_most(values: Sequence[PlannedValue], arrays: Sequence[ArrayParts]) -> _Pins:
    """For each part of each array how most of them lie; of as many those with the first part."""
    pins: list[tuple[int, Sharding]] = []
    for parts in arrays:
        if parts.is_cut:
            counts = Counter(values[number].sharding for number in parts.numbers)
            [(most, _)] = counts.most_common(1)
            pins += [(number, most) for number in parts.numbers]
    return tuple(pins)


def _whole_values(
    names: Sequence[str],
    types: Sequence[Any],
    arrays: Sequence[ArrayParts],
    values: Sequence[PlannedValue],
) -> tuple[PlannedValue, ...]:
    return tuple(
        replace(
            values[parts.numbers[0]],
            name=name,
            shape=tuple(type_.shape),
            stage_cut=(parts.dim, len(parts.places)) if parts.is_cut else None,
        )
        for name, type_, parts in zip(names, types, arrays, strict=True)
    )


@lru_cache(maxsize=2)
def _has_loops(bytecode: bytes, name: str) -> bool:
    """Whether there is anything to cut; searches ask again."""
    module = parse_bytes(bytecode, new_context(), name)
    return any(op.name == "stablehlo.while" for op in operations_of(module.operation))


@lru_cache(maxsize=8)
def _cut(
    bytecode: bytes,
    in_stages: tuple[int, int],
    cluster: Cluster,
    held: tuple[int, ...],
    trip_count: int | None,
    name: str,
) -> tuple[bytes, ProgramParts]:
    """The program in parts, and where its arguments and results are; searches ask again.

    ``in_stages``: how many, and parts of the model on each.
    """
    module = parse_bytes(bytecode, new_context(), name)
    say_trips(module, trip_count)
    with module.context, mlir.Location.unknown():
        stages, chunks = in_stages
        parts = cut_layer_loops(module, stages, cluster, held, SplitLoops.slack, chunks)
    return print_module(module, "bytecode"), parts


def _in_parts(source: Source, bytecode: bytes, parts: ProgramParts) -> InParts:
    program, stage = source.program, cast(Any, source.program.stage)
    places = places_of(source)
    types = _tree.tree_leaves(stage.args_info)
    count = 0
    arguments: list[ArrayParts] = []
    names: list[str] = []
    kept: list[int] = []
    for number, name in enumerate(source.argument_names):
        own = parts.arguments[places[number]] if number in places else ArrayParts((0,))
        numbers = tuple(range(count, count + len(own.numbers)))
        count += len(numbers)
        kept += numbers if number in places else ()
        arguments.append(replace(own, numbers=numbers))
        names += _part_names(name, own, types[number].shape)
    arrays = ProgramParts(tuple(arguments), parts.results)
    cut_stage = _Stage(
        *_trees(stage.args_info, arrays.arguments, _argument_part),
        *_trees(stage.out_info, arrays.results, _result_part),
    )
    return InParts(
        source,
        replace(
            source,
            program=replace(
                program, stage=cast(Any, cut_stage), bytecode=bytecode, kept=tuple(kept)
            ),
            argument_names=tuple(names),
            committed=tuple(
                (arguments[number].numbers[0], sharding)
                for number, sharding in source.committed
                if not arguments[number].is_cut
            ),
        ),
        arrays,
    )


def one_stage(
    source: Source, bytecode: bytes, stages: int, arguments: Rows, results: Rows
) -> Source:
    """A step whose program is that of one stage, which has its own rows of some arrays.

    Args:
        source: The step.
        bytecode: The program.
        stages: How many.
        arguments: The dim of each flat argument of which a stage has its own rows.
        results: Likewise.
    """
    program, stage = source.program, cast(Any, source.program.stage)

    def tree(whole: Any, rows: Rows, part_of: _PartOf) -> tuple[Any, Any]:
        leaves, form = _tree.tree_flatten(whole)
        own = [
            leaf if dim is None else part_of(leaf, part_shape(leaf.shape, dim, stages))
            for leaf, dim in zip(leaves, rows, strict=True)
        ]
        return _tree.tree_unflatten(form, own), form

    of_stage = _Stage(
        *tree(stage.args_info, arguments, _argument_part),
        *tree(stage.out_info, results, _result_part),
    )
    return replace(
        source,
        program=replace(program, stage=cast(Any, of_stage), bytecode=bytecode),
        committed=tuple(
            (number, sharding) for number, sharding in source.committed if arguments[number] is None
        ),
    )


def _part_names(name: str, parts: ArrayParts, shape: Sequence[int]) -> list[str]:
    if not parts.is_cut:
        return [name]
    size = shape[parts.dim] // len(parts.numbers)
    before = ":, " * parts.dim
    return [f"{name}[{before}{n * size}:{(n + 1) * size}]" for n in range(len(parts.numbers))]


def _trees(tree: Any, arrays: Sequence[ArrayParts], part_of: _PartOf) -> tuple[Any, Any]:
    """Types as a pytree in which a tuple of parts is in the place of each array, and its form."""
    leaves, form = _tree.tree_flatten(tree)
    parted = [
        (part_of(leaf, parts.part_shape(leaf.shape)),) * len(parts.numbers)
        if parts.is_cut
        else leaf
        for leaf, parts in zip(leaves, arrays, strict=True)
    ]
    found = _tree.tree_unflatten(form, parted)
    return found, _tree.tree_structure(found)


def _argument_part(info: Any, shape: tuple[int, ...]) -> Any:
    aval: Any = jax.ShapeDtypeStruct(shape, info.dtype)
    return jax.stages.ArgInfo(aval, info.donated)


def _result_part(info: Any, shape: tuple[int, ...]) -> Any:
    return jax.ShapeDtypeStruct(shape, info.dtype)
