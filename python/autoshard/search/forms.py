"""Plans as an expert would write them: the arguments cut by a plain rule, the search does the rest.

    fsdp    the batch and every argument that a step replaces are cut over all devices, these in
            their largest dim that divides
    data    the batch is cut over all devices, what a step replaces is whole on each

The compiler compares them with plans of the search (``refine``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from autoshard.errors import PlanError
from autoshard.ir import mlir, new_context, parse_bytes, print_module
from autoshard.ir.attributes import MHLO_SHARDING
from autoshard.ir.boundary import entries_at, main_function, pin, replaced_arguments
from autoshard.ir.reading import shape_of
from autoshard.passes.micro_batch import batch_by_structure
from autoshard.sharding import Axis, Mesh, Sharding, to_v2

Form = Literal["fsdp", "data"]
FORMS: tuple[Form, ...] = ("fsdp", "data")

_AXIS = "data"


@dataclass(frozen=True)
class PinnedForm:
    """How a form cuts the arguments and results of ``main``, by number."""

    mesh: Mesh
    arguments: Mapping[int, Sharding]
    results: Mapping[int, Sharding]

    def write(self, module: mlir.Module) -> mlir.Module:
        """Pin them in a module, which is given back."""
        pin(module, "arg_attrs", {number: to_v2(one) for number, one in self.arguments.items()})
        pin(module, "res_attrs", {number: to_v2(one) for number, one in self.results.items()})
        return module


def pinned_form(module: mlir.Module, form: Form, num_devices: int) -> PinnedForm | None:
    """How a form cuts a program; None where nothing tells its batch, or that does not divide.

    Args:
        module: Without pins; it stays as it is.
        form: One of ``FORMS``.
        num_devices: Over which it cuts.
    """
    copy = parse_bytes(print_module(module, "bytecode"), new_context(), "module")
    main = main_function(copy)
    with copy.context, mlir.Location.unknown():
        try:
            batch = batch_by_structure(copy, main)
        except PlanError:
            return None
        shapes = [shape_of(value) for value in main.regions[0].blocks[0].arguments]
        replaced = replaced_arguments(main)
        held = [MHLO_SHARDING in attributes for attributes in entries_at(main, "arg_attrs")]
    if not all(shapes[number] and shapes[number][0] % num_devices == 0 for number in batch):
        return None
    mesh = Mesh((Axis(_AXIS, num_devices),))
    arguments = {number: _cut(mesh, shapes[number], 0) for number in batch}
    for number in set(replaced.values()) - arguments.keys():
        dim = _largest_dim(shapes[number], num_devices) if form == "fsdp" else None
        arguments[number] = _cut(mesh, shapes[number], dim)
    arguments = {number: cut for number, cut in arguments.items() if not held[number]}
    results = {
        result: arguments[argument]
        for result, argument in replaced.items()
        if argument in arguments
    }
    return PinnedForm(mesh, arguments, results)


def _cut(mesh: Mesh, shape: tuple[int, ...], dim: int | None) -> Sharding:
    return Sharding.named(mesh, *(_AXIS if at == dim else None for at in range(len(shape))))


def _largest_dim(shape: tuple[int, ...], num_devices: int) -> int | None:
    """The largest dim that divides, the first of equal ones; None: there is none."""
    dims = [at for at, size in enumerate(shape) if size and size % num_devices == 0]
    return max(dims, key=lambda at: shape[at], default=None)
