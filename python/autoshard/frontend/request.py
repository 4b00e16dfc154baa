"""What a user asks of ``autoshard.plan`` and ``autoshard.jit``, besides the function."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, cast

import jax

from autoshard.cluster import Cluster
from autoshard.compilers.options import CompilerOptions, read_compiler_options
from autoshard.errors import PlanError
from autoshard.frontend.argnums import read_argnums, whole_number
from autoshard.frontend.mesh import MeshLike
from autoshard.passes.optimizer_parallel import OptimizerParallel
from autoshard.passes.recompute import Recompute
from autoshard.passes.recursive_programming import Coefficient, RecursiveProgramming
from autoshard.pipeline.options import Pipeline, PipelineLike
from autoshard.sharding import Sharding

Mode = Literal["auto", "semi_auto", "data_parallel"]
ClusterLike = str | os.PathLike[str] | Cluster
"""``"v5p:4x4x4"``, the path of a TOML file, or a ``Cluster``."""
CostModel = Literal["seconds", "symbolic"]
Indivisible = Literal["refuse", "pad"]

OptimizerParallelLike = int | OptimizerParallel
"""A level, 1 to 3, or all options."""

HostMemory = Literal["auto", "marks", "none"]
"""What is kept in the memory of the host: marked values, also as many as it takes, or none."""
RecomputeLike = Literal["auto", "marks", "none"] | Recompute
"""What may be computed again, or all options of the pass."""

Constraints = Literal["keep", "prefer", "ignore"]
"""What the program's own sharding constraints mean to the search."""

MicroBatches = int | Literal["auto"]
"""How many, or the number with the fastest step that fits."""

Policy = Literal["keep", "replace"]
"""What becomes of the program's own ``jax.checkpoint``."""

MOST_TRIPS = 2**31 - 1
"""The largest number of trips: counters of loops have 32 bits."""

MODES: tuple[Mode, ...] = ("auto", "semi_auto", "data_parallel")


class PlanOptions(TypedDict, total=False):
    """What can be asked of a plan, by name, for functions that pass it on to ``Request``."""

    mesh: MeshLike | None
    cluster: ClusterLike | None
    compiler: str | None
    mode: Mode | None
    in_shardings: Any
    out_shardings: Any
    mem_coeff: Coefficient
    memory_limit: int | float | str | None
    overlap: float
    cost_model: CostModel
    batch_argnums: int | Sequence[int] | None
    enable_alltoall: bool
    indivisible: Indivisible
    optimizer_parallel: OptimizerParallelLike | None
    host_offload: HostMemory
    recompute: RecomputeLike
    policy: Policy
    constraints: Constraints
    compiler_options: CompilerOptions | None
    trip_count: int | None
    time_limit: float | None
    micro_batches: MicroBatches
    per_micro_batch: Sequence[str]
    pipeline: PipelineLike | None


@dataclass(frozen=True)
class Request:
    """How a function shall be planned; see ``autoshard.plan``."""

    mesh: MeshLike | None = None
    cluster: ClusterLike | None = None
    compiler: str | None = None
    mode: Mode | None = None
    in_shardings: Any = None
    out_shardings: Any = None
    mem_coeff: Coefficient = "auto"
    memory_limit: int | float | str | None = None
    overlap: float = 0.0
    cost_model: CostModel = "seconds"
    batch_argnums: int | Sequence[int] | None = None
    enable_alltoall: bool = True
    indivisible: Indivisible = "refuse"
    optimizer_parallel: OptimizerParallelLike | None = None
    host_offload: HostMemory = "marks"
    recompute: RecomputeLike = "marks"
    policy: Policy = "keep"
    constraints: Constraints = "keep"
    compiler_options: CompilerOptions | None = None
    trip_count: int | None = None
    time_limit: float | None = None
    micro_batches: MicroBatches = 1
    per_micro_batch: Sequence[str] = ()
    pipeline: PipelineLike | None = None

    def __post_init__(self) -> None:
        if self.mode is not None and not _is_one_of(self.mode, MODES):
            raise PlanError(
                f"mode {self.mode!r} is not known. Use {', '.join(map(repr, MODES[:-1]))} or"
                f" {MODES[-1]!r}."
            )
        if not _is_one_of(self.indivisible, ("refuse", "pad")):
            raise PlanError(
                f"indivisible {self.indivisible!r} is not known. Use 'refuse' or 'pad'."
            )
        if not _is_one_of(self.host_offload, ("auto", "marks", "none")):
            raise PlanError(
                f"host_offload {self.host_offload!r} is not known. Use 'auto', 'marks' or 'none'."
            )
        if not _is_one_of(self.policy, ("keep", "replace")):
            raise PlanError(f"policy {self.policy!r} is not known. Use 'keep' or 'replace'.")
        if not _is_one_of(self.constraints, ("keep", "prefer", "ignore")):
            raise PlanError(
                f"constraints {self.constraints!r} is not known. Use 'keep', 'prefer' or 'ignore'."
            )
        if self.batch_argnums is not None:
            numbers = read_argnums(self.batch_argnums, "batch_argnums")
            is_one = whole_number(self.batch_argnums) is not None
            object.__setattr__(self, "batch_argnums", numbers[0] if is_one else numbers)
        count: MicroBatches | None = whole_number(self.micro_batches)
        if _is_one_of(self.micro_batches, ("auto",)):
            count = "auto"
        elif count is None or count < 1:
            raise PlanError(f"micro_batches={self.micro_batches!r}. Give 1 or more, or 'auto'.")
        if self.pipeline is not None:
            self._check_in_stages()
            if isinstance(self.pipeline, Pipeline):
                count = self._micro_batches_of(self.pipeline, count)
        object.__setattr__(self, "micro_batches", count)
        lines: object = self.per_micro_batch  # whatever the user gave
        are_lines = isinstance(lines, tuple | list) and set(
            map(type, cast(Sequence[object], lines))
        ) <= {str}
        if not are_lines or (lines and count == 1):
            raise PlanError(
                f"per_micro_batch={self.per_micro_batch!r} with micro_batches={count}: give a tuple"
                ' of lines, ("model.py:41",), and two micro-batches or more.'
            )
        object.__setattr__(self, "per_micro_batch", tuple(self.per_micro_batch))
        if self.trip_count is not None:
            trips = whole_number(self.trip_count)
            if trips is None or not 0 <= trips <= MOST_TRIPS:
                raise PlanError(
                    f"trip_count={self.trip_count!r} is no number of trips. Give a whole number, 0"
                    f" to {MOST_TRIPS}: how often a loop runs whose trips are not in the program."
                )
        options = read_compiler_options(self.compiler_options)
        object.__setattr__(self, "compiler_options", options)
        self.spreading()  # says what is wrong with it
        self.recomputing()  # likewise
        self.options()  # likewise

    @property
    def micro_batch_count(self) -> int:
        """``micro_batches``; 1 where it is still to be chosen."""
        return self.micro_batches if isinstance(self.micro_batches, int) else 1

    def with_micro_batches(self, count: int) -> Request:
        """The same with this number of micro-batches."""
        lines = self.per_micro_batch if count > 1 else ()
        return replace(self, micro_batches=count, per_micro_batch=lines)

    @property
    def stages(self) -> Pipeline | None:
        """The pipeline that is asked for; ``"auto"`` has become one, or none, before."""
        return self.pipeline if isinstance(self.pipeline, Pipeline) else None

    def _check_in_stages(self) -> None:
        """Refuse what pipelines do not have.

        Raises:
            PlanError: It is asked for.
        """
        is_auto = _is_one_of(self.pipeline, ("auto",))
        if not is_auto and not isinstance(cast(object, self.pipeline), Pipeline):
            raise PlanError(
                f"pipeline={self.pipeline!r}. Give autoshard.Pipeline(stages=4, micro_batches=16),"
                " or 'auto'."
            )
        check_mesh_of_a_stage(self.mesh)
        if self.mode not in (None, "auto"):
            raise PlanError(f"pipeline= is planned by the search, not in mode={self.mode!r}.")
        if self.host_offload == "auto":
            raise PlanError("host_offload='auto' with pipeline= is not supported.")
        if is_auto and self.mesh is not None:
            raise PlanError(
                f"pipeline='auto' with mesh={self.mesh!r}: stages have fewer devices than the step"
                " without them, so that no mesh is one for both. Leave mesh out, or give"
                " pipeline=autoshard.Pipeline(..)."
            )

    def _micro_batches_of(self, pipeline: Pipeline, count: MicroBatches) -> int:
        """How many micro-batches go through a pipeline.

        Raises:
            PlanError: Others are asked for, too.
        """
        if count not in (1, pipeline.micro_batches):
            raise PlanError(
                f"micro_batches={count!r}, but pipeline={pipeline}. Leave micro_batches out."
            )
        return pipeline.micro_batches

    def check_for(self, mode: Mode, has_cluster: bool, name: str) -> None:
        """Refuse what would say nothing.

        Args:
            mode: What the request comes to.
            has_cluster: Are there chips and links to plan for?
            name: Of the function.

        Raises:
            PlanError: An option of the search in another mode, or one of memory or seconds without
                a cluster.
        """
        if self.batch_argnums is not None and mode == "semi_auto":
            raise PlanError(
                f"{name}: batch_argnums says what modes 'auto' and 'data_parallel' split alike, but"
                f" mode 'semi_auto' takes what is marked or pinned. Pin the batch by in_shardings,"
                " or give another mode."
            )
        recomputing = self.recomputing()
        chooses_again = recomputing is not None and recomputing.choose == "auto"
        for option, value, is_given, needs_search in (
            ("mem_coeff", self.mem_coeff, self.mem_coeff != "auto", True),
            ("cost_model", self.cost_model, self.cost_model != "seconds", True),
            ("time_limit", self.time_limit, self.time_limit is not None, True),
            ("constraints", self.constraints, self.constraints == "prefer", True),
            ("memory_limit", self.memory_limit, self.memory_limit is not None, False),
            ("overlap", self.overlap, self.overlap != 0, False),
            ("compiler", self.compiler, self.compiler is not None, False),
            ("host_offload", self.host_offload, self.host_offload == "auto", False),
            ("recompute", "auto", chooses_again, False),
            ("micro_batches", "auto", self.micro_batches == "auto", False),
        ):
            if is_given and needs_search and mode != "auto":
                raise PlanError(
                    f"{name}: {option}={value!r} is said to the search, but mode {mode!r} does not"
                    f" search. Give mode='auto', or leave {option} out."
                )
            if is_given and not has_cluster:
                raise PlanError(
                    f"{name}: {option}={value!r} needs a cluster: without one nothing is known of"
                    ' memory and of seconds. Give cluster="v5e:4x4" or the like.'
                )

    def options(self) -> RecursiveProgramming:
        """Options of the pass that searches.

        Raises:
            PassOptionError: A number out of its range.
        """
        limit = "" if self.memory_limit is None else str(self.memory_limit)
        return RecursiveProgramming(
            mem_coeff=self.mem_coeff,
            memory_limit=limit,
            overlap=self.overlap,
            cost_model=self.cost_model,
            enable_alltoall=self.enable_alltoall,
            indivisible=self.indivisible,
            time_limit=self.time_limit,
        )

    def spreading(self) -> OptimizerParallel | None:
        """The pass that spreads optimizer states, gradients and parameters, if one is asked for.

        Raises:
            PassOptionError: There is no such level.
        """
        wanted = self.optimizer_parallel
        if wanted is None or isinstance(wanted, OptimizerParallel):
            return wanted
        return OptimizerParallel(level=wanted)

    def recomputing(self) -> Recompute | None:
        """The pass that computes values again; None if it shall not run.

        Raises:
            PlanError: There is no such choice.
        """
        wanted = self.recompute
        limit = "" if self.memory_limit is None else str(self.memory_limit)
        if isinstance(wanted, Recompute):
            if wanted.cluster:
                raise PlanError(
                    f"recompute=Recompute(cluster={wanted.cluster!r}): a function is planned for"
                    " one cluster. Give cluster= beside recompute=."
                )
            return replace(
                wanted,
                host_offload=wanted.host_offload or self.host_offload == "auto",
                memory_limit=wanted.memory_limit or limit,
                overlap=wanted.overlap or self.overlap,
            )
        if not _is_one_of(wanted, ("auto", "marks", "none")):
            raise PlanError(
                f"recompute={wanted!r} is not known. Use 'auto', 'marks' or 'none', or an"
                " autoshard.Recompute with all options."
            )
        if wanted == "none":
            return None
        return Recompute(
            choose=wanted,
            host_offload=self.host_offload == "auto",
            memory_limit=limit,
            overlap=self.overlap,
        )

    def mesh_of_pins(self) -> MeshLike | None:
        """The mesh of the first pin that brings one."""
        pins = jax.tree.leaves((self.in_shardings, self.out_shardings), is_leaf=is_pin)
        for pin in pins:
            if isinstance(pin, jax.sharding.NamedSharding):
                return pin.mesh
            if isinstance(pin, Sharding):
                return pin.mesh
        return None


def check_mesh_of_a_stage(mesh: MeshLike | None) -> None:
    """Refuse a mesh of a pipeline that says on which devices it is.

    Raises:
        PlanError: It is one of JAX, given by name, by ``jax.set_mesh`` or by a pin.
    """
    if isinstance(mesh, jax.sharding.Mesh):
        raise PlanError(
            "pipeline= with a mesh of JAX, which has devices of its own: stages take theirs"
            ' from the cluster. Give the mesh of one stage as a text, mesh="dp=2,tp=2".'
        )


def _is_one_of(value: Any, choices: Sequence[str]) -> bool:
    """Not true of an array, either, which compares element by element."""
    return isinstance(value, str) and value in choices


def is_pin(value: Any) -> bool:
    """Is it something that pins one value?"""
    return isinstance(value, jax.sharding.Sharding | jax.sharding.PartitionSpec | Sharding)
