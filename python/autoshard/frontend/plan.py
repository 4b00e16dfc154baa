"""What was decided for a program: the object that ``autoshard.plan`` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Literal, cast

import jax
import jax.numpy as jnp

from autoshard.cluster import Cluster
from autoshard.compilers.options import CompilerOptions, as_sets, read_compiler_options
from autoshard.errors import PlanError
from autoshard.frontend.fingerprint import Fingerprint, LoweredProgram
from autoshard.frontend.mesh import Machine, cluster_of
from autoshard.frontend.plan_questions import PlanQuestions
from autoshard.frontend.request import ClusterLike
from autoshard.frontend.saved_tree import SavedTree
from autoshard.ir import mlir, new_context, parse_bytes, print_module
from autoshard.ir.boundary import allows_all_to_all
from autoshard.ir.host_memory import PINNED_HOST
from autoshard.ir.lowering import uses_shardy
from autoshard.passes.pipeline import run_passes
from autoshard.planned.collective import Collective
from autoshard.planned.module import PlannedModule, read_plan
from autoshard.planned.ops import (
    PlannedOp,
    Reshard,
    callback_bytes,
    planned_ops,
    reshards,
)
from autoshard.planned.summary import BatchSplit, PlanSummary, bytes_text, seconds_text
from autoshard.planned.symbolic_costs import SymbolicCosts
from autoshard.rewrites.layer_loops.parts import part_shape
from autoshard.search.refine import Budget, Refinement
from autoshard.sharding import Mesh, Sharding, to_named_sharding, to_partition_spec
from autoshard.verify.ahead_of_time import TIME_LIMIT_SECONDS
from autoshard.verify.check.check import TIME_LIMIT_SECONDS as CHECK_SECONDS
from autoshard.verify.check.check import Check, check_module
from autoshard.verify.shardy_collectives import shardy_collectives
from autoshard.verify.verification import Verification, verify_module

if TYPE_CHECKING:
    from autoshard.frontend.planned_lockstep import LockstepPipeline
    from autoshard.frontend.planned_pipeline import PlannedPipeline
    from autoshard.frontend.refining import Origin
    from autoshard.frontend.searched import Searched

_tree: Any = jax.tree_util

_KEY_BITS = {"key<fry>": 64, "key<rbg>": 128, "key<urbg>": 128}
"""Bits of one typed PRNG key, which has two or four words."""


@dataclass(frozen=True)
class PlannedValue:
    """One argument or result of the program."""

    name: str
    """``params['w']``; of a result ``result['loss']``."""
    shape: tuple[int, ...]
    dtype: str
    sharding: Sharding
    """On the plan's mesh."""
    is_used: bool = True
    """False for an argument that the program does not read; it is replicated."""
    is_on_host: bool = False
    """Whether it lives in the memory of the host, ``pinned_host``."""
    stage_cut: tuple[int, int] | None = None
    """The dim and the number of equal parts of an array with rows of layers in a pipeline, each of
    which is on a stage of its own; ``sharding`` is that of a part. None: it is on one stage."""

    @property
    def part_shape(self) -> tuple[int, ...]:
        """Shape of a stage's part."""
        if self.stage_cut is None:
            return self.shape
        return part_shape(self.shape, *self.stage_cut)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of one device's part."""
        return self.sharding.local_shape(self.part_shape)

    @property
    def local_bytes(self) -> int:
        """Bytes of one device's part, the largest one; two int4 share a byte."""
        bits = _KEY_BITS.get(self.dtype)
        if bits is None:
            bits = jax.dtypes.itemsize_bits(jnp.dtype(self.dtype))
        return -(-prod(self.local_shape) * bits // 8)

    def named_sharding(self, mesh: Any) -> Any:
        """A ``NamedSharding`` over a mesh of JAX."""
        if isinstance(mesh, jax.sharding.AbstractMesh):
            spec = cast(Any, to_partition_spec(self.sharding))
            named = jax.sharding.NamedSharding(cast(Any, mesh), spec)
        else:
            named = to_named_sharding(self.sharding, mesh)
        return named.with_memory_kind(PINNED_HOST) if self.is_on_host else named

    def abstract(self, sharding: Any) -> jax.ShapeDtypeStruct:
        """Its type with a sharding of JAX."""
        dtype = jax.dtypes.canonicalize_dtype(self.dtype)
        return jax.ShapeDtypeStruct(self.shape, dtype, sharding=sharding)


@dataclass(frozen=True, repr=False)
class Plan(PlanQuestions):
    """How every value of one program is split over a mesh.

    ``in_shardings`` and ``out_shardings`` fit plain ``jax.jit`` and ``jax.device_put``. What
    plain ``jax.jit`` makes of the values in between is up to the partitioner; ``autoshard.jit``
    builds the whole plan.
    """

    name: str
    """The function."""
    mesh: Mesh
    mode: str
    arguments: tuple[PlannedValue, ...]
    """One per array among the arguments, in the order of the flattened pytree."""
    results: tuple[PlannedValue, ...]
    bytecode: bytes = field(repr=False)
    """The planned module."""
    in_tree: Any = field(repr=False)
    """Structure of ``(positional, by name)`` without static arguments; a ``SavedTree`` if it was
    loaded where types in it are not imported."""
    out_tree: Any = field(repr=False)
    machine: Machine = field(repr=False, compare=False)
    summary: PlanSummary | None = field(default=None, repr=False, compare=False)
    """What the plan costs; None where it was planned without a cluster."""
    batch: BatchSplit | None = None
    """``size``, ``data_parallel``, ``micro_batch`` and ``gradient_accumulation``; None where no
    result replaces an argument, which tells state from batch, and ``batch_argnums`` is not given,
    or where the arguments outside the state differ in dim 0."""
    compiler_options: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """What it is compiled with, by ``verify`` and by ``autoshard.jit``."""

    pipeline: PlannedPipeline | LockstepPipeline | None = field(
        default=None, repr=False, compare=False
    )
    """Stages and schedule, where a pipeline was asked for: ``print(plan.pipeline.gantt())``. Mesh,
    shardings and ops are those inside of a stage."""
    refinement: Refinement | None = field(default=None, repr=False, compare=False)
    """The plans that were compiled to take this one; None where ``refine`` did not make it."""
    origin: Origin | None = field(default=None, repr=False, compare=False)
    """What ``autoshard.plan`` planned, which ``refine`` plans again; None where it was loaded, or
    made by a ``Planner``."""
    made_for: LoweredProgram | Fingerprint | None = field(default=None, repr=False, compare=False)
    """The program that it was made for; its fingerprint if the plan was loaded."""

    searched: Searched | None = field(default=None, repr=False, compare=False)
    """What the search had of the program, while no other plan is made."""

    FORMAT: ClassVar[int] = 3
    """Version of the JSON that ``save`` writes."""

    @property
    def cluster(self) -> str | None:
        """What the plan is for, ``v5e:4x4``; None where it was planned without a cluster."""
        return None if self.summary is None else self.summary.cluster

    @property
    def step_seconds(self) -> float:
        """Estimate of one step: compute, and what of communication does not hide behind it.

        That of a pipeline is by its schedule. This and the other numbers raise PlanError where the
        plan was made without a cluster.
        """
        if self.pipeline is not None:
            return self.pipeline.step_seconds
        return self._estimate.step_seconds

    @property
    def compute_seconds(self) -> float:
        """Seconds of compute in one step on one device; of a pipeline, if the devices of one stage
        did all of it. So is the time of its collectives."""
        return self._estimate.compute_seconds

    @property
    def communication_seconds(self) -> float:
        """Seconds of all collectives of one step, hidden or not."""
        return self._estimate.communication_seconds

    @property
    def nothing_hidden_seconds(self) -> float:
        """Seconds of a step in which everything runs one after the other; with the two below, of a
        pipeline as of ``compute_seconds``."""
        return self._estimate.nothing_hidden_seconds

    @property
    def scheduled_seconds(self) -> float | None:
        """Seconds of a step in which the collectives that the compiler hides run beside what does
        not wait for them, as a model has it; None of a plan that an older release wrote."""
        return self._estimate.scheduled_seconds

    @property
    def all_hidden_seconds(self) -> float | None:
        """Seconds of the busiest of compute and links; None as above."""
        return self._estimate.all_hidden_seconds

    @property
    def peak_bytes(self) -> float:
        """On one device at the worst moment of a step; of a pipeline, on its worst stage."""
        if self.pipeline is not None:
            return max(self.pipeline.peak_bytes)
        return self._estimate.peak_bytes_per_device

    @property
    def lower_bound_seconds(self) -> float:
        """No plan of the networks that were solved is faster than this; 0 of a pipeline, whose
        stages and schedule are not in them."""
        return 0.0 if self.pipeline is not None else self._estimate.lower_bound_seconds

    @property
    def gap(self) -> float | None:
        """``step_seconds / lower_bound_seconds - 1``; None for a bound of nothing."""
        return None if self.pipeline is not None else self._estimate.gap

    @property
    def planning_seconds(self) -> Mapping[str, float]:
        """What planning took, by phase; without JAX's tracing and lowering."""
        return self._estimate.planning_seconds

    @property
    def symbolic_costs(self) -> SymbolicCosts | None:
        """What the symbolic cost weighed; None in other cost models."""
        return None if self.summary is None else self.summary.symbolic_costs

    @cached_property
    def remat_policy(self) -> str:
        """What the plan keeps, computes again and sends to the host, of what
        ``jax.ad_checkpoint.checkpoint_name`` names: Python text of the policy for
        ``jax.checkpoint`` that says so.

        Values without a name are not in it: such a policy computes them again.

        Raises:
            PlanError: Nothing has a name.
        """
        from autoshard.frontend.remat_policy import remat_policy

        return remat_policy(self.bytecode, self.name, self._estimate)

    @property
    def _estimate(self) -> PlanSummary:
        if self.summary is None:
            raise PlanError(_no_cluster(self))
        return self.summary

    @cached_property
    def fingerprint(self) -> Fingerprint | None:
        """For which program the plan was made."""
        made_for = self.made_for
        return made_for.fingerprint() if isinstance(made_for, LoweredProgram) else made_for

    @cached_property
    def jax_mesh(self) -> Any:
        """The mesh as JAX's: over devices where there are enough, else abstract.

        Raises:
            ShardingError: The plan was made for a mesh of JAX, loaded from a file, and devices of
                that mesh are not here.
        """
        return self.machine.jax_mesh()

    @property
    def in_shardings(self) -> tuple[Any, ...]:
        """A ``NamedSharding`` for every array of the positional arguments, as pytrees."""
        return self._in_shardings[0]

    @property
    def kwarg_shardings(self) -> dict[str, Any]:
        """A ``NamedSharding`` for every array of the arguments by name."""
        return self._in_shardings[1]

    @cached_property
    def _in_shardings(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.as_arguments(self.named_shardings[0])

    @cached_property
    def out_shardings(self) -> Any:
        """A ``NamedSharding`` for every array of the result, as its pytree."""
        return self._as_tree(self.out_tree, self.named_shardings[1])

    @cached_property
    def abstract_arguments(self) -> tuple[Any, ...]:
        """A ``ShapeDtypeStruct`` with its sharding for every array of the positional arguments.

        Checkpoints are restored by it into this plan's shardings, whatever plan they were written
        under: ``StandardCheckpointer().restore(path, plan.abstract_arguments[0])`` of orbax.
        """
        shardings = self.named_shardings[0]
        structs = [v.abstract(at) for v, at in zip(self.arguments, shardings, strict=True)]
        return self.as_arguments(structs)[0]

    @cached_property
    def named_shardings(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """``NamedSharding``s of arguments and of results, flat; those of a pipeline on stages."""
        return _named_shardings(self)

    def as_arguments(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Something of every array of the arguments, as the arguments: by place, and by name."""
        return self._as_tree(self.in_tree, leaves)

    def _as_tree(self, tree: Any, leaves: Sequence[Any]) -> Any:
        if isinstance(tree, SavedTree):
            tree = tree.resolved(self.name)
        return _tree.tree_unflatten(tree, leaves)

    def place(self, *args: Any, **kwargs: Any) -> Any:
        """Arguments of the program, each where the plan wants it.

        What lies there already is passed on, as are numbers of Python and arguments that the
        program does not read.

        Args:
            args: The positional arguments, without static ones.
            kwargs: Those by name.

        Returns:
            The positional arguments as a tuple, ``step(*plan.place(params, x))``; with arguments
            by name a pair of that and a dict.

        Raises:
            PlanError: Other arguments than those that the plan is for.
            ShardingError: Its devices are not here.
        """
        from autoshard.frontend.place import placed

        self.machine.needs_devices()
        found = placed(self, (args, kwargs))
        return found if kwargs else found[0]

    def logical_rules(self) -> tuple[tuple[str, str | tuple[str, ...] | None], ...]:
        """Rules for the logical axes of the arguments, ``(("embed", None), ("mlp", "model"))``.

        As ``flax.linen.logical_axis_rules`` takes them, over the axes of ``mesh``. A name that the
        plan cuts unlike in several arrays gets the axes of most bytes, with a warning.

        Raises:
            PlanError: No argument has names for its dims.
        """
        from autoshard.frontend.logical_axes import logical_rules

        return logical_rules(self)

    def __reduce__(self) -> Any:
        """Pickled as the text that ``save`` writes."""
        from autoshard.frontend.plan_file import plan_of_text, text_of_plan

        return plan_of_text, (text_of_plan(self),)

    def __copy__(self) -> Plan:
        return self

    def __deepcopy__(self, memo: Any) -> Plan:
        """Itself: nothing of a plan can change."""
        return self

    @cached_property
    def _planned(self) -> PlannedModule:
        return read_plan(self._module())

    @cached_property
    def ops(self) -> tuple[PlannedOp, ...]:
        """Every op with its strategy and sharding, in program order, callees and loops too."""
        return planned_ops(self._planned)

    @cached_property
    def reshards(self) -> tuple[Reshard, ...]:
        """Every operand that an op needs in another sharding than its producer leaves it."""
        return reshards(self._planned)

    @cached_property
    def callback_bytes(self) -> tuple[tuple[int, int], ...]:
        """Bytes of each value that a call back into Python reads or gives, and how often."""
        return callback_bytes(self._module())

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """What the plan communicates, as Shardy spells it out, with lines and bytes.

        Compilers combine and reorder collectives, and some have no reduce-scatter: compare bytes,
        not numbers of ops.
        """
        module = self.exported("autoshard-export-shardy")
        return tuple(shardy_collectives(module, has_all_to_all=allows_all_to_all(self._module())))

    def exported(self, form: str) -> mlir.Module:
        """A module of its own in the form that a partitioner keeps.

        Args:
            form: ``"autoshard-export-shardy"`` or ``"autoshard-export-gspmd"``.
        """
        if form not in self._exports:
            module = self._module()
            run_passes(module, [_form_in_lockstep(self, form)])
            self._exports[form] = print_module(module, "bytecode")
        return parse_bytes(self._exports[form], new_context(), self.name)

    @cached_property
    def _exports(self) -> dict[str, bytes]:
        """Bytecode of what has been exported, by form."""
        return {}

    def _module(self) -> mlir.Module:
        """The planned module, a new one each time."""
        return parse_bytes(self.bytecode, new_context(), self.name)

    def verify(
        self,
        target: ClusterLike | None = None,
        *,
        timeout: float = TIME_LIMIT_SECONDS,
        form: Literal["shardy", "gspmd"] | None = None,
        compiler_options: CompilerOptions | None = None,
    ) -> Verification:
        """Compile the plan once, in a process of its own, and put what came out beside it.

        No such device is needed, but its compiler: ``pip install '.[tpu]'``,
        ``'.[gpu]'`` or ``'.[gpu13]'``; that of CPUs is in jaxlib.

        Args:
            target: A cluster to compile for, with as many devices. None: what the plan is for, or
                else the devices here.
            timeout: Seconds of the compile.
            form: ``"shardy"`` or ``"gspmd"``; None: the partitioner that JAX is set to.
            compiler_options: XLA's, ``{"xla_gpu_autotune_level": "0"}``, or the name of a
                published set, ``"maxtext-v6e"``. None: those of the plan.

        Raises:
            CompileError: The compiler is not installed, fails for another reason than memory, or
                is not done in time.
            ClusterError: No compiler knows the cluster, or it has another number of devices.
            PlanError: The plan is for no cluster, and the devices here are not its own.
        """
        _check_is_one_program(self, "verify")
        return verify_module(
            self._module(),
            Cluster.of(self._all_devices() if target is None else target),
            use_shardy=uses_shardy() if form is None else form == "shardy",
            timeout=timeout,
            device_order=self._device_order(),
            compiler_options=(
                self.compiler_options
                if compiler_options is None
                else read_compiler_options(compiler_options)
            ),
        )

    def _all_devices(self) -> Cluster:
        """Those of all stages, where there are stages."""
        if self.pipeline is not None:
            return self.pipeline.cluster
        return cluster_of(self.machine) if self.summary is None else self.summary.read_cluster()

    def _device_order(self) -> tuple[int, ...] | None:
        """The number of each device of the program among all; None: they are in order."""
        order = self.machine.numbers
        if order is None or self.pipeline is None:
            return order
        starts = range(0, self.pipeline.cluster.num_devices, len(order))
        return tuple(start + number for start in starts for number in order)

    def refine(
        self,
        compiles: int = 4,
        seconds: float | None = None,
        *,
        processes: int | None = None,
        options: CompilerOptions | Sequence[CompilerOptions] = (),
        form: Literal["shardy", "gspmd"] | None = None,
    ) -> Plan:
        """The best of several plans, this one among them, as the compiler schedules them.

        Plans on meshes of other shapes, in lockstep also of another delay, the fastest by the
        model, are compiled as ``verify`` compiles this one; of those that fit as compiled the one
        with the shortest step as scheduled is taken. ``refinement`` of the plan that comes back
        tells of all, on a terminal while it goes on; Ctrl-C takes the best so far.

        Args:
            compiles: Plans that are compiled.
            seconds: After which no more compiles begin, and those that run are stopped.
            processes: Compilers at a time; None: one for every four cores.
            options: The best plan is compiled once more with each of these, besides those of the
                plan: names of published sets, or XLA's by name, ``{"xla_gpu_autotune_level":
                "0"}``; or with a single one. The plan that comes back has the fastest ones.
            form: As in ``verify``.

        Raises:
            PlanError: It is loaded, or of several programs, or no set is called so.
            CompileError: The compiler is not installed.
            ClusterError: No compiler knows the cluster.
            PassOptionError: A number out of its range.
        """
        from autoshard.frontend.refining import check_refinable, refine_plan

        _check_is_one_program(self, "refine")
        check_refinable(self)
        form = form or ("shardy" if uses_shardy() else "gspmd")
        budget = Budget(compiles, seconds, processes, as_sets(options))
        return refine_plan(self, budget, self._all_devices(), self._device_order(), form)

    def check(
        self,
        *,
        timeout: float = CHECK_SECONDS,
        form: Literal["shardy", "gspmd"] | None = None,
        host_memory_bytes: int | None = None,
    ) -> Check:
        """Run the program, made small, split as planned, and compare it with one device.

        Sizes, layers that repeat and large meshes are made smaller; rules and shardings stay. It
        runs on virtual CPU devices in processes of their own; no device of the plan is needed.

        Args:
            timeout: Seconds, those of finding the op that is wrong included.
            form: ``"shardy"`` or ``"gspmd"``; None: the partitioner that JAX is set to.
            host_memory_bytes: That each process may take; None: no limit.

        Raises:
            CheckError: The program cannot be run on a CPU or cannot be made small.
            PlanError: The plan is one of a pipeline.
        """
        _check_is_one_program(self, "check")
        return check_module(
            self._module(),
            use_shardy=uses_shardy() if form is None else form == "shardy",
            timeout=timeout,
            host_memory_bytes=host_memory_bytes,
        )

    def to_mlir(self, debug_info: bool = True) -> str:
        """The planned module as text, with the plan's attributes; ``autoshard-opt`` reads it."""
        return print_module(self._module(), debug_info=debug_info).decode()

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, the module included: all at once, or not at all.

        Raises:
            OutputError: It cannot be written.
        """
        from autoshard.frontend.plan_file import save_plan

        save_plan(self, path)

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read what ``save`` wrote.

        Raises:
            ParseError: The file is no plan, or one of a later version.
        """
        from autoshard.frontend.plan_file import load_plan

        return load_plan(path)

    def print(self, *, full: bool = False, file: IO[str] | None = None) -> None:
        """Print the tables of ``print(plan)``.

        Args:
            full: Every argument, op and reshard by itself, not those of equal layers once.
            file: Where to; None: standard output.
        """
        from autoshard.report.plan_table import plan_table, print_to

        print_to(file, plan_table(self, full))

    def __repr__(self) -> str:
        """One line."""
        parts = [f"{self.name}: {self.mode} plan on mesh {self.mesh}"]
        if self.summary is not None:
            parts.append(f"{seconds_text(self.step_seconds)} a step of {self.cluster}")
            parts.append(f"{bytes_text(self.peak_bytes)} a device")
        return f"<Plan of {', '.join(parts)}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from autoshard.report.plan_table import plan_table, to_html

        return to_html(plan_table(self))

    def __rich__(self) -> Any:
        """Tables of arguments, results, ops and reshards; equal layers once."""
        from autoshard.report.plan_table import plan_table

        return plan_table(self)

    def __str__(self) -> str:
        """The same tables as text."""
        from autoshard.report.plan_table import plan_table, render

        return render(plan_table(self))


def _form_in_lockstep(plan: Plan, form: str) -> str:
    """The pass that writes a plan.

    Raises:
        PlanError: A pipeline in lockstep in a form that it does not have.
    """
    if plan.pipeline is None or not plan.pipeline.is_one_program:
        return form
    if form != "autoshard-export-shardy":
        raise PlanError(
            f"plan of {plan.name}: a pipeline in lockstep is written for Shardy alone. Set JAX to"
            " it, jax.config.update('jax_use_shardy_partitioner', True), or plan with"
            " execution='stages'."
        )
    return "autoshard-export-lockstep"


def _check_is_one_program(plan: Plan, what: str) -> None:
    if plan.pipeline is None or plan.pipeline.is_one_program:
        return
    instead = "Give plan.pipeline.verify()" if what == "verify" else "Leave pipeline= out"
    raise PlanError(
        f"plan of {plan.name}: {what} is for one program, and a pipeline is several. {instead}."
    )


def _named_shardings(plan: Plan) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    pipeline = plan.pipeline
    if pipeline is None:
        mesh = plan.jax_mesh
        sides = ([value.named_sharding(mesh) for value in plan.arguments],)
        sides += ([value.named_sharding(mesh) for value in plan.results],)
    else:
        sides = tuple(
            [
                pipeline.named_sharding(value, number, is_result=is_result)
                for number, value in enumerate(values)
            ]
            for values, is_result in ((plan.arguments, False), (plan.results, True))
        )
    return tuple(sides[0]), tuple(sides[1])


def _no_cluster(plan: Plan) -> str:
    return (
        f"plan of {plan.name}: mode {plan.mode!r} planned it without a cluster, so that nothing is"
        ' known of seconds and memory. Plan it with cluster="v5e:4x4" or the like.'
    )
