"""What the user said of arguments and results, written to the module that is planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

import jax
import jax.numpy as jnp

from autoshard.errors import AutoshardError, PlanError
from autoshard.frontend.batch import batch_pins
from autoshard.frontend.lower import Source
from autoshard.frontend.request import Request, is_pin
from autoshard.frontend.result_names import result_names
from autoshard.importer.dataflow import dataflow
from autoshard.importer.roles import is_added_to
from autoshard.ir import mlir
from autoshard.ir.attributes import MARK
from autoshard.ir.boundary import (
    check_marks,
    constrain_arguments,
    feed_back,
    follow_arguments,
    free_values,
    keep_keys_whole,
    pad_indivisible,
    pin,
    rewrite_marks,
    set_mesh,
    tie_donated,
    tied_arguments,
)
from autoshard.ir.host_memory import DEVICE, free_on_host
from autoshard.sharding import (
    Sharding,
    from_named_sharding,
    from_partition_spec,
    to_v2,
)
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.sdy_text import from_sdy, per_value_from_sdy, to_sdy

_tree: Any = jax.tree_util


def write_request(source: Source, module: mlir.Module, request: Request) -> None:
    """Write mesh, marks, ties and pins to the module as lowered."""
    mesh = source.machine.mesh
    set_mesh(module, str(mesh) if source.has_mesh else None, mesh.size)
    if request.indivisible == "pad":
        with module.context:
            pad_indivisible(module)
    if source.is_mesh_given:
        check_marks(module, MARK, source.machine.check_mark)
    rewrite_marks(module, MARK, source.machine.mark_text)
    tie_donated(module)
    fed_back = fed_back_arguments(source, module)
    feed_back(module, fed_back)
    _keep_keys_whole(source, module)
    pins = Pins(source)
    pins.write(module, request.in_shardings, request.out_shardings)
    if source.mode == "data_parallel":
        pins.write_batch(
            module,
            {*fed_back.values(), *_donated_state(module)},
            request.batch_argnums,
            may_pad=request.indivisible == "pad",
        )


class _Uneven:
    """Whether axes cut dims that they do not divide, or values without elements.

    Each sharding is read once.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.known: dict[tuple[mlir.Attribute, tuple[mlir.Type, ...]], bool] = {}

    def __call__(self, attribute: mlir.Attribute, types: tuple[mlir.Type, ...]) -> bool:
        key = (attribute, types)
        if key not in self.known:
            text = str(attribute)
            is_one = text.startswith("#sdy.sharding<")
            read = (from_sdy(text, self.mesh),) if is_one else per_value_from_sdy(text, self.mesh)
            # a call on one device says so with one sharding of no dims, whatever its results are
            self.known[key] = any(
                size % pieces or (pieces > 1 and 0 in type_.shape)
                for type_, sharding in zip(types, read, strict=False)
                if sharding.dims and isinstance(type_, mlir.RankedTensorType)
                for size, pieces in zip(type_.shape, sharding.tile, strict=True)
            )
        return self.known[key]


def pins_of(
    source: Source, in_shardings: Any, out_shardings: Any
) -> tuple[dict[int, Sharding], dict[int, Sharding]]:
    """What is pinned: sharding by number of the argument and of the result of ``main``."""
    return Pins(source).read(in_shardings, out_shardings)


def write_pins(
    module: mlir.Module, arguments: Mapping[int, Sharding], results: Mapping[int, Sharding]
) -> None:
    """Pin arguments and results of ``main``, by number."""
    pin(module, "arg_attrs", {number: to_v2(found) for number, found in arguments.items()})
    pin(module, "res_attrs", {number: to_v2(found) for number, found in results.items()})


def _keep_keys_whole(source: Source, module: mlir.Module) -> None:
    """A typed PRNG key is an array of words in the module; no plan may cut one key."""
    program = source.program

    def words(types: Sequence[Any]) -> dict[int, int]:
        hidden = {number: _physical_rank(t) - len(t.shape) for number, t in enumerate(types)}
        return {number: count for number, count in hidden.items() if count}

    place = {number: at + program.constant_count for at, number in enumerate(program.kept)}
    arguments = words(_tree.tree_leaves(program.argument_types))
    kept = {place[number]: count for number, count in arguments.items() if number in place}
    keep_keys_whole(module, "arg_attrs", kept)
    keep_keys_whole(module, "res_attrs", words(_tree.tree_leaves(program.result_types)))


def fed_back_arguments(source: Source, module: mlir.Module) -> dict[int, int]:
    """Results that are arguments of the next call, as a training step returns its state.

    The result, or else an element of it, that is a tree like one positional argument (same
    structure, shapes and dtypes, more than one array) is taken for its successor. Of several,
    as where gradients are returned as well, the one that the argument is updated to.

    Returns:
        Number of the result -> number of the argument in ``main``.
    """
    program = source.program
    given = [_flat(argument) for argument in program.argument_types[0]]
    flat = [_flat(part) for part in _successors(program.result_types, given)]
    starts = list(accumulate((len(leaves) for leaves, _ in flat), initial=0))
    place = {number: index for index, number in enumerate(program.kept)}
    taken: set[int] = set()
    pairs: dict[int, int] = {}
    argument_start = 0
    for leaves, tree in given:
        alike = [
            part
            for part, result in enumerate(flat)
            if part not in taken and result == (leaves, tree)
        ]
        kept = [
            (offset, program.constant_count + place[argument_start + offset])
            for offset in range(len(leaves))
            if argument_start + offset in place
        ]
        argument_start += len(leaves)
        if len(leaves) < 2 or not alike or not kept:
            continue
        offset, number = kept[0]
        part = alike[0]
        if len(alike) > 1:
            part = alike[_updated(module, number, [starts[part] + offset for part in alike])]
        taken.add(part)
        pairs.update({starts[part] + offset: number for offset, number in kept})
    return pairs


_Flat = tuple[list[tuple[tuple[int, ...], str]], Any]
"""Shapes and dtypes of leaves, and structure of a tree."""


def _flat(tree: Any) -> _Flat:
    leaves, structure = _tree.tree_flatten(tree)
    return [(tuple(leaf.shape), str(leaf.dtype)) for leaf in leaves], structure


def _successors(result: Any, given: Sequence[_Flat]) -> list[Any]:
    """The result, if an argument is like it, or its elements: in a tuple, dict or other node.

    A plain tuple or list is what a function returns several results in, as gradients of a list.
    """
    if type(result) not in (tuple, list):
        whole = _flat(result)
        if any(len(leaves) > 1 and whole == (leaves, tree) for leaves, tree in given):
            return [result]

    def is_element(node: Any) -> bool:
        return node is not result

    return _tree.tree_leaves(result, is_leaf=is_element)


def _donated_state(module: mlir.Module) -> set[int]:
    """Donated arguments that are updated to the result that takes their place."""
    pairs = tied_arguments(module)
    if not pairs:
        return set()
    flow = dataflow(module)
    return {
        argument
        for result, argument in pairs.items()
        if is_added_to(flow, flow.arguments[argument], flow.results[result])
    }


def _updated(module: mlir.Module, argument: int, results: Sequence[int]) -> int:
    """Which of several results an argument is updated to: the last one made of it."""
    flow = dataflow(module)
    start, ends = flow.arguments[argument], [flow.results[number] for number in results]
    made = [number for number, end in enumerate(ends) if is_added_to(flow, start, end)]
    for number in made:
        others = [ends[other] for other in made if other != number]
        if not any(ends[number] in flow.sources_of([other]) for other in others):
            return number
    return 0


@dataclass(frozen=True)
class Pins:
    """What the user pinned, as the module takes it."""

    source: Source

    def write(self, module: mlir.Module, in_shardings: Any, out_shardings: Any) -> None:
        """Pin arguments and results of ``main``."""
        write_pins(module, *self.read(in_shardings, out_shardings))

    def read(
        self, in_shardings: Any, out_shardings: Any
    ) -> tuple[dict[int, Sharding], dict[int, Sharding]]:
        """Shardings by place among the arguments and among the results of ``main``.

        An argument of which nothing is said stays where it has been put.
        """
        program, names = self.source.program, self.source.argument_names
        types = _tree.tree_leaves(program.argument_types)
        pins: list[Any] = [None] * len(types)
        for number, sharding in self.source.committed:
            pins[number] = sharding
        if in_shardings is not None:
            said = _prefix(in_shardings, program.argument_types[0], "in_shardings")
            pins[: len(said)] = [
                pin if pin is not None else committed
                for pin, committed in zip(said, pins[: len(said)], strict=True)
            ]
        place = {number: at + program.constant_count for at, number in enumerate(program.kept)}
        found = self._shardings(pins, types, names)
        for number, sharding in found.items():
            self._check_type(names[number], types[number], sharding)
        arguments = {place[n]: sharding for n, sharding in found.items() if n in place}
        types = _tree.tree_leaves(program.result_types)
        pins = [None] * len(types)
        if out_shardings is not None:
            pins = _prefix(out_shardings, program.result_types, "out_shardings")
        for number, sharding in self.source.result_pins:
            pins[number] = sharding if pins[number] is None else pins[number]
        names = result_names(cast(Any, program.stage).out_tree)
        return arguments, self._shardings(pins, types, names)

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

    def _check_type(self, name: str, type_: Any, pinned: Sharding) -> None:
        """Whether the type of an argument, on Explicit axes of the plan's mesh, says the same.

        Raises:
            PlanError: It says something else.
        """
        said: Any = getattr(getattr(type_, "_aval", None), "sharding", None)
        mesh, own = getattr(said, "mesh", None), self.source.machine.mesh
        if mesh is None or (mesh.axis_names, mesh.axis_sizes) != (own.axis_names, own.axis_sizes):
            return
        explicit = {
            axis
            for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
            if kind == jax.sharding.AxisType.Explicit
        }
        entries: list[Any] = [e if isinstance(e, tuple) else (e,) for e in said.spec]
        cut: set[str] = {str(axis) for entry in entries for axis in entry if axis is not None}
        typed = from_partition_spec(said.spec, own, len(type_.shape))
        if cut and cut <= explicit and not typed.same_placement(pinned):
            raise PlanError(
                f"{name}: in_shardings says {pinned}, and the type of what is passed says {typed},"
                " on Explicit axes. Leave it out of in_shardings, or put the array there before"
                " (jax.device_put)."
            )

    def write_batch(
        self,
        module: mlir.Module,
        state: set[int],
        batch_argnums: int | Sequence[int] | None,
        may_pad: bool,
    ) -> None:
        """Pin dim 0 of the batch to all axes, every other argument to none, and what follows.

        Args:
            module: What is pinned.
            state: Arguments of ``main`` that a result replaces.
            batch_argnums: Which hold the batch, if the user says so.
            may_pad: A batch that does not divide is cut behind the argument, which stays whole.
                Without, values that follow from the batch and do not divide are left to the
                propagation, as a slice of the batch.
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
            may_pad,
        )
        leaves = _tree.tree_leaves(cast(Any, program.stage).args_info)
        inside: dict[int, str] = {}
        for number, found in list(shardings.items()):
            if number in place and leaves[number].shape and leaves[number].shape[0] % found.tile[0]:
                inside[place[number]] = to_sdy(found, None)
                shardings[number] = Sharding.fully_replicated(found.mesh, found.rank)
        constrain_arguments(module, inside)
        texts = {place[n]: to_sdy(found, None) for n, found in shardings.items() if n in place}
        follow_arguments(module, texts)
        free_on_host(module)
        free_values(module, _Uneven(self.source.machine.mesh), inside=not may_pad)

    def _sharding(self, pinned: Any, rank: int) -> Sharding:
        mesh, devices = self.source.machine.mesh, self.source.machine.devices
        if isinstance(pinned, jax.sharding.PartitionSpec):
            if not self.source.has_mesh:
                raise PlanError(
                    f"{pinned} names axes, but there is no mesh. Give mesh=, or a NamedSharding."
                )
            return from_partition_spec(pinned, mesh, rank)
        if isinstance(pinned, jax.sharding.NamedSharding):
            _check_memory_kind(pinned)
            concrete = isinstance(pinned.mesh, jax.sharding.Mesh) and devices is not None
            return from_named_sharding(pinned, rank, devices if concrete else None)
        if isinstance(pinned, Sharding):
            return pinned
        raise PlanError(
            f"{pinned!r} is no sharding. Use a NamedSharding, a PartitionSpec, a layout or None."
        )


def _check_memory_kind(pinned: jax.sharding.NamedSharding) -> None:
    """A pin says how a value is split, not where it lives."""
    if pinned.memory_kind in (None, DEVICE):
        return
    if isinstance(pinned.mesh, jax.sharding.Mesh):
        device: Any = pinned.mesh.devices.flat[0]
        if pinned.memory_kind == device.default_memory().kind:
            return
    raise PlanError(
        f"{pinned} asks for memory {pinned.memory_kind!r}, but a pin says how a value is split and"
        " not where it lives. Leave memory_kind out; autoshard.in_host_memory keeps a value in the"
        " memory of the host."
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


def logical_sharding(sharding: Sharding, rank: int, name: str) -> Sharding:
    """A planned sharding without the hidden dims of a typed PRNG key.

    Raises:
        PlanError: It cuts these.
    """
    hidden = sharding.dims[rank:]
    if any(hidden):
        raise PlanError(
            f"{name} is an array of PRNG keys, and the plan {sharding} cuts the words of one key."
            " Pin it to a sharding of its own dims."
        )
    return Sharding(sharding.mesh, sharding.dims[:rank])
