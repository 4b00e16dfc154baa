"""``autoshard.jit``: ``jax.jit`` for a whole mesh, with the splits planned."""

from __future__ import annotations

import functools
import inspect
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Generic, ParamSpec, TypeVar, Unpack, cast, overload

import jax

from autoshard.errors import CheckError, CompileError, PlanError, PlanMismatchWarning
from autoshard.frontend.arguments import Arguments, StaticArguments, type_key
from autoshard.frontend.donation import is_placed, own_arrays, own_memory
from autoshard.frontend.inside import (
    call_inside,
    keeps_apart,
    planned_call,
    unplanned_because,
    warn_unplanned,
)
from autoshard.frontend.kept_plan import (
    KeptPlan,
    PlanLike,
    Update,
    lower_for_plan,
    plan_for,
    updated,
)
from autoshard.frontend.lower import Source, lower_source
from autoshard.frontend.plan import Plan
from autoshard.frontend.planning import plan_source
from autoshard.frontend.request import PlanOptions, Request
from autoshard.frontend.shard import padding_allowed
from autoshard.ir import print_module
from autoshard.ir.custom_partitioning import CallbackFailure, show_mesh
from autoshard.ir.host_memory import PINNED_HOST
from autoshard.ir.lowering import (
    ClosesOverTracedError,
    InvalidValueError,
    Tracing,
    accept_sub_byte_arguments,
    marks_are_lowered,
    raise_where_invalid,
    replace_module,
    trace_settings,
    tracing,
    uses_shardy,
)
from autoshard.ir.planned_call import PlannedCall
from autoshard.planned.collective import Collective, CollectiveKind
from autoshard.sharding import AxisRef
from autoshard.verify.compiled import differences_from_readings
from autoshard.verify.hlo_collectives import hlo_collectives
from autoshard.verify.matching import collectives_of_summary

P = ParamSpec("P")
R = TypeVar("R")

_tree: Any = jax.tree_util


class JitOptions(PlanOptions, total=False):
    """What ``autoshard.jit`` takes besides the function; see there."""

    static_argnums: int | Sequence[int] | None
    static_argnames: str | Sequence[str] | None
    donate_argnums: int | Sequence[int] | None
    donate_argnames: str | Sequence[str] | None
    keep_unused: bool
    check: bool
    refine: int
    plan: PlanLike | None
    update: Update | None


@overload
def jit(fn: Callable[P, R], **options: Unpack[JitOptions]) -> Jitted[P, R]: ...


@overload
def jit(
    fn: None = None, **options: Unpack[JitOptions]
) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...


def jit(fn: Callable[P, R] | None = None, **options: Unpack[JitOptions]) -> Any:
    """``fn``, planned and compiled for all devices of a cluster or mesh when it is first called.

    Used like ``jax.jit(fn)``: pytrees, static and donated arguments, arguments by name, closures,
    PRNG keys, callbacks without order. Arguments are placed where the plan wants them, wherever
    they are. Calls with the same types and static arguments share one plan and one program.
    ``jax.jit(fn)`` of the same function stays what it is.

    Called inside another ``jax.jit``, a loop or ``jax.export`` it is planned by itself and its plan
    is written into that program; inside another ``autoshard.jit`` it is just ``fn``, with its
    marks, and the outer program is what is planned. Where it cannot be planned, as where ``grad``
    or ``vmap`` comes from outside, it runs unplanned, with a warning: transform first, then
    ``autoshard.jit`` the result.

    Args:
        fn: A function of arrays. Without it, a decorator comes back.
        options: ``mesh``, ``cluster``, ``compiler``, ``mode``, ``in_shardings``,
            ``out_shardings``, ``mem_coeff``, ``memory_limit``, ``overlap``, ``cost_model``,
            ``batch_argnums``, ``enable_alltoall``, ``indivisible``, ``optimizer_parallel``,
            ``host_offload``, ``recompute``, ``policy``, ``compiler_options``, ``trip_count``,
            ``time_limit``, ``micro_batches`` and ``per_micro_batch`` as for ``autoshard.plan``; to
            run there must be enough devices, of the cluster's kind. ``static_argnums``,
            ``static_argnames``, ``donate_argnums``, ``donate_argnames`` and ``keep_unused`` as in
            ``jax.jit``. ``check=True``: before the first step of each program, ``plan.check()``.
            ``refine=4``: the best of so many plans as the compiler schedules them,
            ``plan.refine(4)``. ``plan``: a plan that was made before, or the path of its file, is
            run in place of a new one; options that would make another one are refused.
            ``update="if-better"``: a new plan is made and takes its place, and that of its file,
            where it is faster by the cost model, where the program is another one, or where there
            is no file yet.

    Raises:
        AutoshardError: When called: as for ``autoshard.plan``, or there are too few devices.
        PlanError: When called with ``plan``: it is for another program; the message says what
            changed.
        CheckError: When called with ``check=True``: the plan computes something wrong, which the
            message names with its line, or cannot be checked.

    Example:
        ``step = autoshard.jit(train_step, cluster="v5p:4x4x4", donate_argnums=0)``
    """
    unknown = options.keys() - JitOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"autoshard.jit has no option {', '.join(sorted(unknown))}")
    given = cast(dict[str, Any], options)
    asked = {name: given[name] for name in given.keys() & PlanOptions.__annotations__.keys()}
    kept = _kept_plan(options, sorted(asked))
    settings = _Settings(
        Request(**asked),
        options.get("keep_unused", False),
        options.get("check", False),
        options.get("refine", 0),
        kept,
    )

    def wrap(fn: Callable[P, R]) -> Jitted[P, R]:
        static = StaticArguments.of(
            fn, options.get("static_argnums"), options.get("static_argnames")
        )
        donated = options.get("donate_argnums"), options.get("donate_argnames")
        return Jitted(fn, static, *donated, settings)

    return wrap if fn is None else wrap(fn)


def _kept_plan(options: JitOptions, asked: list[str]) -> KeptPlan | None:
    plan, update = options.get("plan"), options.get("update")
    if plan is None:
        if update is not None:
            raise PlanError(f"update={update!r} says what becomes of plan=, which is not given.")
        return None
    kept = KeptPlan(plan, update)
    kept.check_options([*asked, *(["refine"] if options.get("refine") else [])])
    return kept


def _signature() -> inspect.Signature:
    """Signature of ``jit``, its options one by one."""
    defaults = {field.name: field.default for field in fields(Request)} | {
        "keep_unused": False,
        "check": False,
        "refine": 0,
    }
    function, *_ = inspect.signature(jit).parameters.values()
    named = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(name),
            annotation=annotation.__forward_arg__,
        )
        for name, annotation in JitOptions.__annotations__.items()
    ]
    return inspect.Signature([function, *named])


cast(Any, jit).__signature__ = _signature()


@dataclass(frozen=True)
class _Settings:
    request: Request
    keep_unused: bool
    check: bool
    refine: int
    """Plans that are compiled to choose one; 0: the search's own is taken."""
    kept: KeptPlan | None


class Jitted(Generic[P, R]):
    """What ``autoshard.jit`` returns."""

    def __init__(
        self,
        fn: Callable[P, R],
        static: StaticArguments,
        donate_argnums: Any,
        donate_argnames: Any,
        settings: _Settings,
    ) -> None:
        """See ``autoshard.jit``."""
        self._fn = fn
        self._static = static
        self._settings = settings
        self._jit_options: dict[str, Any] = {
            "static_argnums": static.numbers,
            "static_argnames": static.names,
            "donate_argnums": donate_argnums,
            "donate_argnames": donate_argnames,
            "keep_unused": settings.keep_unused,
        }
        self._programs: dict[Any, _Program] = {}
        self._lock = threading.RLock()
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Place the arguments and run; the first call with these types plans and compiles."""
        if cast(Any, jax.config).jax_disable_jit:
            return cast(R, self._plain(*args, **kwargs))
        around = tracing()
        if around is not Tracing.NONE:
            return cast(R, self._inside(around, args, kwargs))
        arguments = Arguments.of(self._static, args, kwargs)
        program = self._program(arguments)
        try:
            return cast(R, program.run(arguments))
        except InvalidValueError as error:
            raise_where_invalid(error, self._fn, args, kwargs)

    def _inside(self, around: Tracing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Within another trace; where autoshard itself traces, the program around it is planned."""
        if marks_are_lowered():
            return self._plain(*args, **kwargs)
        reason = unplanned_because(around)
        if reason is None:
            arguments = Arguments.of(self._static, args, kwargs)
            try:
                program = self._program(arguments)
            except ClosesOverTracedError:
                reason = "uses a value of the function around it, which is no argument"
            else:
                reason = program.keeps_apart
                if reason is None:
                    return call_inside(program.call(self._plain), program.source, arguments)
        warn_unplanned(_name(self._fn), reason)
        return self._plain(*args, **kwargs)

    def plan(self, *args: P.args, **kwargs: P.kwargs) -> Plan:
        """The plan for arguments of these types; ``jax.ShapeDtypeStruct``s will do."""
        return self._program(Arguments.of(self._static, args, kwargs)).plan

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Lowered:
        """As of ``jax.jit``: the planned module, ready for ``compile()``.

        The compiled program takes arguments that are already placed as planned, or that are on
        no particular device.
        """
        return self._program(Arguments.of(self._static, args, kwargs)).lowered

    def eval_shape(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Shapes and dtypes of the result."""
        return self._plain.eval_shape(*args, **kwargs)

    def trace(self, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Traced:
        """As of ``jax.jit``: a program with one op, which is planned when it is lowered."""
        return self._as_one_op.trace(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forget all plans and programs."""
        with self._lock:
            self._programs.clear()
            self._as_one_op.clear_cache()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A jitted method is bound like a function."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        """``<autoshard.jit of train_step>``."""
        return f"<autoshard.jit of {_name(self._fn)}>"

    @cached_property
    def _plain(self) -> Any:
        """For use inside other traces, and for what needs no plan."""

        @functools.wraps(self._fn, updated=())
        def plain(*args: Any, **kwargs: Any) -> Any:
            with padding_allowed(self._settings.request.indivisible == "pad"):
                return self._fn(*args, **kwargs)

        return jax.jit(plain, **self._jit_options)

    @cached_property
    def _as_one_op(self) -> Any:
        """For ``trace``, and ``jax.export`` with it: a program around this one."""

        @functools.wraps(self._fn, updated=())
        def planned(*args: Any, **kwargs: Any) -> Any:
            return self(*args, **kwargs)

        return jax.jit(planned, **self._jit_options)

    def _program(self, arguments: Arguments) -> _Program:
        try:
            types_of_leaves = tuple(map(type_key, arguments.leaves))
        except TypeError:
            self._plain.eval_shape(*arguments.args, **arguments.kwargs)
            raise
        key = (arguments.tree, types_of_leaves, arguments.statics, trace_settings())
        program = self._programs.get(key)
        if program is not None:
            return program
        with self._lock:
            if key not in self._programs:
                self._programs[key] = self._new_program(arguments)
            return self._programs[key]

    def _new_program(self, arguments: Arguments) -> _Program:
        settings = self._settings
        kept, request = settings.kept, settings.request
        if kept is not None and kept.update is None:
            plan = cast(Plan, kept.read())
            source = lower_for_plan(self._fn, arguments, plan, self._jit_options)
            found = plan_for(plan, source)
            return _Program(source, arguments, settings, uses_shardy(), lambda: found)
        if kept is not None:
            request = kept.request(request)
        source = lower_source(self._fn, arguments, request, self._jit_options)

        def planned() -> Plan:
            plan = plan_source(source, request)
            return plan.refine(settings.refine) if settings.refine else plan

        def up_to_date() -> Plan:
            return planned() if kept is None else updated(kept, source, planned)

        return _Program(source, arguments, settings, uses_shardy(), up_to_date)


class _Program:
    """One function for one set of argument types: planned, compiled when it is first run."""

    def __init__(
        self,
        source: Source,
        arguments: Arguments,
        settings: _Settings,
        shardy: bool,
        planned: Callable[[], Plan],
    ) -> None:
        self.source = source
        self.arguments = arguments.as_types()
        self.settings = settings
        self.shardy = shardy
        self.lock = threading.Lock()
        self.failures: Sequence[CallbackFailure] = ()
        """Failures of callbacks of ``custom_partitioning``, while it was compiled."""
        self.planned = planned
        self.planning = threading.Lock()
        self.found: Plan | None = None
        self.op: PlannedCall | None = None

    @property
    def plan(self) -> Plan:
        """Made when it is first asked for: shapes alone need none."""
        if self.found is None:
            with self.planning:
                if self.found is None:
                    self.found = self.planned()
        return self.found

    @cached_property
    def keeps_apart(self) -> str | None:
        """Why it cannot be written into another program; None if it can."""
        return keeps_apart(self.source)

    def call(self, unplanned: Callable[..., Any]) -> PlannedCall:
        """The op that calls it in another program, one for all such calls.

        Args:
            unplanned: The function, given arguments and arguments by name.
        """
        if self.op is None:

            def with_leaves(leaves: Sequence[Any]) -> Any:
                args, kwargs = self.arguments.with_leaves(leaves)
                return unplanned(*args, **kwargs)

            self.op = planned_call(self.source, lambda: self.plan, with_leaves)
        return self.op

    @cached_property
    def lowered(self) -> jax.stages.Lowered:
        """The planned module in the form that the active partitioner keeps."""
        self.source.machine.needs_devices()
        check_host_memory(self.plan)
        form = "autoshard-export-shardy" if self.shardy else "autoshard-export-gspmd"
        module = self.plan.exported(form)
        self.failures = show_mesh(module, self.plan.jax_mesh)
        return replace_module(
            self.source.program, print_module(module, "bytecode"), *self.plan.named_shardings
        )

    @cached_property
    def compiled(self) -> jax.stages.Compiled:
        lowered = self.lowered
        if self.settings.check:
            check_computes_right(self.plan, self.shardy)
        try:
            compiled = lowered.compile(dict(self.plan.compiler_options))
        except Exception:
            if self.failures:
                raise _callback_failed(self.plan, self.failures[0]) from self.failures[0].error
            raise
        accept_sub_byte_arguments(compiled)
        check_compiled(self.plan, compiled)
        return compiled

    @cached_property
    def placements(self) -> tuple[tuple[int, Any, bool], ...]:
        """For each argument that is used: its number, its sharding, whether it is donated."""
        stage: Any = self.source.program.stage
        donated = [info.donated for info in _tree.tree_leaves(stage.args_info)]
        used = [value.is_used for value in self.plan.arguments]
        return tuple(
            (number, sharding, donated[number])
            for number, sharding in enumerate(self.plan.named_shardings[0])
            if used[number]
        )

    @cached_property
    def donates(self) -> bool:
        return any(donated for _, _, donated in self.placements)

    @cached_property
    def may_share_memory(self) -> bool:
        """Has it not been called yet, on devices that cannot be given one buffer twice?"""
        return self.donates and self.plan.jax_mesh.devices.flat[0].platform == "cpu"

    def run(self, arguments: Arguments) -> Any:
        with self.lock:
            compiled = self.compiled
        leaves = own_arrays(arguments.leaves, self.placements, self.donates, self.plan)
        for number, sharding, donated in self.placements:
            leaf = leaves[number]
            if isinstance(leaf, jax.Array) and not is_placed(leaf, sharding):
                leaves[number] = jax.device_put(leaf, sharding, donate=donated)
        if self.may_share_memory:
            self.may_share_memory = False
            leaves = own_memory(leaves, self.placements)
        args, kwargs = _tree.tree_unflatten(arguments.tree, leaves)
        return compiled(*args, **kwargs)


def _callback_failed(plan: Plan, failure: CallbackFailure) -> CompileError:
    said = f"{type(failure.error).__name__}: {failure.error}".rstrip(".")
    return CompileError(
        f"{plan.name}: the {failure.callback} callback of custom_partitioning raised {said}. It was"
        f" given the mesh of the plan, {plan.mesh}, and a NamedSharding for each array: names of"
        " axes are those of this mesh, give mesh= to choose them.",
        failure.location,
        reason="refused",
    )


def check_host_memory(plan: Plan) -> None:
    """Refuse a plan that keeps arrays where the devices here cannot.

    Raises:
        PlanError: The devices' platform has no such memory.
    """
    kept = [value.name for value in (*plan.arguments, *plan.results) if value.is_on_host]
    if not kept:
        return
    device: Any = plan.jax_mesh.devices.flat[0]
    kinds = [memory.kind for memory in device.addressable_memories()]
    if PINNED_HOST not in kinds:
        raise PlanError(
            f"{plan.name}: {kept[0]} is planned to live in the memory of the host, but"
            f" {device.platform} devices have no memory {PINNED_HOST}, only {', '.join(kinds)}."
            " Give host_offload='none'."
        )


def check_computes_right(plan: Plan, shardy: bool) -> None:
    """Refuse a plan with which a small form of the program gives something wrong.

    Raises:
        CheckError: An op is computed wrongly or cannot be split, or nobody can say.
    """
    found = plan.check(form="shardy" if shardy else "gspmd")
    if not found.is_right:
        where = None if found.differs is None else found.differs.location
        raise CheckError(
            f"{plan.name}: {found.message} This is a defect of XLA's partitioner or of the plan:"
            " split the op in another way (autoshard.shard, in_shardings), and report it.",
            where,
        )


def check_compiled(plan: Plan, compiled: jax.stages.Compiled) -> None:
    """Warn about every split and every collective that XLA makes otherwise than planned."""
    found = [*_interface_differences(plan, compiled), *_collective_differences(plan, compiled)]
    for difference in found:
        warnings.warn(PlanMismatchWarning(f"{plan.name}: {difference}"), stacklevel=2)


def _interface_differences(plan: Plan, compiled: jax.stages.Compiled) -> Iterator[str]:
    arguments, results = plan.named_shardings
    made_arguments = plan.in_tree.flatten_up_to(compiled.input_shardings)
    made_results = plan.out_tree.flatten_up_to(compiled.output_shardings)
    for value, planned, made in (
        *zip(plan.arguments, arguments, made_arguments, strict=True),
        *zip(plan.results, results, made_results, strict=True),
    ):
        if value.is_used and not made.is_equivalent_to(planned, len(value.shape)):
            yield (
                f"{value.name} of shape {value.shape} is planned as {value.sharding}, but XLA"
                f" compiled it as {made}. The program is correct, but moves more data than planned."
            )


def _collective_differences(plan: Plan, compiled: jax.stages.Compiled) -> list[str]:
    readings: list[Sequence[Collective]] = [plan.collectives]
    if plan.summary is not None:
        readings.append(collectives_of_summary(plan.summary.collectives, plan.mesh))
    return differences_from_readings(
        readings,
        hlo_collectives(compiled.as_text() or "", plan.mesh),
        plan.mesh,
        on_cpu=plan.jax_mesh.devices.flat[0].platform == "cpu",
        besides=_for_callbacks(plan),
    )


def _for_callbacks(plan: Plan) -> list[Collective]:
    """What it takes, at most, to bring values to the one device that calls back, and results out.

    XLA makes an all-reduce over all devices of each.
    """
    everywhere = tuple(AxisRef(name) for name in plan.mesh.axis_names)
    return [
        Collective(CollectiveKind.ALL_REDUCE, everywhere, plan.mesh.size, float(size), times)
        for size, times in plan.callback_bytes
    ]


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", type(fn).__name__)
