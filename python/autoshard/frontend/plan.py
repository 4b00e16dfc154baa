"""``autoshard.plan``: decide how a program is split, without running it."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

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
from autoshard.frontend.lower import Source, lower_source
from autoshard.frontend.mesh import Machine, MeshLike, machine_of
from autoshard.ir import mlir, new_context, parse_bytes, print_module
from autoshard.ir.boundary import (
    feed_back,
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
from autoshard.report.plan_table import plan_table, render
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
from autoshard.verify.collective import Collective
from autoshard.verify.shardy_collectives import shardy_collectives

Mode = Literal["semi_auto"]

_tree: Any = jax.tree_util

PLANNING: Mapping[str, tuple[str, ...]] = {
    "semi_auto": ("autoshard-import-strategies", "autoshard-sharding-propagation"),
}
"""Mode -> the passes that plan."""


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

    FORMAT: ClassVar[int] = 1
    """Version of the JSON that ``save`` writes."""

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
    mode: Mode = "semi_auto",
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    **kwargs: Any,
) -> Plan:
    """Decide how ``fn`` is split over ``mesh``. Nothing is computed and no device is needed.

    Args:
        fn: A function of arrays. Its own ``jax.jit`` is not touched.
        args: Its arguments: arrays, or ``jax.ShapeDtypeStruct``s in their place.
        mesh: ``"dp=2,tp=4"``, a dict of axis sizes, or a mesh of JAX. None: the common refinement
            of the layouts that ``autoshard.shard`` was given in ``fn``.
        mode: ``"semi_auto"``: from what is marked or pinned, by propagation.
        in_shardings: Pins of the positional arguments: ``NamedSharding``, ``PartitionSpec``, a
            layout, or None for "choose", as pytree prefixes.
        out_shardings: Pins of the result, likewise.
        static_argnums: As in ``jax.jit``.
        static_argnames: As in ``jax.jit``.
        donate_argnums: As in ``jax.jit``.
        donate_argnames: As in ``jax.jit``.
        kwargs: Arguments of ``fn`` by name.

    Raises:
        StrategyError: Marks or pins that contradict each other.
        PlanError: There is no mesh, or nothing to propagate from.
        AutoshardError: The program cannot be planned. Messages start with the user's line.
    """
    static = StaticArguments.of(fn, static_argnums, static_argnames)
    options = {
        "static_argnums": static.numbers,
        "static_argnames": static.names,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
    }
    source = lower_source(fn, Arguments.of(static, args, kwargs), mesh, options)
    return plan_source(source, mode, in_shardings, out_shardings)


def plan_source(source: Source, mode: str, in_shardings: Any, out_shardings: Any) -> Plan:
    """Plan what was lowered; see ``plan``."""
    if mode not in PLANNING:
        raise PlanError(f"mode {mode!r} is not known. Use {' or '.join(map(repr, PLANNING))}.")
    module = parse_bytes(source.program.bytecode, new_context(), source.name)
    mesh = source.machine.mesh
    set_mesh(module, str(mesh), mesh.size)
    rewrite_marks(module, TARGET, source.machine.mark_text)
    tie_donated(module)
    feed_back(module, _fed_back(source))
    _keep_keys_whole(source, module)
    _Pins(source).write(module, in_shardings, out_shardings)
    run_passes(module, PLANNING[mode])
    untie_unequal(module)
    return _read(source, module, mode)


def _read(source: Source, module: mlir.Module, mode: str) -> Plan:
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
        mode=mode,
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
        program, stage = self.source.program, cast(Any, self.source.program.stage)
        positional = stage.args_info[0]
        if in_shardings is not None:
            said = _prefix(in_shardings, positional, "in_shardings")
            place = {number: at + program.constant_count for at, number in enumerate(program.kept)}
            types = _tree.tree_leaves(positional)
            texts = self._texts(said, types, self.source.argument_names)
            pin(module, "arg_attrs", {place[n]: text for n, text in texts.items() if n in place})
        if out_shardings is not None:
            said = _prefix(out_shardings, stage.out_info, "out_shardings")
            types = _tree.tree_leaves(stage.out_info)
            pin(module, "res_attrs", self._texts(said, types, _result_names(stage.out_tree)))

    def _texts(
        self, said: Sequence[Any], types: Sequence[Any], names: Sequence[str]
    ) -> dict[int, str]:
        texts: dict[int, str] = {}
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
            whole = Sharding(sharding.mesh, sharding.dims + ((),) * hidden)
            texts[number] = to_v2(whole)
        return texts

    def _sharding(self, pinned: Any, rank: int) -> Sharding:
        mesh, devices = self.source.machine.mesh, self.source.machine.devices
        if isinstance(pinned, jax.sharding.PartitionSpec):
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
        return value is None or isinstance(
            value, jax.sharding.Sharding | jax.sharding.PartitionSpec | Sharding
        )

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
