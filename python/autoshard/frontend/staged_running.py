"""A planned pipeline as a program that is called like a compiled one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
from autoshard.pipeline.row_moves import MovedArray, RowMover
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
    leaving = RowMover(arguments.moved(program.kept), pipeline.meshes, is_result=False)
    returning = RowMover(results.moved(range(len(plan.results))), pipeline.meshes, is_result=True)

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves = _tree.tree_leaves((args, kwargs))
        given: dict[int, list[Any]] = {}
        cut: list[tuple[Any, list[Any]]] = []
        for number in program.kept:
            leaf = _placed(leaves[number], infos[number].dtype, in_shardings[number])
            given[number] = arguments.blocks(number, leaf)
            if arguments.arrays[number].is_cut:
                cut.append((leaf, given[number]))
        moved = leaving.apart({number: given[number] for number in leaving.arrays})
        for number in moved:
            if infos[number].donated:
                for block in given[number]:
                    block.delete()
        parts = [part for number, its in given.items() for part in moved.get(number, its)]
        del moved
        placed = [_at(part, sharding) for part, sharding in zip(parts, own, strict=True)]
        del parts
        made = run([*constants, *placed])
        for leaf, blocks in cut:
            if all(block.is_deleted() for block in blocks):  # donated: they are its memory
                leaf.delete()
        back = returning.together({n: results.parts(n, made) for n in returning.arrays})
        return _tree.tree_unflatten(
            plan.out_tree,
            [
                results.whole(number, back.get(number) or results.parts(number, made), sharding)
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
    """By array: those of its blocks, each all parts that lie on a stage."""

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

    def moved(self, numbers: Iterable[int]) -> dict[int, MovedArray]:
        """Those of which parts lie elsewhere than on the stages that work on them."""
        return {
            number: MovedArray(
                self.arrays[number].part_shape(self.values[number].shape),
                jax.dtypes.canonicalize_dtype(self.values[number].dtype),
                self.arrays[number],
                self.values[number].named_sharding,
            )
            for number in numbers
            if self.arrays[number].is_moved
        }

    def blocks(self, number: int, array: Any) -> list[Any]:
        """What lies on each stage of an array of the user."""
        if not self.arrays[number].is_cut:
            return [array]
        return parts_of(array, self.values[number].part_shape, self.shardings[number])

    def parts(self, number: int, made: Sequence[Any]) -> list[Any]:
        """An array of the user as the program made it."""
        return [made[at] for at in self.arrays[number].numbers]

    def whole(self, number: int, blocks: Sequence[Any], sharding: Any) -> Any:
        """An array of the user, of what lies on each stage."""
        if not self.arrays[number].is_cut:
            return _at(blocks[0], sharding)
        found = [_at(one, at) for one, at in zip(blocks, self.shardings[number], strict=True)]
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
