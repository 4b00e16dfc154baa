"""A planned pipeline as a program that is called like a compiled one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np

from autoshard.errors import PlanError
from autoshard.frontend.lower import Source
from autoshard.frontend.plan import Plan, PlannedValue
from autoshard.frontend.planned_pipeline import PlannedPipeline
from autoshard.ir.lowering import callbacks_of, constants_of
from autoshard.pipeline.array_parts import joined, parts_of
from autoshard.pipeline.modules import ExportForm
from autoshard.pipeline.running import Settings, StagedRun
from autoshard.pipeline.transfers import without_parts
from autoshard.rewrites.layer_loops.parts import ArrayParts

_tree: Any = jax.tree_util


def staged_program(source: Source, plan: Plan, form: ExportForm) -> Callable[..., Any]:
    """The program of a plan with a pipeline, compiled.

    Args:
        source: What was planned.
        plan: Its arguments lie as ``plan.named_shardings`` says when the program is called.
        form: For the partitioner that is set.

    Raises:
        PlanError: There are too few devices, or arrays of typed PRNG keys.
    """
    pipeline = cast(PlannedPipeline, plan.pipeline)
    program, stage = source.program, cast(Any, source.program.stage)
    infos = _tree.tree_leaves(stage.args_info)
    _check_types([*infos, *_tree.tree_leaves(stage.out_info)], plan)
    settings = Settings(form, plan.compiler_options, callbacks_of(program))
    out_shardings = plan.named_shardings[1]
    told = {
        pipeline.staging.arrays.results[number].numbers[0]: sharding
        for number, (value, sharding) in enumerate(zip(plan.results, out_shardings, strict=True))
        if pipeline.is_told(value, number)
    }
    run = StagedRun(pipeline.step, pipeline.meshes, settings, told)
    shardings = run.argument_shardings
    constants: list[Any] = [
        jax.device_put(value, sharding)
        for value, sharding in zip(constants_of(program), shardings, strict=False)
    ]
    arrays, own = pipeline.staging.arrays, shardings[program.constant_count :]
    arguments = _Arrays.of(plan.arguments, arrays.arguments, pipeline.argument_stages, pipeline)
    results = _Arrays.of(plan.results, arrays.results, pipeline.result_stages, pipeline)
    in_shardings = plan.named_shardings[0]

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves = _tree.tree_leaves((args, kwargs))
        given: list[Any] = []
        cut: list[tuple[Any, list[Any]]] = []
        for number in program.kept:
            leaf = _placed(leaves[number], infos[number].dtype, in_shardings[number])
            parts = arguments.parts(number, leaf)
            given += parts
            if len(parts) > 1:
                cut.append((leaf, parts))
        placed = [_at(part, sharding) for part, sharding in zip(given, own, strict=True)]
        made = run([*constants, *placed])
        for leaf, parts in cut:
            if all(part.is_deleted() for part in parts):  # donated: they are its memory
                leaf.delete()
        return _tree.tree_unflatten(
            plan.out_tree,
            [
                results.whole(number, made, sharding)
                for number, sharding in enumerate(out_shardings)
            ],
        )

    return call


@dataclass(frozen=True)
class _Arrays:
    """Arguments or results of the user, as parts."""

    values: Sequence[PlannedValue]
    arrays: Sequence[ArrayParts]
    shardings: Sequence[Sequence[jax.sharding.NamedSharding]]
    """By array: those of its parts."""

    @staticmethod
    def of(
        values: Sequence[PlannedValue],
        arrays: Sequence[ArrayParts],
        stages: Sequence[Sequence[int]],
        pipeline: PlannedPipeline,
    ) -> _Arrays:
        """Those of a pipeline."""
        meshes = pipeline.meshes
        shardings = [
            [value.named_sharding(meshes[stage]) for stage in its]
            for value, its in zip(values, stages, strict=True)
        ]
        return _Arrays(values, arrays, shardings)

    def parts(self, number: int, array: Any) -> list[Any]:
        """An array of the user as the program takes it."""
        if not self.arrays[number].is_cut:
            return [array]
        return parts_of(array, self.values[number].part_shape, self.shardings[number])

    def whole(self, number: int, made: Sequence[Any], sharding: Any) -> Any:
        """An array of the user, of what the program made."""
        parts = self.arrays[number]
        if not parts.is_cut:
            return _at(made[parts.numbers[0]], sharding)
        found = [
            _at(made[n], at) for n, at in zip(parts.numbers, self.shardings[number], strict=True)
        ]
        return joined(found, self.values[number].shape, sharding)


def _at(array: Any, sharding: jax.sharding.NamedSharding) -> Any:
    """An array where it shall be."""
    if array.sharding == sharding:
        return array
    if not array.addressable_shards:
        return without_parts(array.shape, array.dtype, sharding)
    return jax.device_put(array, sharding)


def _placed(leaf: Any, dtype: Any, sharding: jax.sharding.NamedSharding) -> Any:
    """A leaf as an array; those of JAX are where they shall be already."""
    if isinstance(leaf, jax.Array):
        return leaf
    return jax.device_put(np.asarray(leaf, dtype), sharding)


def _check_types(infos: Sequence[Any], plan: Plan) -> None:
    for info in infos:
        if jax.numpy.issubdtype(info.dtype, jax.dtypes.extended):
            raise PlanError(
                f"{plan.name}: an argument or result of type {info.dtype}, and typed PRNG keys are"
                " not passed through pipelines. Pass jax.random.key_data of it, and take"
                " jax.random.wrap_key_data inside."
            )
