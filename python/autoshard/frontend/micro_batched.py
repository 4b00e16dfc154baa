"""The program in micro-batches, and in stages, as searches read it."""

from __future__ import annotations

from functools import lru_cache

from autoshard.cluster import Cluster
from autoshard.ir import mlir, new_context, parse_bytes, print_module
from autoshard.ir.boundary import say_trips
from autoshard.passes.micro_batch import MicroBatch
from autoshard.passes.pipeline import run_passes
from autoshard.passes.pipeline_stages import PipelineStages
from autoshard.pipeline.options import Pipeline
from autoshard.rewrites.stages import into_stages


@lru_cache(maxsize=16)
def micro_batched(
    step: MicroBatch,
    stages: tuple[Pipeline, Cluster] | None,
    trip_count: int | None,
    bytecode: bytes,
    name: str,
) -> bytes:
    """The program in micro-batches, and in stages; searches read it some times over.

    Args:
        step: Into how many, and of which arguments.
        stages: What is asked of the pipeline, and by whose chip ops are timed; None: no stages.
        trip_count: Of loops whose trips are not in the program.
        bytecode: The program.
        name: For errors.
    """
    if stages is None:
        module = parse_bytes(bytecode, new_context(), name)
        run_passes(module, [step])
        return print_module(module, "bytecode")
    module = parse_bytes(micro_batched(step, None, trip_count, bytecode, name), new_context(), name)
    say_trips(module, trip_count)  # seconds of stages count them
    with module.context, mlir.Location.unknown():
        pipeline, chip = stages
        count, chunks = pipeline.micro_batches, pipeline.chunks
        into_stages(module, pipeline.stages, count, chip, PipelineStages.slack, chunks)
    return print_module(module, "bytecode")
