"""``autoshard.jit``: ``jax.jit`` for a whole mesh, with the splits planned."""

from __future__ import annotations

import functools
import inspect
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Generic, ParamSpec, TypeVar, Unpack, cast, overload

import jax

from autoshard.errors import CompileError, PlanError
from autoshard.frontend.arguments import Arguments, StaticArguments, type_key
from autoshard.frontend.checks import (
    CheckLike,
    check_compiled,
    check_computes_right,
    check_host_memory,
    read_check,
)
from autoshard.frontend.device_order import source_of
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
from autoshard.frontend.lower import Source, Traced
from autoshard.frontend.plan import Plan
from autoshard.frontend.planned_pipeline import PlannedPipeline
from autoshard.frontend.planning import plan_source, plan_traced
from autoshard.frontend.processes import check_same_everywhere, say_failed
from autoshard.frontend.references import OfArrays, has_references
from autoshard.frontend.refining import Origin
from autoshard.frontend.request import PlanOptions, Request
from autoshard.frontend.running import Running
from autoshard.frontend.shard import padding_allowed
from autoshard.frontend.staged_running import staged_program
from autoshard.ir import print_module
from autoshard.ir.custom_partitioning import CallbackFailure, show_mesh
from autoshard.ir.dispatch import any_deleted, dispatched
from autoshard.ir.lowering import (
    ClosesOverTracedError,
    InvalidValueError,
    Tracing,
    accept_sub_byte_arguments,
    is_ref,
    marks_are_lowered,
    raise_where_invalid,
    replace_module,
    trace_settings,
    tracing,
    user_line,
    uses_shardy,
)
from autoshard.ir.planned_call import PlannedCall
from autoshard.pipeline.modules import ExportForm
from autoshard.pipeline.options import Pipeline
from autoshard.pipeline.transfers import check_processes
from autoshard.progress import task

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
    check: CheckLike
    refine: int | Mapping[str, Any]
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
    PRNG keys, references (``jax.new_ref``), callbacks without order. Arguments are placed where the
    plan wants them, wherever they are. Calls with the same types and static arguments share one
    plan and one program; where a mesh is given, arguments of the first one that lie on it already
    are pinned as they lie.
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
            ``host_offload``, ``recompute``, ``policy``, ``constraints``, ``compiler_options``,
            ``trip_count``, ``time_limit``, ``micro_batches``, ``per_micro_batch`` and ``pipeline``
            as for ``autoshard.plan``; to run there must be enough devices, of the cluster's kind.
            ``static_argnums``, ``static_argnames``,
            ``donate_argnums``, ``donate_argnames`` and ``keep_unused`` as in ``jax.jit``.
            ``check``: ``"warn"``, what
            XLA compiled is compared with the plan, and a ``PlanMismatchWarning`` says what differs;
            ``"error"``: it is a ``CheckError``; ``"off"``: it is not compared; True: as
            ``"warn"``, and before the first step of each program ``plan.check()``.
            ``refine=4``: the best of so many plans as the compiler schedules them,
            ``plan.refine(4)``; ``refine={"compiles": 4, "seconds": 900}``: all its arguments by
            name. ``plan``: a plan that was made before,
            or the path of its file, is run in place of a new one; options that would make another
            one are refused. ``update="if-better"``: a new plan is made and takes its place, and
            that of its file, where it is faster by the cost model, where the program is another
            one, or where there is no file yet.

    Raises:
        AutoshardError: When called: as for ``autoshard.plan``, or there are too few devices.
        PlanError: When called with ``plan``: it is for another program; the message says what
            changed.
        CheckError: When called with ``check=True``: the plan computes something wrong, which the
            message names with its line, or cannot be checked. With ``check="error"``: XLA splits or
            sends otherwise than planned.

    Example:
        ``step = autoshard.jit(train_step, cluster="v5p:4x4x4", donate_argnums=0)``
    """
    unknown = options.keys() - JitOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"autoshard.jit has no option {', '.join(sorted(unknown))}")
    given = cast(dict[str, Any], options)
    asked = {name: given[name] for name in given.keys() & PlanOptions.__annotations__.keys()}
    kept = _kept_plan(options, sorted(asked))
    if options.get("pipeline") is not None:
        _check_for_pipeline(options)
    settings = _Settings(
        Request(**asked),
        options.get("keep_unused", False),
        read_check(options.get("check", "warn")),
        _refine_arguments(options.get("refine", 0)),
        kept,
    )

    def wrap(fn: Callable[P, R]) -> Jitted[P, R]:
        static = StaticArguments.of(
            fn, options.get("static_argnums"), options.get("static_argnames")
        )
        donated = options.get("donate_argnums"), options.get("donate_argnames")
        return Jitted(fn, static, *donated, settings)

    return wrap if fn is None else wrap(fn)


def _refine_arguments(given: int | Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments of ``Plan.refine``; none where it is not asked for.

    Raises:
        PlanError: It has no such argument.
    """
    if not isinstance(given, Mapping):
        return {"compiles": given} if given else {}
    known = list(inspect.signature(Plan.refine).parameters)[1:]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise PlanError(
            f"autoshard.jit: refine has no argument {', '.join(unknown)}. There are"
            f" {', '.join(known)}, as of plan.refine."
        )
    return given


def _kept_plan(options: JitOptions, asked: list[str]) -> KeptPlan | None:
    plan, update = options.get("plan"), options.get("update")
    if plan is None:
        if update is not None:
            raise PlanError(f"update={update!r} says what becomes of plan=, which is not given.")
        return None
    kept = KeptPlan(plan, update)
    kept.check_options([*asked, *(["refine"] if options.get("refine") else [])])
    return kept


def _check_for_pipeline(options: JitOptions) -> None:
    """Refuse what is there for one program only."""
    pipeline = options.get("pipeline")
    is_lockstep = isinstance(pipeline, Pipeline) and pipeline.execution == "lockstep"
    for name in ("check", "plan") if is_lockstep else ("check", "refine", "plan"):
        value = options.get(name)
        if value and value not in ("off", "warn"):
            raise _is_for_one_program(name, value)


def _is_for_one_program(name: str, value: Any) -> PlanError:
    return PlanError(
        f"autoshard.jit: {name}={value!r} is for one program, and a pipeline is several. Leave"
        f" {name} out."
    )


def _signature() -> inspect.Signature:
    """Signature of ``jit``, its options one by one."""
    defaults = {field.name: field.default for field in fields(Request)} | {
        "keep_unused": False,
        "check": "warn",
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
    check: CheckLike
    refine: Mapping[str, Any]
    """Arguments of ``Plan.refine``; nothing: it is not called."""
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
        self._referenced: dict[Any, Jitted[..., Any]] = {}
        """For calls with references: what is planned in place of it."""
        self._must_look = False
        """Would a deleted array end the process?"""
        self._donates = False
        self._lock = threading.RLock()
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Place the arguments and run; the first call with these types plans and compiles."""
        try:
            if self._must_look and self._is_odd(args, kwargs):
                return cast(R, self._call(*args, **kwargs)[0])
            return cast(R, self._dispatched(*args, **kwargs))
        except InvalidValueError as error:
            raise_where_invalid(error, self._fn, args, kwargs)
        except (RuntimeError, ValueError):
            self._check_owned(args, kwargs)
            raise

    def _call(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """A call that C++ does not know: the result, and how it makes such calls."""
        around = tracing()
        if around is not Tracing.NONE:
            return self._inside(around, args, kwargs), None
        arguments = Arguments.of(self._static, args, kwargs)
        if has_references(arguments.leaves):
            jitted, call = self._of_arrays(arguments)
            return call.result(jitted(*call.arguments.args, **call.arguments.kwargs)), None
        running = self._called(arguments).running
        self._must_look |= running.ends_on_deleted_arrays
        self._donates |= running.donates
        return running(arguments)

    def _is_odd(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Is an array deleted, or, where some are donated, one passed twice?"""
        leaves = _tree.tree_leaves((args, kwargs) if kwargs else args)
        return any_deleted(leaves) or (self._donates and len(set(map(id, leaves))) < len(leaves))

    def _check_owned(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Name the argument that C++ has refused, if it has."""
        arguments = Arguments.of(self._static, args, kwargs)
        program = self._programs.get(self._key(arguments))
        if tracing() is Tracing.NONE and program is not None and "running" in vars(program):
            program.running.owned(arguments.leaves)

    def _inside(self, around: Tracing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Within another trace; where autoshard itself traces, the program around it is planned."""
        if marks_are_lowered():
            return self._plain(*args, **kwargs)
        arguments = Arguments.of(self._static, args, kwargs)
        reason = unplanned_because(around)
        if reason is None and has_references(arguments.leaves):
            reason = "is given a jax.new_ref of the function around it"
        if reason is None:
            try:
                program = self._program(arguments)
            except ClosesOverTracedError:
                reason = "uses a value of the function around it, which is no argument"
            else:
                reason = program.keeps_apart
                if reason is None:
                    call = program.call(self._plain)
                    return call_inside(call, program.source, lambda: program.plan, arguments)
        warn_unplanned(_name(self._fn), reason)
        return self._plain(*args, **kwargs)

    def plan(self, *args: P.args, **kwargs: P.kwargs) -> Plan:
        """The plan for arguments of these types; ``jax.ShapeDtypeStruct``s will do."""
        return self._program(Arguments.of(self._static, args, kwargs)).plan

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Lowered:
        """As of ``jax.jit``: the planned module, ready for ``compile()``.

        The compiled program takes arguments that are already placed as planned, or that are on
        no particular device. In place of references it takes arrays, and returns these first.
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
            self._referenced.clear()
            self._as_one_op.clear_cache()
            vars(self).pop("_dispatched", None)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A jitted method is bound like a function."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        """``<autoshard.jit of train_step>``."""
        return f"<autoshard.jit of {_name(self._fn)}>"

    @cached_property
    def _dispatched(self) -> Callable[..., Any]:
        """``_call``, made by C++ where it is known how."""
        return dispatched(self._marked(), self._call, self._static.numbers, self._static.names)

    @cached_property
    def _plain(self) -> Any:
        """For use inside other traces, and for what needs no plan."""
        return jax.jit(self._marked(), **self._jit_options)

    def _marked(self) -> Callable[..., Any]:
        """The function that is planned, as a new one."""

        @functools.wraps(self._fn, updated=())
        def plain(*args: Any, **kwargs: Any) -> Any:
            with padding_allowed(self._settings.request.indivisible == "pad"):
                return self._fn(*args, **kwargs)

        return plain

    @cached_property
    def _as_one_op(self) -> Any:
        """For ``trace``, and ``jax.export`` with it: a program around this one."""

        @functools.wraps(self._fn, updated=())
        def planned(*args: Any, **kwargs: Any) -> Any:
            return self(*args, **kwargs)

        return jax.jit(planned, **self._jit_options)

    def _called(self, arguments: Arguments) -> _Program:
        """The program of a call, for which other processes wait."""
        try:
            return self._program(arguments)
        except Exception:
            if self._settings.request.pipeline == "auto":
                say_failed(None)
            raise

    def _program(self, arguments: Arguments) -> _Program:
        if has_references(arguments.leaves):
            jitted, call = self._of_arrays(arguments)
            return jitted._program(call.arguments)
        try:
            key = self._key(arguments)
        except TypeError:
            self._plain.eval_shape(*arguments.args, **arguments.kwargs)
            raise
        program = self._programs.get(key)
        if program is not None:
            return program
        with self._lock:
            if key not in self._programs:
                self._programs[key] = self._new_program(arguments)
            return self._programs[key]

    def _of_arrays(self, arguments: Arguments) -> tuple[Jitted[..., Any], OfArrays]:
        """What plans the function of arrays in place of references, and the call of it."""
        if self._settings.request.out_shardings is not None:
            raise PlanError(
                f"{_name(self._fn)}: out_shardings pins what a function returns, and with a"
                " jax.new_ref its arrays come out as well. Use jax.lax.with_sharding_constraint.",
                user_line(),
            )
        donate = self._jit_options["donate_argnums"], self._jit_options["donate_argnames"]
        call = OfArrays.of(self._fn, arguments, self._static, donate)
        key = (arguments.tree, tuple(map(is_ref, arguments.leaves)))
        with self._lock:
            if key not in self._referenced:
                made = Jitted(call.fn, self._static, *call.donate, self._settings)
                self._referenced[key] = made
            return self._referenced[key], call

    def _key(self, arguments: Arguments) -> Any:
        types_of_leaves = tuple(map(type_key, arguments.leaves))
        return (arguments.tree, types_of_leaves, arguments.statics, trace_settings())

    def _new_program(self, arguments: Arguments) -> _Program:
        settings = self._settings
        kept, request = settings.kept, settings.request
        if kept is not None and kept.update is None:
            plan = cast(Plan, kept.read())
            if plan.pipeline is not None and settings.check not in ("off", "warn"):
                raise _is_for_one_program("check", settings.check)
            source = lower_for_plan(self._fn, arguments, plan, self._jit_options)
            found = plan_for(plan, source)
            is_staged = found.pipeline is not None
            return _Program(source, arguments, settings, uses_shardy(), lambda: found, is_staged)
        if kept is not None:
            request = kept.request(request)
        traced = Traced(self._fn, arguments.as_types(), self._jit_options)
        if request.pipeline == "auto":
            return self._with_chosen_pipeline(traced, arguments)
        source = traced.source(request)

        def planned() -> Plan:
            with task(f"planning {source.name}"):
                plan = plan_source(source, request, traced)
            return plan.refine(**settings.refine) if settings.refine else plan

        def up_to_date() -> Plan:
            return planned() if kept is None else updated(kept, source, planned)

        is_staged = request.pipeline is not None
        return _Program(source, arguments, settings, uses_shardy(), up_to_date, is_staged)

    def _with_chosen_pipeline(self, traced: Traced, arguments: Arguments) -> _Program:
        """Planned now: stages decide what it is lowered for."""
        with task(f"planning {_name(self._fn)}"):
            plan = plan_traced(traced, self._settings.request)
        source = cast(Origin, plan.origin).source
        is_staged = plan.pipeline is not None
        return _Program(source, arguments, self._settings, uses_shardy(), lambda: plan, is_staged)


class _Program:
    """One function for one set of argument types: planned, compiled when it is first run."""

    def __init__(
        self,
        source: Source,
        arguments: Arguments,
        settings: _Settings,
        shardy: bool,
        planned: Callable[[], Plan],
        is_staged: bool,
    ) -> None:
        self.source = source
        self.arguments = arguments.as_types()
        self.settings = settings
        self.shardy = shardy
        self.is_staged = is_staged
        """Is it a pipeline?"""
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
        if self.is_staged:
            return "is a pipeline of several programs"
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

    @property
    def form(self) -> ExportForm:
        """What is compiled, as ``Plan.exported`` takes it."""
        return "autoshard-export-shardy" if self.shardy else "autoshard-export-gspmd"

    @cached_property
    def lowered(self) -> jax.stages.Lowered:
        """The planned module in the form that the active partitioner keeps."""
        pipeline = self.plan.pipeline
        if isinstance(pipeline, PlannedPipeline):
            raise PlanError(
                f"{self.plan.name}: lower() gives one program, and a pipeline is several. Call it,"
                " or lower it without pipeline=."
            )
        mesh = self.plan.jax_mesh if pipeline is None else pipeline.mesh
        self.source.machine.needs_devices()
        check_host_memory(self.plan)
        module = self.plan.exported(self.form)
        self.failures = show_mesh(module, mesh)
        program = source_of(self.plan, self.source).program
        if pipeline is not None:
            program = replace(program, mesh=mesh)
        return replace_module(program, print_module(module, "bytecode"), *self.plan.named_shardings)

    @cached_property
    def compiled(self) -> jax.stages.Compiled:
        lowered = self.lowered
        check = self.settings.check
        if check is True:
            check_computes_right(self.plan, self.shardy)
        try:
            if self.plan.searched is not None:
                self.plan.searched.forget()  # what runs for days keeps no program to ask about
            with task(f"compiling {self.source.name}"):
                compiled = lowered.compile(dict(self.plan.compiler_options))
        except Exception:
            if self.failures:
                raise _callback_failed(self.plan, self.failures[0]) from self.failures[0].error
            raise
        accept_sub_byte_arguments(compiled)
        if check != "off" and not self.is_staged:
            check_compiled(self.plan, compiled, is_error=check == "error")
        return compiled

    @cached_property
    def running(self) -> Running:
        with self.lock:
            stage: Any = self.source.program.stage
            donated = [info.donated for info in _tree.tree_leaves(stage.args_info)]
            try:
                plan = self.plan
                if isinstance(plan.pipeline, PlannedPipeline):
                    check_processes(plan.name, plan.pipeline.meshes)
            except Exception:
                say_failed(None if self.is_staged else self.source.machine)
                raise
            check_same_everywhere(plan, self.form)
            if not isinstance(plan.pipeline, PlannedPipeline):
                return Running(plan, donated, self.compiled)
            check_host_memory(plan)
            return Running(plan, donated, staged_program(self.source, plan, self.form))


def _callback_failed(plan: Plan, failure: CallbackFailure) -> CompileError:
    said = f"{type(failure.error).__name__}: {failure.error}".rstrip(".")
    return CompileError(
        f"{plan.name}: the {failure.callback} callback of custom_partitioning raised {said}. It was"
        f" given the mesh of the plan, {plan.mesh}, and a NamedSharding for each array: names of"
        " axes are those of this mesh, give mesh= to choose them.",
        failure.location,
        reason="refused",
    )


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", type(fn).__name__)
