"""A planned pipeline as a program that is called like a compiled one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import numpy as np

from autoshard.errors import PlanError
from autoshard.frontend.lower import Source
from autoshard.frontend.plan import Plan
from autoshard.frontend.planned_pipeline import PlannedPipeline
from autoshard.ir.lowering import callbacks_of, constants_of
from autoshard.pipeline.running import Form, Settings, StagedRun

_tree: Any = jax.tree_util


def staged_program(source: Source, plan: Plan, form: Form) -> Callable[..., Any]:
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
    run = StagedRun(pipeline.step, pipeline.meshes, settings)
    shardings = run.argument_shardings
    constants: list[Any] = [
        jax.device_put(value, sharding)
        for value, sharding in zip(constants_of(program), shardings, strict=False)
    ]
    wanted = list(zip(program.kept, shardings[program.constant_count :], strict=True))
    out_shardings = plan.named_shardings[1]

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves = _tree.tree_leaves((args, kwargs))
        given = [
            _placed(leaves[number], infos[number].dtype, sharding) for number, sharding in wanted
        ]
        results = run([*constants, *given])
        return _tree.tree_unflatten(
            plan.out_tree,
            [
                result if result.sharding == sharding else jax.device_put(result, sharding)
                for result, sharding in zip(results, out_shardings, strict=True)
            ],
        )

    return call


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
