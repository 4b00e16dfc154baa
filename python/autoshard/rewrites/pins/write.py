"""Write ``autoshard.pin`` on all that the user fixed, and the mesh on the module."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoshard.errors import ImportModuleError
from autoshard.ir import mlir, place, sdy
from autoshard.ir.attributes import (
    LAYOUT,
    MARK,
    MARK_INDEX,
    MARK_ROLE,
    MESH,
    MHLO_SHARDING,
    PIN,
    SDY_SHARDING,
    attribute_of,
    custom_call_target,
    text_of,
)
from autoshard.ir.boundary import Side, attributes_at, entries_at, pads_indivisible
from autoshard.ir.one_device import is_maximal, is_on_one_device, one_device_meshes
from autoshard.rewrites.pins.wishes import Wish, mesh_for, meshes_of, pin_text
from autoshard.rewrites.pins.written_shardings import WrittenShardings, errors_at, rank_of
from autoshard.sharding import Mesh, Sharding, parse_sharding
from autoshard.sharding.strategy import Cuts


def write_pins(
    module: mlir.Module, operations: Sequence[mlir.Operation], default: Mesh | None
) -> bool:
    """Write pins and mesh; True if the mesh is ``default``, for want of another one.

    Args:
        module: Its marks are on operands and results; shardings are taken off all other ops.
        operations: Those that may say how they are split, in order.
        default: The mesh to use where the module names none.

    Raises:
        AutoshardError: What the module says cannot be read, or no mesh expresses it.
    """
    wishes = _WishReader(module)
    wishes.read(operations)
    given = [] if wishes.written.given is None else [wishes.written.given]
    meshes = list(dict.fromkeys((*given, *meshes_of(wishes.found))))
    mesh = mesh_for(wishes.found, meshes or ([] if default is None else [default]))
    module.operation.attributes[MESH] = mlir.StringAttr.get(str(mesh))
    wishes.store(mesh)
    return not meshes


class _WishReader:
    """Finds what the user fixed; takes it off all but marks and constraints."""

    def __init__(self, module: mlir.Module) -> None:
        self.written = WrittenShardings(module)
        self.found: list[Wish] = []
        self._module = module
        self._pads = pads_indivisible(module)
        self._one_device_meshes = one_device_meshes(module)
        self._pins_of_several: list[tuple[mlir.Operation, list[str]]] = []
        self._boundaries: list[tuple[mlir.Operation, Side, list[dict[str, mlir.Attribute]]]] = []

    def read(self, operations: Sequence[mlir.Operation]) -> None:
        """Read the boundaries of functions, then ``operations``."""
        for op in self._module.body.operations:
            if op.operation.name == "func.func":
                self._function(op.operation)
        for op in operations:
            self._op(op)

    def store(self, mesh: Mesh) -> None:
        """Write the pins over ``mesh``."""
        known: dict[int, str] = {}  # by identity: many values share one sharding that was read
        for wish in self.found:
            text = known.get(id(wish.what))
            if text is None:
                text = known[id(wish.what)] = pin_text(wish, mesh)
            wish.store(text)
        for function, side, entries in self._boundaries:
            function.attributes[side] = mlir.ArrayAttr.get(
                [mlir.DictAttr.get(entry) for entry in entries]
            )
        for op, texts in self._pins_of_several:
            op.attributes[PIN] = mlir.ArrayAttr.get([mlir.StringAttr.get(text) for text in texts])

    def _wish(
        self, what: Sharding | Cuts, owner: mlir.Operation, store: Callable[[str], None]
    ) -> None:
        self.found.append(Wish(what, place(owner.location), store))

    # Functions

    def _function(self, function: mlir.Operation) -> None:
        """Arguments and results; those of private functions are aliases and lose theirs."""
        if not len(function.regions[0].blocks):
            return
        block = function.regions[0].blocks[0]
        if _is_sharded(function, "arg_attrs"):
            self._side(function, "arg_attrs", list(block.arguments))
        if _is_sharded(function, "res_attrs"):
            terminator = block.operations[len(block.operations) - 1].operation
            self._side(function, "res_attrs", list(terminator.operands))

    def _side(self, function: mlir.Operation, side: Side, values: Sequence[mlir.Value]) -> None:
        entries = attributes_at(function, side)
        is_main = mlir.StringAttr(function.attributes["sym_name"]).value == "main"
        for entry, value in zip(entries, values, strict=True):
            found = self.written.of_values(
                entry.pop(SDY_SHARDING, None), entry.pop(MHLO_SHARDING, None), [value], function
            )
            if found is None or not is_main or found[0] is None:
                continue

            def store(text: str, entry: dict[str, mlir.Attribute] = entry) -> None:
                entry[PIN] = mlir.StringAttr.get(text)

            self._wish(found[0], function, store)
        self._boundaries.append((function, side, entries))

    # Ops

    def _op(self, op: mlir.Operation) -> None:
        attributes = op.attributes
        target = custom_call_target(op)
        if target in ("SPMDFullToShardShape", "SPMDShardToFullShape"):
            raise ImportModuleError(
                f"{target}: a manual computation in GSPMD form. Lower with Shardy active "
                "(jax_use_shardy_partitioner), where shard_map keeps its body apart.",
                place(op.location),
            )
        if target == MARK and LAYOUT in attributes:
            self._mark(op)
        elif target is not None and self._is_callback(op):
            pass  # JAX says which device makes it, and that stays
        elif op.name == "sdy.manual_computation":
            self._manual_computation(op)
        elif op.name == "sdy.sharding_constraint":
            self._results(op, [self.written.of_constraint(op)])
        elif SDY_SHARDING in attributes or MHLO_SHARDING in attributes:
            found = self.written.of_values(
                attribute_of(op, SDY_SHARDING),
                attribute_of(op, MHLO_SHARDING),
                list(op.results),
                op,
            )
            for name in (SDY_SHARDING, MHLO_SHARDING):
                if name in attributes:
                    del attributes[name]
            if found is not None:
                self._results(op, found)

    def _is_callback(self, op: mlir.Operation) -> bool:
        """Whether a custom call calls back into Python."""
        attributes = op.attributes
        if SDY_SHARDING in attributes:
            return is_on_one_device(op, self._one_device_meshes)
        return MHLO_SHARDING in attributes and is_maximal(attributes[MHLO_SHARDING])

    def _mark(self, op: mlir.Operation) -> None:
        text = text_of(op.attributes[LAYOUT], LAYOUT, op)
        value = op.results[0]
        shape = tuple(value.type.shape) if rank_of(value) else ()
        with errors_at(op):
            if text.startswith("("):
                what = Cuts.parse(text)
                if not self._pads:  # else the importer checks it, which knows how many devices
                    what.check(shape, None, _marked(op), None)
            else:
                what = parse_sharding(text, self.written.given)
                what.check(shape, _marked(op), allow_padding=self._pads)
        self._wish(what, op, lambda pin: _set_pin(op, pin))

    def _manual_computation(self, op: mlir.Operation) -> None:
        shardings = [
            self.written.from_sdy(sharding, op)
            for name in ("in_shardings", "out_shardings")
            for sharding in sdy.TensorShardingPerValueAttr(op.attributes[name]).shardings
        ]
        self._several(op, [*op.operands, *op.results], shardings)

    def _results(self, op: mlir.Operation, shardings: Sequence[Sharding | None]) -> None:
        if len(shardings) != 1:
            self._several(op, op.results, shardings)
        elif shardings[0] is not None:
            self._wish(shardings[0], op, lambda pin: _set_pin(op, pin))

    def _several(
        self,
        op: mlir.Operation,
        values: Sequence[mlir.Value],
        shardings: Sequence[Sharding | None],
    ) -> None:
        """One pin a value; a value without one is open in every dim."""
        texts = [f"[{', '.join(['{?}'] * rank_of(value))}]" for value in values]
        self._pins_of_several.append((op, texts))
        for index, sharding in enumerate(shardings):
            if sharding is not None:

                def store(text: str, index: int = index) -> None:
                    texts[index] = text

                self._wish(sharding, op, store)


def _is_sharded(function: mlir.Operation, side: Side) -> bool:
    """Whether any argument, or any result, of a function has a sharding."""
    return any(
        SDY_SHARDING in entry or MHLO_SHARDING in entry for entry in entries_at(function, side)
    )


def _set_pin(op: mlir.Operation, pin: str) -> None:
    op.attributes[PIN] = mlir.StringAttr.get(pin)


def _marked(mark: mlir.Operation) -> str:
    """What a mark marks, for errors: ``operand 0`` or ``result 1``."""
    role = mlir.StringAttr(mark.attributes[MARK_ROLE]).value
    index = mlir.IntegerAttr(mark.attributes[MARK_INDEX]).value
    return f"{'operand' if role == 'in' else 'result'} {index}"
