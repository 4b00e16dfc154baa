"""``autoshard.plan``: decide how a program is split, without running it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import jax

from autoshard.cluster import Cluster
from autoshard.compilers.options import CompilerOptions, read_compiler_options
from autoshard.errors import DoesNotFitError, PlanError
from autoshard.frontend.alike import cut_alike, write_batch_cuts
from autoshard.frontend.batch import batch_split
from autoshard.frontend.batch_arrays import (
    arrays_of_batch,
    batch_of_source,
    into_micro_batches,
    places_of,
)
from autoshard.frontend.chosen_execution import with_faster_execution
from autoshard.frontend.chosen_micro_batches import taken_micro_batches, with_chosen_micro_batches
from autoshard.frontend.chosen_pipeline import with_chosen_pipeline
from autoshard.frontend.device_order import in_chosen_order, source_of
from autoshard.frontend.fingerprint import LoweredProgram
from autoshard.frontend.layer_parts import InParts
from autoshard.frontend.lockstep_planning import planned_in_lockstep
from autoshard.frontend.lower import Source, Traced, traced_for, whole_cluster
from autoshard.frontend.mesh import MeshLike
from autoshard.frontend.micro_batched import micro_batched
from autoshard.frontend.pins import (
    Pins,
    fed_back_arguments,
    logical_sharding,
    write_pins,
    write_request,
)
from autoshard.frontend.plan import Plan, PlannedValue
from autoshard.frontend.plan_cache import cached
from autoshard.frontend.planned_pipeline import PlannedPipeline, Staging, planned_pipeline
from autoshard.frontend.preferring import preferred
from autoshard.frontend.refining import Origin
from autoshard.frontend.request import (
    ClusterLike,
    Constraints,
    CostModel,
    HostMemory,
    Indivisible,
    MicroBatches,
    Mode,
    OptimizerParallelLike,
    Policy,
    RecomputeLike,
    Request,
)
from autoshard.frontend.result_names import result_names
from autoshard.frontend.searched import Searched
from autoshard.frontend.staged_planning import FULL_EFFORT, Effort, StagedSearch
from autoshard.frontend.switches import with_switches
from autoshard.frontend.whole_step import WholeSteps
from autoshard.importer.micro_batches import accumulation_steps
from autoshard.ir import mlir, new_context, parse_bytes, print_module
from autoshard.ir.attributes import PLAN
from autoshard.ir.boundary import (
    main_function,
    mesh_text,
    say_trips,
    tied_arguments,
    unpin,
    untie_unequal,
)
from autoshard.ir.garbage import no_collection
from autoshard.ir.host_memory import on_host
from autoshard.ir.module import operations_of
from autoshard.passes.host_offload import HostOffload
from autoshard.passes.import_strategies import ImportStrategies
from autoshard.passes.optimizer_parallel import OptimizerParallel
from autoshard.passes.pipeline import run_passes
from autoshard.passes.recursive_programming import (
    Coefficient,
    estimate_planned,
)
from autoshard.passes.sharding_propagation import ShardingPropagation
from autoshard.pipeline.options import PipelineLike
from autoshard.planned.module import read_boundary
from autoshard.planned.summary import BatchSplit, PlanSummary
from autoshard.progress import task
from autoshard.rewrites.constraints import drop_constraints
from autoshard.rewrites.given_arguments import numbers_called
from autoshard.rewrites.gradient_order import bound_gradients
from autoshard.rewrites.layer_loops.parts import ProgramParts
from autoshard.search.automatic import ALL_MEMORY, Job, Planned
from autoshard.search.host_arguments import plan_with_host
from autoshard.search.host_candidates import candidates
from autoshard.search.last_search import LastSearch
from autoshard.sharding import Mesh, Sharding

_tree: Any = jax.tree_util


def plan(
    fn: Callable[..., Any],
    *args: Any,
    mesh: MeshLike | None = None,
    cluster: ClusterLike | None = None,
    compiler: str | None = None,
    mode: Mode | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    mem_coeff: Coefficient = "auto",
    memory_limit: int | float | str | None = None,
    overlap: float = 0.0,
    cost_model: CostModel = "seconds",
    batch_argnums: int | Sequence[int] | None = None,
    enable_alltoall: bool = True,
    indivisible: Indivisible = "refuse",
    optimizer_parallel: OptimizerParallelLike | None = None,
    host_offload: HostMemory = "marks",
    recompute: RecomputeLike = "marks",
    policy: Policy = "keep",
    constraints: Constraints = "keep",
    compiler_options: CompilerOptions | None = None,
    trip_count: int | None = None,
    time_limit: float | None = None,
    micro_batches: MicroBatches = 1,
    per_micro_batch: Sequence[str] = (),
    pipeline: PipelineLike | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    **kwargs: Any,
) -> Plan:
    """Decide how ``fn`` is split over a cluster. Nothing is computed and no device is needed.

    Args:
        fn: A function of arrays. Its own ``jax.jit`` is not touched.
        args: Its arguments: arrays, or ``jax.ShapeDtypeStruct``s in their place. Where a mesh is
            given, by ``mesh=`` or ``jax.set_mesh``, those that have been put on it are pinned as
            they lie, unless ``in_shardings`` says otherwise or mode is ``"data_parallel"``.
        mesh: ``"dp=2,tp=4"``, a dict of axis sizes, or a mesh of JAX. None: the mesh of the pins,
            else the common refinement of the layouts that ``autoshard.shard`` was given in ``fn``,
            else one that the automatic mode makes of the cluster.
        cluster: What ``fn`` will run on: ``"v5p:4x4x4"``, ``"h100:4x8"``, ``"cpu:8"``, the path of
            a TOML file, or an ``autoshard.Cluster``. None: the devices here, where mode ``"auto"``
            asks for them.
        compiler: What compiles for the cluster, where that is not what is installed here:
            ``"xla-tpu-0.0.42"``; docs/design/compilers.md lists names and releases.
        mode: ``"auto"``: the fastest step within the memory of a device; marks and pins are kept.
            ``"semi_auto"``: from what is marked or pinned, by propagation.
            ``"data_parallel"``: the batch is split over all devices, everything else is on each.
            None: ``"auto"`` if a cluster is given, or neither mesh nor marks; else ``"semi_auto"``.
        in_shardings: Pins of the positional arguments: ``NamedSharding``, ``PartitionSpec``, a
            layout, or None for "choose", as pytree prefixes.
        out_shardings: Pins of the result, likewise.
        mem_coeff: Price of memory in the automatic mode; 1 is the time to read a byte of the peak
            once. ``"auto"``: the smallest one whose plan fits.
        memory_limit: Bytes that a plan may use of a device, or a text such as ``"14GiB"``. None:
            its memory less 8%, which only mode ``"auto"``, ``recompute="auto"`` and
            ``host_offload="auto"`` keep; a plan that is not searched says what it needs.
        overlap: Share of communication that hides behind compute, 0 to 1.
        cost_model: ``"seconds"``, or ``"symbolic"`` for relative costs without a unit.
        batch_argnums: The positional arguments that hold the batch, in dim 0 of each array; static
            ones do not count. None: those that no result replaces, as it does with a step's
            parameters and optimizer state. In mode ``"auto"`` arrays that are named are cut alike,
            and cut at all, unless the step and sending each device its part take more than 5%
            longer then; others are where the step alone is not 1% longer.
        enable_alltoall: Values may be resharded by all-to-alls. False: by gathers, slices and
            permutes; bodies of ``jax.shard_map`` keep what they have.
        indivisible: What becomes of a dim that shall be cut, but not in equal parts, as 250 rows on
            7 devices. ``"refuse"``: a mark on it is an error, the search leaves it whole.
            ``"pad"``: it is cut inside of the program, where XLA pads it to 252; arguments and
            results cannot be cut so, and stay whole in that dim.
        optimizer_parallel: Spread over the axes that replicate them: 1: optimizer states, 2:
            gradients, too, 3: parameters, too; or an ``autoshard.OptimizerParallel`` with more
            options. None: only where the automatic mode does so by itself.
        host_offload: What lives in the memory of the host. ``"marks"``: what
            ``autoshard.in_host_memory`` and ``autoshard.on_host`` say. ``"auto"``: also, where no
            plan fits otherwise, optimizer states and parameters that are read once, those that
            cost the least time on the link to the host first. ``"none"``: nothing; marks do not
            count.
        recompute: ``"auto"``: forward values are computed again in the backward half where that
            makes the step fit the memory, or faster; needs a cluster. ``"marks"``: as
            ``autoshard.recompute`` and ``jax.checkpoint`` in ``fn`` say. ``"none"``: the two
            switches of these marks are not looked at. Or an ``autoshard.Recompute``.
        policy: ``"keep"``: what ``jax.checkpoint`` in ``fn`` computes again or sends to the host
            stays so, and ``recompute`` and ``host_offload`` decide on the rest. ``"replace"``: it
            is undone first, so that they decide alone.
        constraints: What ``jax.lax.with_sharding_constraint`` in ``fn`` means. ``"keep"``: the
            plan keeps it. ``"prefer"``: it keeps all of them, unless no plan then is possible or
            fits, or the step is more than 5% longer than without; a warning says so.
            ``"ignore"``: nothing.
        compiler_options: XLA's, for ``Plan.verify`` and ``autoshard.jit``, which compile what is
            planned: ``{"xla_gpu_autotune_level": "0"}``, or the name of a published set, such as
            ``"maxtext-v6e"``. Planning itself does not look at them.
        trip_count: How often loops run whose number of trips is not in the program, as a
            ``jax.lax.while_loop`` that waits for an error to be small. None: 100, with a warning.
        time_limit: Seconds after which the search tries nothing more and takes the best plan so
            far. None: it ends by itself.
        micro_batches: Work through the batch in so many parts, one after the other in one loop,
            with the results of the whole batch: only one part's activations live at a time. 1: at
            once. What would not be the same is refused. ``"auto"``: the number that divides the
            batch whose plan is fastest within the memory of a device, tried together with what
            else is ``"auto"``; ``plan.summary.tried_micro_batches`` says what was tried, and why
            a step stays whole.
        pipeline: ``Pipeline(stages=4, micro_batches=16)``: the step on groups of devices, through
            which the micro-batches go; ``mesh`` is then that of one stage. ``"auto"``: the stages
            and micro-batches with the fastest step that fits, or none;
            ``plan.summary.tried_pipelines`` says what was tried.
        per_micro_batch: Lines, ``"model.py:41"``, whose sums over the batch are those of each
            micro-batch where they are needed in the middle of the step, as the mean of a batch
            normalisation: other semantics than without, which ``plan.batch`` repeats.
        static_argnums: As in ``jax.jit``.
        static_argnames: As in ``jax.jit``.
        donate_argnums: As in ``jax.jit``.
        donate_argnames: As in ``jax.jit``.
        kwargs: Arguments of ``fn`` by name.

    Raises:
        StrategyError: Marks or pins that contradict each other.
        DoesNotFitError: No plan fits the memory of a device; it is a PlanError.
        PlanError: There is no mesh, or nothing to propagate from.
        ClusterError: A cluster that nobody knows.
        AutoshardError: The program cannot be planned. Messages start with the user's line.
    """
    request = Request(
        mesh=mesh,
        cluster=cluster,
        compiler=compiler,
        mode=mode,
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        mem_coeff=mem_coeff,
        memory_limit=memory_limit,
        overlap=overlap,
        cost_model=cost_model,
        batch_argnums=batch_argnums,
        enable_alltoall=enable_alltoall,
        indivisible=indivisible,
        optimizer_parallel=optimizer_parallel,
        host_offload=host_offload,
        recompute=recompute,
        policy=policy,
        constraints=constraints,
        compiler_options=compiler_options,
        trip_count=trip_count,
        time_limit=time_limit,
        micro_batches=micro_batches,
        per_micro_batch=per_micro_batch,
        pipeline=pipeline,
    )
    traced = traced_for(
        fn,
        (args, kwargs),
        static=(static_argnums, static_argnames),
        donate=(donate_argnums, donate_argnames),
    )
    name = getattr(fn, "__name__", "a function")
    with task(f"planning {name}", keeps_best=True):
        return plan_traced(traced, request)


def plan_traced(traced: Traced, request: Request) -> Plan:
    """Lower and plan; see ``plan``."""
    if request.pipeline != "auto":
        return plan_source(traced.source(request), request, traced)

    @no_collection()
    def planned(source: Source, asked: Request, of: Traced, effort: Effort) -> Plan:
        return plan_source(source, asked, of, advises=False, effort=effort)

    return with_chosen_pipeline(traced, request, planned, WholeSteps(job_of).search)


def plan_source(
    source: Source,
    request: Request,
    traced: Traced | None = None,
    *,
    advises: bool = True,
    effort: Effort = FULL_EFFORT,
) -> Plan:
    """Plan what was lowered; see ``plan``.

    Args:
        source: The lowered function.
        request: What is asked of the plan.
        traced: Is kept, to plan it again.
        advises: Where nothing fits, try what of autoshard's own would make it fit.
        effort: Of searches for a pipeline.
    """
    request.check_for(source.mode, source.cluster is not None, source.name)
    if request.pipeline == "auto":
        raise PlanError(
            f"{source.name}: pipeline='auto' is chosen by autoshard.plan and autoshard.jit alone."
            " Give here what their plan has: pipeline=plan.pipeline.asked, or none."
        )
    if request.stages is not None and request.stages.execution == "auto":
        planned = partial(plan_source, source, traced=traced, advises=advises)
        return with_faster_execution(request, planned)
    plan_in = partial(_planned_or_advised, advises=advises, effort=effort)
    plan = cached(
        source,
        request,
        lambda: _module_of(source, request),
        lambda: in_chosen_order(source, request, plan_in),
    )
    if request.micro_batches == "auto":
        request = request.with_micro_batches(taken_micro_batches(plan))
    return replace(plan, origin=Origin(source_of(plan, source), request, traced))


def _planned_in_stages(
    source: Source, request: Request, stages: int, advises: bool, effort: Effort
) -> Plan:
    effort = replace(effort, last_search=LastSearch())
    plan_once = partial(_planned_in_parts, effort=effort)
    search = StagedSearch.of(source, request, stages, plan_once, effort)
    try:
        return search.plan(request)
    except DoesNotFitError as error:
        if not advises:
            raise
        switched, is_over = search.plan_switched, search.is_over
        raise with_switches(error, request, switched, is_over) from error


def _planned_in_parts(source: Source, request: Request, effort: Effort) -> Plan:
    """Planned with loops over layers cut for the stages of a pipeline."""
    parts, planned = InParts.of(source, request), partial(_planned, effort=effort)
    return planned(source, request) if parts is None else parts.plan(request, planned)


def _planned_or_advised(source: Source, request: Request, advises: bool, effort: Effort) -> Plan:
    is_lockstep = request.stages is not None and request.stages.execution == "lockstep"
    if request.stages is not None and not is_lockstep:
        return _planned_in_stages(source, request, request.stages.stages, advises, effort)

    def planned(asked: Request) -> Plan:
        if is_lockstep:
            return planned_in_lockstep(source, asked, _planned)
        if asked.micro_batches != "auto":
            return _planned(source, asked)
        ways = partial(_planned, source), partial(_free_summary, source)
        return with_chosen_micro_batches(source, asked, *ways)

    try:
        return planned(request)
    except DoesNotFitError as error:
        if source.mode != "auto" or source.cluster is None or not advises:
            raise
        raise with_switches(error, request, planned) from error


def _planned(source: Source, request: Request, effort: Effort = FULL_EFFORT) -> Plan:
    if request.constraints == "prefer":  # which compares plans that may be slower
        any_step = replace(effort, most_whole_seconds=math.inf)
        return preferred(source, request, partial(_planned, effort=any_step))
    if source.mode == "auto" and request.batch_argnums is not None and not source.batch_cuts:
        batch = free_batch(source, request)
        return cut_alike(source, batch, lambda asked: _planned_once(asked, request, effort))
    return _planned_once(source, request, effort)


def _planned_once(source: Source, request: Request, effort: Effort) -> Plan:
    return read_planned(source, _planned_module(source, request, effort), request)


def _planned_module(source: Source, request: Request, effort: Effort = FULL_EFFORT) -> Planned:
    most_seconds = math.inf if source.batch_cuts else effort.most_whole_seconds
    job = replace(
        job_of(source, request), most_seconds=most_seconds, last_search=effort.last_search
    )
    if source.mode == "auto":
        return plan_job(source, request, job)
    plan_once = partial(_propagated, source, request)
    is_auto = request.host_offload == "auto"
    return _with_host(source, job, plan_once) if is_auto else plan_once(job, ())


def plan_job(source: Source, request: Request, job: Job) -> Planned:
    """What the search finds, with arguments on the host where that is asked for.

    Raises:
        DoesNotFitError: No plan fits.
    """
    return _with_host(source, job, Job.plan) if request.host_offload == "auto" else job.plan()


def _free_summary(source: Source, request: Request) -> PlanSummary:
    """What the fastest plan costs that no limit of memory holds back."""
    is_auto, prefers = request.host_offload == "auto", request.constraints == "prefer"
    free = replace(
        request,
        memory_limit=ALL_MEMORY,
        mem_coeff="auto",
        recompute="none",
        host_offload="marks" if is_auto else request.host_offload,
        constraints="ignore" if prefers else request.constraints,
    )
    return cast(PlanSummary, _planned_module(source, free).summary)


def job_of(
    source: Source,
    request: Request,
    pins: Sequence[Mapping[int, Sharding]] = ({}, {}),
) -> Job:
    """What is asked of the search.

    Args:
        source: The lowered function.
        request: What is asked of the plan.
        pins: Besides those of the request, of arguments and of results of ``main``.
    """
    spreading = request.spreading()
    return Job(
        name=source.name,
        read=lambda on_host: _module_of(source, request, on_host, pins),
        num_devices=source.machine.mesh.size,
        cluster=source.cluster,
        options=request.options(),
        spreading=None if spreading is None else _on_main(source, spreading),
        recomputing=request.recomputing(),
        mode=source.mode,
        has_limit=request.memory_limit is not None,
        program=(
            *(source.program.bytecode, source.has_mesh, source.machine.mesh),
            *(source.committed, source.result_pins, source.batch_cuts),
            replace(request, memory_limit=None, time_limit=None),
            *(tuple(sorted(pinned.items())) for pinned in pins),
        ),
    )


def _with_host(
    source: Source, job: Job, plan_once: Callable[[Job, Sequence[int]], Planned]
) -> Planned:
    program = source.program
    return plan_with_host(
        job,
        plan_once,
        lambda: candidates(job.read(()), source.machine.mesh),
        lambda number: source.argument_names[program.kept[number - program.constant_count]],
    )


def _propagated(source: Source, request: Request, job: Job, on_host: Sequence[int] = ()) -> Planned:
    """Plan from marks, pins or the batch, with these arguments of ``main`` on the host."""
    module = job.read(on_host)
    seconds: dict[str, float] = {}
    propagation = ShardingPropagation(
        enable_alltoall=request.enable_alltoall,
        needs_pins=source.mode != "data_parallel",  # there the mode pins whatever there is
    )
    steps = (ImportStrategies(), propagation)
    run_passes(module, steps, timing=lambda name, took: seconds.update({name: took}))
    if job.spreading is not None:
        if source.mode == "data_parallel":
            unpin(module, *_pinned_by_user(source, request, module))
        run_passes(module, [job.spreading], timing=lambda name, took: seconds.update({name: took}))
    summary = None
    if source.cluster is not None:
        summary = estimate_planned(module, source.cluster, job.options, seconds)
    summary = job.recomputed(module, summary)
    if summary is not None and job.has_limit:
        job.check_fits(summary)
    return job.reduced_once(Planned(module, summary))


def _pinned_by_user(
    source: Source, request: Request, module: mlir.Module
) -> tuple[set[int], set[int]]:
    """Arguments and results of ``main`` whose pins are no matter of the mode.

    Where the user pins a result, the argument that it replaces keeps the pin of the mode: without
    one both would be one value.
    """
    arguments, results = Pins(source).read(request.in_shardings, request.out_shardings)
    replaces = {**fed_back_arguments(source, module), **tied_arguments(module)}
    replaced = {replaces[result] for result in results if result in replaces}
    return {*arguments, *replaced}, set(results)


def _on_main(source: Source, spreading: OptimizerParallel) -> OptimizerParallel:
    """The arguments that are named, by their numbers in ``main``, which lacks unused ones.

    Raises:
        PlanError: There is no such argument.
    """
    place = places_of(source)

    def of(said: Sequence[str | int]) -> tuple[str, ...]:
        called = numbers_called(source.argument_names, map(str, said), spreading.name)
        return tuple(str(place[number]) for number in called if number in place)

    return replace(spreading, parameters=of(spreading.parameters), states=of(spreading.states))


def _module_of(
    source: Source,
    request: Request,
    on_host: Sequence[int] = (),
    pins: Sequence[Mapping[int, Sharding]] = ({}, {}),
) -> mlir.Module:
    is_kept = request.policy == "keep"
    bytecode = source.program.bytecode if is_kept else source.without_checkpoints
    module = parse_bytes(bytecode, new_context(), source.name)
    if request.micro_batch_count > 1:
        in_parts = into_micro_batches(source, request, module)
        stages = None
        if request.stages is not None:
            stages = request.stages, cast(Cluster, source.cluster)
        bytecode = micro_batched(in_parts, stages, request.trip_count, bytecode, source.name)
        module = parse_bytes(bytecode, new_context(), source.name)
    if request.constraints == "ignore":
        drop_constraints(module)
    if source.mode != "auto" and source.cluster is not None:  # the search does it itself
        with module.context:
            bound_gradients(module, source.cluster, operations_of(module.operation))
    write_request(source, module, request)
    write_batch_cuts(source, module, places_of(source))
    say_trips(module, request.trip_count)
    write_pins(module, *pins)
    offload = HostOffload(tuple(map(str, on_host)), marks=request.host_offload != "none")
    run_passes(module, [offload])
    return module


def read_planned(source: Source, planned: Planned, request: Request) -> Plan:
    """The plan that a module carries; how it splits the batch is written there, too."""
    untie_unequal(planned.module)
    plan = _read(source, planned.module, planned.summary, request)
    if planned.searched is None:
        return plan
    return replace(plan, searched=Searched.newest(planned.searched))


def free_batch(source: Source, request: Request) -> list[int]:
    """Those that hold the batch and are not pinned."""
    pinned, _ = Pins(source).read(request.in_shardings, request.out_shardings)
    places = places_of(source)
    held = batch_of_source(source, request.batch_argnums)
    return [number for number in held if places[number] not in pinned]


def _batch_of(
    source: Source, module: mlir.Module, arguments: Sequence[PlannedValue], request: Request
) -> BatchSplit | None:
    used, place = arrays_of_batch(source, module, request.batch_argnums), places_of(source)
    if not used:
        return None
    cuts = [arguments[n].sharding.num_shards(0) for n in used]
    steps = accumulation_steps(module, [place[number] for number in used])
    found = batch_split([arguments[n].shape[0] for n in used], cuts, steps)
    if found is None or request.micro_batch_count == 1:
        return found
    lines = tuple(request.per_micro_batch)
    return replace(found, micro_batches=request.micro_batch_count, per_micro_batch=lines)


def _read(
    source: Source,
    module: mlir.Module,
    summary: PlanSummary | None,
    request: Request,
) -> Plan:
    mesh = Mesh.parse(mesh_text(module))
    main, boundary = main_function(module), read_boundary(module)
    program, stage, place = source.program, cast(Any, source.program.stage), places_of(source)
    types = _tree.tree_leaves(program.argument_types)
    out_types = _tree.tree_leaves(program.result_types)
    kept = dict(zip(program.kept, boundary.arguments[program.constant_count :], strict=True))
    names = result_names(stage.out_tree)

    host_arguments, host_results = on_host(main, "arg_attrs"), on_host(main, "res_attrs")

    def value(name: str, type_: Any, found: Any, is_used: bool, is_on_host: bool) -> PlannedValue:
        rank = len(type_.shape)
        whole = Sharding.fully_replicated(mesh, rank)
        sharding = whole if found is None else logical_sharding(found.sharding, rank, name)
        dtype = str(type_.dtype)
        return PlannedValue(name, tuple(type_.shape), dtype, sharding, is_used, is_on_host)

    arguments = tuple(
        value(name, type_, kept.get(number), number in kept, place.get(number) in host_arguments)
        for number, (name, type_) in enumerate(zip(source.argument_names, types, strict=True))
    )
    batch = _batch_of(source, module, arguments, request)
    if summary is not None and batch is not None:
        summary = replace(summary, batch=batch)
        with module.context:
            module.operation.attributes[PLAN] = mlir.StringAttr.get(summary.to_json())
    return Plan(
        name=source.name,
        mesh=mesh,
        mode=source.mode,
        arguments=arguments,
        results=tuple(
            value(name, type_, found, True, number in host_results)
            for number, (name, type_, found) in enumerate(
                zip(names, out_types, boundary.results, strict=True)
            )
        ),
        bytecode=print_module(module, "bytecode"),
        in_tree=stage.in_tree,
        out_tree=stage.out_tree,
        machine=source.machine.with_mesh(mesh),
        summary=summary,
        batch=batch,
        compiler_options=read_compiler_options(request.compiler_options),
        made_for=LoweredProgram.of(source),
        pipeline=_pipeline_of(source, module, request, mesh),
    )


def _pipeline_of(
    source: Source, module: mlir.Module, request: Request, mesh: Mesh
) -> PlannedPipeline | None:
    if request.stages is None:
        return None
    places, infos = places_of(source), cast(Any, source.program.stage).args_info
    leaves = _tree.tree_leaves(infos)
    staging = Staging(
        request.stages,
        whole_cluster(request),
        tuple(places.get(number) for number in range(len(leaves))),
        tuple(leaf.donated for leaf in leaves),
        ProgramParts.of_whole(len(leaves), len(_tree.tree_leaves(source.program.stage.out_info))),
        request.overlap,
        read_compiler_options(request.compiler_options),
    )
    return planned_pipeline(module, staging, source.machine.with_mesh(mesh))
