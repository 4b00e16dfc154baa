"""``autoshard.plan``: decide how a program is split, without running it."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp

from autoshard.errors import AutoshardError, ParseError, PlanError
from autoshard.exporter.planned import PlannedModule, read_plan
from autoshard.exporter.planned_ops import (
    PlannedOp,
    Redistribution,
    callback_bytes,
    planned_ops,
    redistributions,
)
from autoshard.frontend.arguments import Arguments, StaticArguments
from autoshard.frontend.batch import batch_pins
from autoshard.frontend.lower import Source, lower_source
from autoshard.frontend.mesh import Machine, MeshLike, machine_of
from autoshard.frontend.request import ClusterLike, CostModel, Mode, Request, is_pin
from autoshard.ir import mlir, new_context, parse_bytes, print_module
from autoshard.ir.boundary import (
    feed_back,
    follow_arguments,
    keep_keys_whole,
    mesh_text,
    pin,
    rewrite_marks,
    set_mesh,
    tie_donated,
    untie_unequal,
)
from autoshard.ir.mark import TARGET
from autoshard.passes.pipeline import run_passes
from autoshard.passes.recursive_programming import (
    Coefficient,
    PlannedProgram,
    estimate_planned,
    plan_automatically,
    search_module,
)
from autoshard.report.plan_summary import PlanSummary
from autoshard.report.plan_table import plan_table, render
from autoshard.report.symbolic import SymbolicCosts
from autoshard.sharding import (
    Mesh,
    Sharding,
    from_named_sharding,
    from_partition_spec,
    parse_sharding,
    to_named_sharding,
    to_partition_spec,
    to_v2,
)
from autoshard.sharding.sdy_text import to_sdy
from autoshard.verify.collective import Collective
from autoshard.verify.shardy_collectives import shardy_collectives

_tree: Any = jax.tree_util

_PROPAGATION = ("autoshard-import-strategies", "autoshard-sharding-propagation")


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

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of one device's part."""
        return self.sharding.local_shape(self.shape)


@dataclass(frozen=True)
class Plan:
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
    """Structure of ``(positional, by name)`` without static arguments; None if it was loaded and
    holds types of the user's own."""
    out_tree: Any = field(repr=False)
    machine: Machine = field(repr=False, compare=False)
    summary: PlanSummary | None = field(default=None, repr=False, compare=False)
    """What the plan costs; None where it was planned without a cluster."""

    FORMAT: ClassVar[int] = 1
    """Version of the JSON that ``save`` writes."""

    @property
    def cluster(self) -> str | None:
        """What the plan is for, ``v5e:4x4``; None where it was planned without a cluster."""
        return None if self.summary is None else self.summary.cluster

    @property
    def step_seconds(self) -> float:
        """Estimate of one step: compute, and what of communication does not hide behind it.

        This and the other numbers raise PlanError where the plan was made without a cluster.
        """
        return self._estimate.step_seconds

    @property
    def compute_seconds(self) -> float:
        """Of one step on one device."""
        return self._estimate.compute_seconds

    @property
    def communication_seconds(self) -> float:
        """Of all collectives of one step, hidden or not."""
        return self._estimate.communication_seconds

    @property
    def peak_bytes(self) -> float:
        """On one device at the worst moment of a step."""
        return self._estimate.peak_bytes_per_device

    @property
    def lower_bound_seconds(self) -> float:
        """No plan of the networks that were solved is faster than this."""
        return self._estimate.lower_bound_seconds

    @property
    def gap(self) -> float | None:
        """``step_seconds / lower_bound_seconds - 1``; None for a bound of nothing."""
        return self._estimate.gap

    @property
    def planning_seconds(self) -> Mapping[str, float]:
        """What planning took, by phase; without JAX's tracing and lowering."""
        return self._estimate.planning_seconds

    @property
    def symbolic_costs(self) -> SymbolicCosts | None:
        """What the symbolic cost weighed; None in other cost models."""
        return None if self.summary is None else self.summary.symbolic_costs

    @property
    def _estimate(self) -> PlanSummary:
        if self.summary is None:
            raise PlanError(
                f"plan of {self.name}: mode {self.mode!r} planned it without a cluster, so that"
                ' nothing is known of seconds and memory. Plan it with cluster="v5e:4x4" or the'
                " like."
            )
        return self.summary

    @cached_property
    def jax_mesh(self) -> Any:
        """The mesh as JAX's: over devices where there are enough, else abstract."""
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
        return self._as_tree(self.in_tree, self.arguments, "arguments")

    @cached_property
    def out_shardings(self) -> Any:
        """A ``NamedSharding`` for every array of the result, as its pytree."""
        return self._as_tree(self.out_tree, self.results, "results")

    @cached_property
    def named_shardings(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """``NamedSharding``s of arguments and of results, flat."""
        arguments = tuple(self._named(value) for value in self.arguments)
        return arguments, tuple(self._named(value) for value in self.results)

    def _named(self, value: PlannedValue) -> Any:
        if isinstance(self.jax_mesh, jax.sharding.AbstractMesh):
            spec = cast(Any, to_partition_spec(value.sharding))
            return jax.sharding.NamedSharding(cast(Any, self.jax_mesh), spec)
        return to_named_sharding(value.sharding, self.jax_mesh)

    def _as_tree(self, tree: Any, values: Sequence[PlannedValue], side: str) -> Any:
        if tree is None:
            raise PlanError(
                f"plan of {self.name}: the {side} hold types of your own, whose structure a plan"
                f" file does not keep. Use plan.{side}, which is flat and has names, or plan again."
            )
        return _tree.tree_unflatten(tree, [self._named(value) for value in values])

    @cached_property
    def _planned(self) -> PlannedModule:
        return read_plan(parse_bytes(self.bytecode, new_context(), self.name))

    @cached_property
    def ops(self) -> tuple[PlannedOp, ...]:
        """Every op with its strategy and sharding, in program order, callees and loops too."""
        return planned_ops(self._planned)

    @cached_property
    def redistributions(self) -> tuple[Redistribution, ...]:
        """Every operand that an op needs in another sharding than its producer leaves it."""
        return redistributions(self._planned)

    @cached_property
    def callback_bytes(self) -> tuple[tuple[int, int], ...]:
        """Bytes of each value that a call back into Python reads or gives, and how often."""
        return callback_bytes(self._planned)

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """What the plan communicates, as Shardy spells it out, with lines and bytes.

        Compilers combine and reorder collectives, and some have no reduce-scatter: compare bytes,
        not numbers of ops.
        """
        module = self.exported("autoshard-export-shardy")
        return tuple(shardy_collectives(module))

    def exported(self, form: str) -> mlir.Module:
        """A module of its own in the form that a partitioner keeps.

        Args:
            form: ``"autoshard-export-shardy"`` or ``"autoshard-export-gspmd"``.
        """
        module = parse_bytes(self.bytecode, new_context(), self.name)
        run_passes(module, [form])
        return module

    def to_mlir(self, debug_info: bool = True) -> str:
        """The planned module as text, with the plan's attributes; ``autoshard-opt`` reads it."""
        module = parse_bytes(self.bytecode, new_context(), self.name)
        return print_module(module, debug_info=debug_info).decode()

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, the module included."""
        Path(path).write_text(json.dumps(self._to_json(), indent=1) + "\n")

    def _to_json(self) -> dict[str, Any]:
        return {
            "autoshard_plan": self.FORMAT,
            "name": self.name,
            "mode": self.mode,
            "mesh": str(self.mesh),
            "device_order": self.machine.numbers,
            "summary": None if self.summary is None else json.loads(self.summary.to_json()),
            "arguments": [_value_to_json(value) for value in self.arguments],
            "results": [_value_to_json(value) for value in self.results],
            "in_tree": _tree_to_json(self.in_tree),
            "out_tree": _tree_to_json(self.out_tree),
            "module": base64.b64encode(gzip.compress(self.bytecode, mtime=0)).decode(),
        }

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read what ``save`` wrote.

        Raises:
            ParseError: The file is no plan, or one of a later version.
        """
        try:
            read = json.loads(Path(path).read_text())
            version = read["autoshard_plan"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ParseError(
                f"no plan can be read: {error}. Give a file that plan.save wrote.", str(path)
            ) from error
        if version != cls.FORMAT:
            raise ParseError(
                f"the plan has version {version}, this autoshard reads version {cls.FORMAT}."
                " Plan again, or use the autoshard that wrote it.",
                str(path),
            )
        try:
            return cls._from_json(read)
        except (AutoshardError, KeyError, TypeError, ValueError, OSError, EOFError) as error:
            raise ParseError(
                f"the plan is damaged: {error}. Plan again, and save it again.", str(path)
            ) from error

    @classmethod
    def _from_json(cls, read: Mapping[str, Any]) -> Plan:
        mesh = Mesh.parse(read["mesh"])
        summary = read["summary"]
        return cls(
            name=read["name"],
            mesh=mesh,
            mode=read["mode"],
            arguments=tuple(_value_from_json(value, mesh) for value in read["arguments"]),
            results=tuple(_value_from_json(value, mesh) for value in read["results"]),
            bytecode=gzip.decompress(base64.b64decode(read["module"])),
            in_tree=_tree_from_json(read["in_tree"]),
            out_tree=_tree_from_json(read["out_tree"]),
            machine=machine_of(Mesh(mesh.axes, _order(read["device_order"]))),
            summary=None if summary is None else PlanSummary.from_json(json.dumps(summary)),
        )

    def __rich__(self) -> Any:
        """Tables of arguments, results, ops and redistributions."""
        return plan_table(self)

    def __str__(self) -> str:
        """The same tables as text."""
        return render(plan_table(self))


def plan(
    fn: Callable[..., Any],
    *args: Any,
    mesh: MeshLike | None = None,
    cluster: ClusterLike | None = None,
    mode: Mode | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    mem_coeff: Coefficient = "auto",
    memory_limit: int | float | str | None = None,
    overlap: float = 0.0,
    cost_model: CostModel = "seconds",
    batch_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    **kwargs: Any,
) -> Plan:
    """Decide how ``fn`` is split over a cluster. Nothing is computed and no device is needed.

    Args:
        fn: A function of arrays. Its own ``jax.jit`` is not touched.
        args: Its arguments: arrays, or ``jax.ShapeDtypeStruct``s in their place.
        mesh: ``"dp=2,tp=4"``, a dict of axis sizes, or a mesh of JAX. None: the mesh of the pins,
            else the common refinement of the layouts that ``autoshard.shard`` was given in ``fn``,
            else one that the automatic mode makes of the cluster.
        cluster: What ``fn`` will run on: ``"v5p:4x4x4"``, ``"h100:4x8"``, ``"cpu:8"``, the path of
            a TOML file, or an ``autoshard.Cluster``. None: the devices here, where mode ``"auto"``
            asks for them.
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
            its memory less 8%.
        overlap: Share of communication that hides behind compute, 0 to 1.
        cost_model: ``"seconds"``, or ``"symbolic"`` for relative costs without a unit.
        batch_argnums: In mode ``"data_parallel"`` the positional arguments that hold the batch, in
            dim 0 of each array. None: those that no result replaces, as it does with a step's
            parameters and optimizer state.
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
        mode=mode,
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        mem_coeff=mem_coeff,
        memory_limit=memory_limit,
        overlap=overlap,
        cost_model=cost_model,
        batch_argnums=batch_argnums,
    )
    source = lowered_for(
        fn,
        (args, kwargs),
        request,
        static=(static_argnums, static_argnames),
        donate=(donate_argnums, donate_argnames),
    )
    return plan_source(source, request)


def lowered_for(
    fn: Callable[..., Any],
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
    request: Request,
    *,
    static: tuple[Any, Any],
    donate: tuple[Any, Any],
) -> Source:
    """``fn`` lowered for a request.

    Args:
        fn: The user's function.
        arguments: Positional ones, and those by name.
        request: What is asked of the plan.
        static: Numbers and names, as in ``jax.jit``.
        donate: Likewise.
    """
    fixed = StaticArguments.of(fn, *static)
    options = {
        "static_argnums": fixed.numbers,
        "static_argnames": fixed.names,
        "donate_argnums": donate[0],
        "donate_argnames": donate[1],
    }
    return lower_source(fn, Arguments.of(fixed, *arguments), request, options)


def plan_source(source: Source, request: Request) -> Plan:
    """Plan what was lowered; see ``plan``."""
    module = parse_bytes(source.program.bytecode, new_context(), source.name)
    _write_request(source, module, request)
    if source.mode == "auto":
        assert source.cluster is not None
        return read_planned(
            source, plan_automatically(module, source.cluster, request.options()), module
        )
    seconds: dict[str, float] = {}
    run_passes(module, _PROPAGATION, timing=lambda name, took: seconds.update({name: took}))
    summary = None
    if source.cluster is not None:
        summary = estimate_planned(module, source.cluster, request.options(), seconds)
    return read_planned(source, summary, module)


def search_source(source: Source, request: Request) -> PlannedProgram:
    """Plan what was lowered for the automatic mode, with what it takes to plan it again."""
    assert source.cluster is not None
    module = parse_bytes(source.program.bytecode, new_context(), source.name)
    _write_request(source, module, request)
    return search_module(module, source.cluster, request.options())


def _write_request(source: Source, module: mlir.Module, request: Request) -> None:
    """Write mesh, marks, ties and pins to the module as lowered."""
    mesh = source.machine.mesh
    set_mesh(module, str(mesh) if source.has_mesh else None, mesh.size)
    rewrite_marks(module, TARGET, source.machine.mark_text)
    tie_donated(module)
    fed_back = _fed_back(source)
    feed_back(module, fed_back)
    _keep_keys_whole(source, module)
    pins = _Pins(source)
    pins.write(module, request.in_shardings, request.out_shardings)
    if source.mode == "data_parallel":
        pins.write_batch(module, set(fed_back.values()), request.batch_argnums)


def read_planned(source: Source, summary: PlanSummary | None, module: mlir.Module) -> Plan:
    """The plan that a module carries."""
    untie_unequal(module)
    return _read(source, module, summary)


def pins_of(
    source: Source, in_shardings: Any, out_shardings: Any
) -> tuple[dict[int, Sharding], dict[int, Sharding]]:
    """What is pinned: sharding by number of the argument and of the result of ``main``."""
    return _Pins(source).read(in_shardings, out_shardings)


def _read(source: Source, module: mlir.Module, summary: PlanSummary | None) -> Plan:
    mesh = Mesh.parse(mesh_text(module))
    (main,) = [function for function in read_plan(module).functions if function.is_entry]
    program, stage = source.program, cast(Any, source.program.stage)
    types = _tree.tree_leaves(stage.args_info)
    out_types = _tree.tree_leaves(stage.out_info)
    kept = dict(zip(program.kept, main.arguments[program.constant_count :], strict=True))
    names = _result_names(stage.out_tree)

    def value(name: str, type_: Any, number: int, found: Any, is_used: bool) -> PlannedValue:
        rank = len(type_.shape)
        whole = Sharding.fully_replicated(mesh, rank)
        sharding = whole if found is None else _logical(found.sharding, rank, name)
        return PlannedValue(name, tuple(type_.shape), str(type_.dtype), sharding, is_used)

    return Plan(
        name=source.name,
        mesh=mesh,
        mode=source.mode,
        arguments=tuple(
            value(name, type_, number, kept.get(number), number in kept)
            for number, (name, type_) in enumerate(zip(source.argument_names, types, strict=True))
        ),
        results=tuple(
            value(name, type_, number, found, True)
            for number, (name, type_, found) in enumerate(
                zip(names, out_types, main.results, strict=True)
            )
        ),
        bytecode=print_module(module, "bytecode"),
        in_tree=stage.in_tree,
        out_tree=stage.out_tree,
        machine=source.machine.with_mesh(mesh),
        summary=summary,
    )


def _logical(sharding: Sharding, rank: int, name: str) -> Sharding:
    """Without the hidden dims of a typed PRNG key."""
    hidden = sharding.dims[rank:]
    if any(hidden):
        raise PlanError(
            f"{name} is an array of PRNG keys, and the plan {sharding} cuts the words of one key."
            " Pin it to a sharding of its own dims."
        )
    return Sharding(sharding.mesh, sharding.dims[:rank])


def _result_names(tree: Any) -> list[str]:
    leaves = _tree.tree_leaves_with_path(_tree.tree_unflatten(tree, range(tree.num_leaves)))
    return [f"result{_tree.keystr(path)}" for path, _ in leaves]


def _keep_keys_whole(source: Source, module: mlir.Module) -> None:
    """A typed PRNG key is an array of words in the module; no plan may cut one key."""
    program, stage = source.program, cast(Any, source.program.stage)

    def words(types: Sequence[Any]) -> dict[int, int]:
        hidden = {number: _physical_rank(t) - len(t.shape) for number, t in enumerate(types)}
        return {number: count for number, count in hidden.items() if count}

    place = {number: at + program.constant_count for at, number in enumerate(program.kept)}
    arguments = words(_tree.tree_leaves(stage.args_info))
    kept = {place[number]: count for number, count in arguments.items() if number in place}
    keep_keys_whole(module, "arg_attrs", kept)
    keep_keys_whole(module, "res_attrs", words(_tree.tree_leaves(stage.out_info)))


def _fed_back(source: Source) -> dict[int, int]:
    """Results that are arguments of the next call, as a training step returns its state.

    A result, or an element of the result, that is a tree like one positional argument (same
    structure, shapes and dtypes, more than one array) is taken for its successor.

    Returns:
        Number of the result -> number of the argument in ``main``.
    """
    stage = cast(Any, source.program.stage)
    whole = stage.out_info
    parts: list[Any] = list(cast(Any, whole)) if isinstance(whole, tuple | list) else [whole]
    place = {number: index for index, number in enumerate(source.program.kept)}
    taken: set[int] = set()
    pairs: dict[int, int] = {}
    argument_start = 0
    for argument in stage.args_info[0]:
        leaves, tree = _tree.tree_flatten(argument)
        wanted = _types(leaves)
        result_start = 0
        for index, part in enumerate(parts):
            results, result_tree = _tree.tree_flatten(part)
            is_successor = result_tree == tree and _types(results) == wanted
            if is_successor and len(leaves) > 1 and index not in taken:
                taken.add(index)
                for offset in range(len(leaves)):
                    if argument_start + offset in place:
                        number = place[argument_start + offset]
                        pairs[result_start + offset] = source.program.constant_count + number
                break
            result_start += len(results)
        argument_start += len(leaves)
    return pairs


def _types(leaves: Sequence[Any]) -> list[tuple[tuple[int, ...], str]]:
    return [(tuple(leaf.shape), str(leaf.dtype)) for leaf in leaves]


# --- what the user pins ---


@dataclass(frozen=True)
class _Pins:
    source: Source

    def write(self, module: mlir.Module, in_shardings: Any, out_shardings: Any) -> None:
        """Pin arguments and results of ``main``."""
        for side, pinned in zip(
            ("arg_attrs", "res_attrs"), self.read(in_shardings, out_shardings), strict=True
        ):
            if pinned:
                pin(module, side, {place: to_v2(found) for place, found in pinned.items()})

    def read(
        self, in_shardings: Any, out_shardings: Any
    ) -> tuple[dict[int, Sharding], dict[int, Sharding]]:
        """Shardings by place among the arguments and among the results of ``main``."""
        program, stage = self.source.program, cast(Any, self.source.program.stage)
        arguments: dict[int, Sharding] = {}
        results: dict[int, Sharding] = {}
        if in_shardings is not None:
            positional = stage.args_info[0]
            said = _prefix(in_shardings, positional, "in_shardings")
            place = {number: at + program.constant_count for at, number in enumerate(program.kept)}
            found = self._shardings(said, _tree.tree_leaves(positional), self.source.argument_names)
            arguments = {place[n]: sharding for n, sharding in found.items() if n in place}
        if out_shardings is not None:
            said = _prefix(out_shardings, stage.out_info, "out_shardings")
            types = _tree.tree_leaves(stage.out_info)
            results = self._shardings(said, types, _result_names(stage.out_tree))
        return arguments, results

    def _shardings(
        self, said: Sequence[Any], types: Sequence[Any], names: Sequence[str]
    ) -> dict[int, Sharding]:
        shardings: dict[int, Sharding] = {}
        for number, (pinned, type_) in enumerate(zip(said, types, strict=True)):
            if pinned is None:
                continue
            rank = len(type_.shape)
            try:
                sharding = self._sharding(pinned, rank)
                sharding.check(type_.shape)
            except AutoshardError as error:
                raise type(error)(f"{names[number]}: {error.message}") from error
            hidden = _physical_rank(type_) - rank
            shardings[number] = Sharding(sharding.mesh, sharding.dims + ((),) * hidden)
        return shardings

    def write_batch(
        self, module: mlir.Module, state: set[int], batch_argnums: int | Sequence[int] | None
    ) -> None:
        """Pin dim 0 of the batch to all axes, every other argument to none, and what follows.

        Args:
            module: What is pinned.
            state: Arguments of ``main`` that a result replaces.
            batch_argnums: Which hold the batch, if the user says so.
        """
        program = self.source.program
        place = {number: at + program.constant_count for at, number in enumerate(program.kept)}
        shardings = batch_pins(
            cast(Any, program.stage).args_info,
            self.source.argument_names,
            {number for number, at in place.items() if at in state},
            batch_argnums,
            self.source.machine.mesh,
            self.source.name,
        )
        texts = {place[n]: to_sdy(found, None) for n, found in shardings.items() if n in place}
        follow_arguments(module, texts)

    def _sharding(self, pinned: Any, rank: int) -> Sharding:
        mesh, devices = self.source.machine.mesh, self.source.machine.devices
        if isinstance(pinned, jax.sharding.PartitionSpec):
            if not self.source.has_mesh:
                raise PlanError(
                    f"{pinned} names axes, but there is no mesh. Give mesh=, or a NamedSharding."
                )
            return from_partition_spec(pinned, mesh, rank)
        if isinstance(pinned, jax.sharding.NamedSharding):
            concrete = isinstance(pinned.mesh, jax.sharding.Mesh) and devices is not None
            return from_named_sharding(pinned, rank, devices if concrete else None)
        if isinstance(pinned, Sharding):
            return pinned
        raise PlanError(
            f"{pinned!r} is no sharding. Use a NamedSharding, a PartitionSpec, a layout or None."
        )


def _prefix(said: Any, tree: Any, name: str) -> list[Any]:
    """One pin, or None, for each leaf of ``tree``."""

    def is_leaf(value: Any) -> bool:
        return value is None or is_pin(value)

    prefix = jax.tree.map(_Said, said, is_leaf=is_leaf)
    try:
        full = _tree.tree_leaves(jax.tree.broadcast(prefix, tree))
    except ValueError as error:
        raise PlanError(
            f"{name} {said} has not the structure of what it pins,"
            f" {_tree.tree_structure(tree)}. Give one sharding for all, or a pytree prefix; None"
            " leaves the choice."
        ) from error
    return [pinned.sharding for pinned in full]


@dataclass(frozen=True, slots=True)
class _Said:
    """A pin as a pytree leaf, None too."""

    sharding: Any


def _physical_rank(type_: Any) -> int:
    """Rank in the module: a typed PRNG key is an array of words there."""
    if not jnp.issubdtype(type_.dtype, jax.dtypes.extended):
        return len(type_.shape)
    words: Any = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(type_.shape, type_.dtype))
    return len(words.shape)


# --- JSON ---


def _value_to_json(value: PlannedValue) -> dict[str, Any]:
    return {
        "name": value.name,
        "shape": list(value.shape),
        "dtype": value.dtype,
        "sharding": str(value.sharding),
        "is_used": value.is_used,
    }


def _value_from_json(read: dict[str, Any], mesh: Mesh) -> PlannedValue:
    return PlannedValue(
        name=read["name"],
        shape=tuple(read["shape"]),
        dtype=read["dtype"],
        sharding=parse_sharding(read["sharding"], mesh),
        is_used=read["is_used"],
    )


def _order(read: list[int] | None) -> tuple[int, ...] | None:
    return None if read is None else tuple(read)


def _tree_to_json(tree: Any) -> str | None:
    """None for a structure with types of the user's own, or none at all."""
    if tree is None:
        return None
    try:
        return base64.b64encode(tree.serialize_using_proto()).decode()
    except ValueError:
        return None


def _tree_from_json(text: str | None) -> Any:
    if text is None:
        return None
    return _tree.PyTreeDef.deserialize_using_proto(_tree.default_registry, base64.b64decode(text))
