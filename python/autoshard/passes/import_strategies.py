"""Gather what the user fixed, whatever form it came in, as ``autoshard.pin``.

before  %0 = stablehlo.add %a, %b {autoshard.in_strategy = ["(4, 1)", "[{dp}, {tp}]"]} ..
        %1 = stablehlo.custom_call @autoshard.mark(%0)
             {autoshard.layout = "mesh[dp=2,sp=2,mp=2] [{mp}, {sp, dp}]", autoshard.role = "in", ..}
        %3 = sdy.sharding_constraint %2 <@mesh, [{"dp"}, {?}]>
after   autoshard.mesh on the module, each call its own callee, composites expanded, a mark on
        every operand and result that an in_strategy or out_strategy names
        %1 = stablehlo.custom_call @autoshard.mark(%0) {autoshard.pin = "[{mp}, {sp, dp}]", ..}
        %3 = sdy.sharding_constraint %2 <@mesh, [{"dp"}, {?}]> {autoshard.pin = "[{dp}, {?}]"}
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

from autoshard.errors import AutoshardError, ImportModuleError, ShardingError, StrategyError
from autoshard.importer.rules import registered_rule
from autoshard.ir import mlir, place, sdy
from autoshard.ir.attributes import (
    IN_STRATEGY,
    LAYOUT,
    MARK,
    MARK_GROUP,
    MARK_INDEX,
    MARK_ROLE,
    MESH,
    MHLO_SHARDING,
    OUT_STRATEGY,
    PIN,
    SDY_SHARDING,
    attribute_of,
    text_of,
)
from autoshard.ir.boundary import pad_indivisible, pads_indivisible
from autoshard.ir.module import is_of_one_device, operations_of
from autoshard.ir.native import nested, run_native
from autoshard.ir.one_device import is_maximal, is_on_one_device, one_device_meshes
from autoshard.passes.base import Pass
from autoshard.rewrites.one_device_collectives import COLLECTIVES, drop_collectives_of_one
from autoshard.sharding import (
    Axis,
    Mesh,
    Sharding,
    from_hlo,
    mesh_without_sub_axes,
    parse_sharding,
    tuple_from_hlo,
)
from autoshard.sharding.placement import prime_factors
from autoshard.sharding.sdy_text import from_sdy, mesh_from_sdy
from autoshard.sharding.strategy import Cuts, check_device_count

_ONE_DEVICE = Mesh((Axis("device", 1),))
"""Of shardings that name no axis, where no mesh is given."""
_MANUAL = "sdy.manual_computation"
_SAYING = frozenset(
    ("stablehlo.custom_call", "stablehlo.composite", "sdy.sharding_constraint", _MANUAL)
)
"""Ops that may say how they are split without an attribute of those above."""


@dataclass(frozen=True)
class ImportStrategies(Pass):
    """Turn marks, constraints and sharding attributes into pins over one mesh.

    The mesh is the module's ``autoshard.mesh``, else its ``sdy.mesh``, else the common refinement
    of the layouts in the marks. It is refined until it expresses every strategy. Constraints over
    one-device meshes say nothing and pin nothing.
    """

    name: ClassVar[str] = "autoshard-import-strategies"

    indivisible: Literal["refuse", "pad"] = "refuse"
    """What to do with a dim that shall be cut but has not so many equal parts; pad: cut it inside
    of the program, where XLA pads. A module that says pad already keeps that."""

    def run(self, module: mlir.Module) -> None:
        """See ``Pass.run``."""
        if self.indivisible == "pad":
            with module.context:
                pad_indivisible(module)
        import_strategies(module)


@dataclass(frozen=True, slots=True)
class ReadModule:
    """A module whose pins are written."""

    has_default_mesh: bool
    """No axis of the plan's mesh is the user's."""
    operations: Sequence[mlir.Operation]
    """All there are, as ``operations_of`` gives them."""


def import_strategies(module: mlir.Module, default: Mesh | None = None) -> ReadModule:
    """What the pass does.

    Args:
        module: Changed in place.
        default: The mesh to use where the module names none.
    """
    with module.context, mlir.Location.unknown():
        _flatten_calls(module)
        operations = operations_of(module.operation)
        saying = _saying(operations)
        alone = [op for op in saying if op.name in COLLECTIVES and is_of_one_device(module)]
        has_new_marks = expand_op_strategies(saying)
        has_new_calls = expand_composites(saying)
        has_fewer = drop_collectives_of_one(alone)
        if has_new_calls:
            _flatten_calls(module)
        if has_new_marks or has_new_calls or has_fewer:
            operations = operations_of(module.operation)
            saying = _saying(operations)
        return ReadModule(_Pins(module).write(saying, default), operations)


def _saying(operations: Sequence[mlir.Operation]) -> list[mlir.Operation]:
    """Those that may say how they are split.

    The bodies of manual computations are left out: they are one device's part, not ours to plan.
    """
    found: list[mlir.Operation] = []
    end_of_manual = 0
    for number, op in enumerate(operations):
        attributes, name = op.attributes, op.name
        if number < end_of_manual or not (
            name in _SAYING
            or name in COLLECTIVES
            or SDY_SHARDING in attributes
            or MHLO_SHARDING in attributes
            or IN_STRATEGY in attributes
            or OUT_STRATEGY in attributes
        ):
            continue
        found.append(op)
        if name == _MANUAL:
            end_of_manual = number + len(operations_of(op))
    return found


def expand_composites(operations: Sequence[mlir.Operation]) -> bool:
    """Call the decomposition of every composite for which the user registered no rule.

    Returns:
        Whether there was any.
    """
    has_any = False
    for op in operations:
        if op.name == "stablehlo.composite" and registered_rule(op) is None:
            has_any = True
            call = mlir.Operation.create(
                "func.call",
                results=[result.type for result in op.results],
                operands=list(op.operands),
                attributes={"callee": op.attributes["decomposition"]},
                loc=op.location,
                ip=mlir.InsertionPoint(op),
            )
            for old, new in zip(op.results, call.results, strict=True):
                old.replace_all_uses_with(new)
            op.erase()
    return has_any


def expand_op_strategies(operations: Sequence[mlir.Operation]) -> bool:
    """Write ``autoshard.in_strategy`` and ``autoshard.out_strategy`` of ops as marks.

    Both are arrays of texts, one an operand or result; ``"None"`` says nothing.

    Returns:
        Whether any op had them.
    """
    has_any = False
    for group, op in enumerate(operations):
        attributes = op.attributes
        if IN_STRATEGY not in attributes and OUT_STRATEGY not in attributes:
            continue
        has_any = True
        for name, role in ((IN_STRATEGY, "in"), (OUT_STRATEGY, "out")):
            if name not in attributes:
                continue
            values = list(op.operands if role == "in" else op.results)
            texts = _texts_of(op, name)
            if len(texts) != len(values):
                raise StrategyError(
                    f"{op.name}: {name} has {len(texts)} strategies, the op has {len(values)} "
                    f'{"operands" if role == "in" else "results"}. Give one each; "None" for those '
                    "you leave open.",
                    place(op.location),
                )
            for index, (text, value) in enumerate(zip(texts, values, strict=True)):
                if text != "None":
                    _insert_mark(op, group, role, index, text, value)
            del op.attributes[name]
    return has_any


def _insert_mark(
    op: mlir.Operation, group: int, role: str, index: int, text: str, value: mlir.Value
) -> None:
    after = mlir.InsertionPoint(op) if role == "in" else mlir.InsertionPoint.after(op)
    mark = mlir.Operation.create(
        "stablehlo.custom_call",
        results=[value.type],
        operands=[value],
        attributes={
            "call_target_name": mlir.StringAttr.get(MARK),
            LAYOUT: mlir.StringAttr.get(text),
            MARK_ROLE: mlir.StringAttr.get(role),
            MARK_GROUP: mlir.IntegerAttr.get(mlir.IntegerType.get_signless(64), group),
            MARK_INDEX: mlir.IntegerAttr.get(mlir.IntegerType.get_signless(64), index),
        },
        loc=op.location,
        ip=after,
    )
    if role == "in":
        op.operands[index] = mark.results[0]
    else:
        value.replace_all_uses_except(mark.results[0], mark)


def _flatten_calls(module: mlir.Module) -> None:
    """Give each call site its own callee, so that each can be planned on its own."""
    run_native(module, nested(("builtin.module",), "sdy-flatten-call-graph"), verify=False)


def all_operations(root: mlir.Operation) -> list[mlir.Operation]:
    """Every op below ``root`` in program order, outer before inner.

    The bodies of manual computations are left out.
    """
    found: list[mlir.Operation] = []
    advance, skip = mlir.WalkResult.ADVANCE, mlir.WalkResult.SKIP

    def visit(op: mlir.Operation) -> mlir.WalkResult:
        found.append(op)
        return skip if op.name == _MANUAL else advance

    root.walk(visit, mlir.WalkOrder.PRE_ORDER)
    return found[1:]


@dataclass(frozen=True, slots=True)
class _Wish:
    """One sharding or tuple strategy found in the module, and how to store its pin."""

    what: Sharding | Cuts
    place: str | None
    store: Callable[[str], None]


class _Pins:
    def __init__(self, module: mlir.Module) -> None:
        self.module = module
        self.pads = pads_indivisible(module)
        self.meshes: dict[str, Mesh] = {}
        self.one_device_meshes = one_device_meshes(module)
        self.read_texts: dict[str, Sharding] = {}
        self.wishes: list[_Wish] = []
        self.several: list[tuple[mlir.Operation, list[str]]] = []
        self.entries: list[tuple[mlir.Operation, str, list[dict[str, mlir.Attribute]]]] = []
        for op in module.body.operations:
            if op.operation.name == "sdy.mesh":
                self.read_mesh(op.operation)
        self.given = self.given_mesh()

    def read_mesh(self, op: mlir.Operation) -> None:
        name = mlir.StringAttr(op.attributes["sym_name"]).value
        try:
            self.meshes[name] = mesh_from_sdy(str(op.attributes["mesh"]))
        except ShardingError:
            # a mesh that stands for one single device: it says nothing about a plan
            self.meshes[name] = Mesh(())

    def given_mesh(self) -> Mesh | None:
        attributes = self.module.operation.attributes
        if MESH in attributes:
            return Mesh.parse(text_of(attributes[MESH], MESH, self.module.operation))
        large = [mesh.without_unit_axes() for mesh in self.meshes.values() if mesh.size > 1]
        return Mesh.common_refinement(large) if large else None

    def write(self, operations: Sequence[mlir.Operation], default: Mesh | None) -> bool:
        """Write pins and mesh; True if the mesh is ``default``, for want of another one.

        Args:
            operations: Those that may say something.
            default: The mesh to use where the module names none.
        """
        for op in self.module.body.operations:
            if op.operation.name == "func.func":
                self.function(op.operation)
        for op in operations:
            self.op(op)
        meshes = self.meshes_said()
        mesh = self.plan_mesh(meshes or ([] if default is None else [default]))
        self.module.operation.attributes[MESH] = mlir.StringAttr.get(str(mesh))
        known: dict[int, str] = {}  # by identity: many values share one sharding that was read
        for wish in self.wishes:
            text = known.get(id(wish.what))
            if text is None:
                text = known[id(wish.what)] = _text(wish, mesh)
            wish.store(text)
        for function, name, entries in self.entries:
            function.attributes[name] = mlir.ArrayAttr.get(
                [mlir.DictAttr.get(entry) for entry in entries]
            )
        for op, texts in self.several:
            op.attributes[PIN] = mlir.ArrayAttr.get([mlir.StringAttr.get(text) for text in texts])
        return not meshes

    def meshes_said(self) -> list[Mesh]:
        """The given mesh and those of all shardings that the user wrote."""
        meshes = [] if self.given is None else [self.given]
        for what in {id(wish.what): wish.what for wish in self.wishes}.values():
            if isinstance(what, Sharding):
                wanted = _mesh_of(what)
                if wanted.size > 1 and wanted not in meshes:
                    meshes.append(wanted)
        return meshes

    def plan_mesh(self, meshes: Sequence[Mesh]) -> Mesh:
        """The mesh that expresses ``meshes`` and every tuple strategy."""
        if not meshes:
            raise ShardingError(
                "no mesh: the module has no autoshard.mesh, no sdy.mesh of several devices and no "
                "layouts. Give one: --mesh=dp=2,tp=4, or mesh= in Python."
            )
        self.check_device_counts(meshes)
        mesh = Mesh.common_refinement(meshes)
        tuples = [wish.what for wish in self.wishes if isinstance(wish.what, Cuts)]
        if not all(_dealable(_pieces(cuts), mesh.axis_sizes) for cuts in tuples):
            mesh = Mesh.common_refinement([mesh, _prime_mesh(mesh)])
        return mesh

    def check_device_counts(self, meshes: Sequence[Mesh]) -> None:
        first = meshes[0]
        for wish in self.wishes:
            if isinstance(wish.what, Sharding) and 1 != wish.what.mesh.size != first.size:
                raise StrategyError(
                    f"layout over {wish.what.mesh} needs {wish.what.mesh.size} devices, the mesh "
                    f"{first} has {first.size}. Give every layout a device matrix of "
                    f"{first.size} devices, or another mesh.",
                    wish.place,
                )
            if isinstance(wish.what, Cuts):
                check_device_count(
                    wish.what.device_count, first.size, f"strategy {wish.what}", wish.place
                )

    # Where wishes are found

    def wish(
        self, what: Sharding | Cuts, owner: mlir.Operation, store: Callable[[str], None]
    ) -> None:
        self.wishes.append(_Wish(what, place(owner.location), store))

    def function(self, function: mlir.Operation) -> None:
        """Arguments and results; those of private functions are aliases and lose theirs."""
        if not len(function.regions[0].blocks):
            return
        is_main = mlir.StringAttr(function.attributes["sym_name"]).value == "main"
        block = function.regions[0].blocks[0]
        terminator = block.operations[len(block.operations) - 1].operation
        for name, values in (
            ("arg_attrs", list(block.arguments)),
            ("res_attrs", list(terminator.operands)),
        ):
            if name not in function.attributes:
                continue
            dictionaries = [
                mlir.DictAttr(entry) for entry in mlir.ArrayAttr(function.attributes[name])
            ]
            if not any(SDY_SHARDING in entry or MHLO_SHARDING in entry for entry in dictionaries):
                continue
            entries = [{named.name: named.attr for named in entry} for entry in dictionaries]
            self.function_entries(function, name, entries, values, is_main)

    def function_entries(
        self,
        function: mlir.Operation,
        name: str,
        entries: list[dict[str, mlir.Attribute]],
        values: Sequence[mlir.Value],
        is_main: bool,
    ) -> None:
        for entry, value in zip(entries, values, strict=True):
            found = self.shardings(
                entry.get(SDY_SHARDING), entry.get(MHLO_SHARDING), [value], function
            )
            entry.pop(SDY_SHARDING, None)
            entry.pop(MHLO_SHARDING, None)
            if found is None or not is_main or found[0] is None:
                continue

            def store(text: str, entry: dict[str, mlir.Attribute] = entry) -> None:
                entry[PIN] = mlir.StringAttr.get(text)

            self.wish(found[0], function, store)
        self.entries.append((function, name, entries))

    def op(self, op: mlir.Operation) -> None:
        attributes = op.attributes
        if op.name == "stablehlo.custom_call":
            target = mlir.StringAttr(attributes["call_target_name"]).value
            if target in ("SPMDFullToShardShape", "SPMDShardToFullShape"):
                raise ImportModuleError(
                    f"{target}: a manual computation in GSPMD form. Lower with Shardy active "
                    "(jax_use_shardy_partitioner), where shard_map keeps its body apart.",
                    place(op.location),
                )
            if target == MARK and LAYOUT in attributes:
                self.mark(op)
                return
            if self.is_callback(op):
                return
        if op.name == _MANUAL:
            self.manual_computation(op)
        elif op.name == "sdy.sharding_constraint":
            self.pin_op(op, [_vacuous_is_none(self.from_sdy(attributes["sharding"], op))])
        elif SDY_SHARDING in attributes or MHLO_SHARDING in attributes:
            found = self.shardings(
                attribute_of(op, SDY_SHARDING),
                attribute_of(op, MHLO_SHARDING),
                list(op.results),
                op,
            )
            for name in (SDY_SHARDING, MHLO_SHARDING):
                if name in attributes:
                    del attributes[name]
            if found is not None:
                self.pin_op(op, found)

    def is_callback(self, op: mlir.Operation) -> bool:
        """A call back into Python: JAX says which device makes it, and that stays."""
        attributes = op.attributes
        if SDY_SHARDING in attributes:
            return is_on_one_device(op, self.one_device_meshes)
        return MHLO_SHARDING in attributes and is_maximal(attributes[MHLO_SHARDING])

    def mark(self, op: mlir.Operation) -> None:
        text = text_of(op.attributes[LAYOUT], LAYOUT, op)
        shape = _shape(op.results[0])
        with _errors_at(op):
            what = Cuts.parse(text) if text.startswith("(") else parse_sharding(text, self.given)
            if isinstance(what, Sharding):
                what.check(shape, _marked(op), allow_padding=self.pads)
            elif not self.pads:  # else the importer checks it, which knows the number of devices
                what.check(shape, None, _marked(op), None)
        self.wish(what, op, lambda pin: _set(op, pin))

    def manual_computation(self, op: mlir.Operation) -> None:
        shardings = [
            self.from_sdy(sharding, op)
            for name in ("in_shardings", "out_shardings")
            for sharding in sdy.TensorShardingPerValueAttr(op.attributes[name]).shardings
        ]
        self.pin_several(op, shardings)

    def pin_op(self, op: mlir.Operation, shardings: Sequence[Sharding | None]) -> None:
        if len(shardings) == 1:
            if shardings[0] is not None:
                self.wish(shardings[0], op, lambda pin: _set(op, pin))
            return
        self.pin_several(op, shardings)

    def pin_several(self, op: mlir.Operation, shardings: Sequence[Sharding | None]) -> None:
        """One pin a value; a value without one is open in every dim."""
        values = [*op.operands, *op.results] if len(shardings) > len(op.results) else op.results
        texts = [f"[{', '.join(['{?}'] * _rank(value))}]" for value in values]
        self.several.append((op, texts))
        for index, sharding in enumerate(shardings):
            if sharding is not None:

                def store(text: str, index: int = index) -> None:
                    texts[index] = text

                self.wish(sharding, op, store)

    # Reading shardings

    def from_sdy(self, attribute: mlir.Attribute, owner: mlir.Operation) -> Sharding:
        text = str(attribute)
        if text not in self.read_texts:
            with _errors_at(owner):
                self.read_texts[text] = from_sdy(text, self.meshes)
        return self.read_texts[text]

    def shardings(
        self,
        shardy: mlir.Attribute | None,
        gspmd: mlir.Attribute | None,
        values: Sequence[mlir.Value],
        owner: mlir.Operation,
    ) -> list[Sharding | None] | None:
        """One sharding a value from either attribute; None if there is none that says something."""
        from_shardy = None if shardy is None else self.read_shardy(shardy, owner)
        from_gspmd = None if gspmd is None else self.read_gspmd(gspmd, values, owner)
        if from_shardy is not None and from_gspmd is not None:
            for one, other in zip(from_shardy, from_gspmd, strict=True):
                if one is not None and other is not None and not one.same_placement(other):
                    raise StrategyError(
                        f"two shardings contradict on one value: {SDY_SHARDING} says {one}, "
                        f"{MHLO_SHARDING} says {other}. Remove one of the two attributes.",
                        place(owner.location),
                    )
        found = from_shardy if from_shardy is not None else from_gspmd
        if found is None or all(sharding is None for sharding in found):
            return None
        return found

    def read_shardy(
        self, attribute: mlir.Attribute, owner: mlir.Operation
    ) -> list[Sharding | None]:
        if sdy.TensorShardingPerValueAttr.isinstance(attribute):
            several = sdy.TensorShardingPerValueAttr(attribute).shardings
            return [_vacuous_is_none(self.from_sdy(one, owner)) for one in several]
        return [_vacuous_is_none(self.from_sdy(attribute, owner))]

    def read_gspmd(
        self, attribute: mlir.Attribute, values: Sequence[mlir.Value], owner: mlir.Operation
    ) -> list[Sharding | None]:
        text = text_of(attribute, MHLO_SHARDING, owner)
        ranks = [_rank(value) for value in values]
        if not any(ranks):
            return [None] * len(ranks)  # a scalar is on every device, whatever the text says
        if self.given is None and text == "{replicated}":
            return [Sharding.fully_replicated(_ONE_DEVICE, rank) for rank in ranks]
        if self.given is None:
            raise ShardingError(
                f"{MHLO_SHARDING} = {text}: no mesh gives names to its devices. Give one: "
                "--mesh=dp=2,tp=4, or mesh= in Python.",
                place(owner.location),
            )
        with _errors_at(owner):
            if len(values) != 1:
                return list(tuple_from_hlo(text, self.given, ranks))
            return [from_hlo(text, self.given, ranks[0])]


@contextmanager
def _errors_at(owner: mlir.Operation) -> Generator[None]:
    """Give errors about a text the place of the op that carries it."""
    try:
        yield
    except AutoshardError as error:
        if error.location is None and (where := place(owner.location)) is not None:
            raise type(error)(error.message, where) from error
        raise


def _texts_of(op: mlir.Operation, name: str) -> list[str]:
    """The texts of an array of strings."""
    attribute = op.attributes[name]
    if not isinstance(attribute, mlir.ArrayAttr):
        raise StrategyError(
            f'{op.name}: {name} = {attribute} is no list of texts. Write it as {name} = ["(2, 1)", '
            '"None"].',
            place(op.location),
        )
    return [text_of(text, name, op) for text in attribute]


def _set(op: mlir.Operation, pin: str) -> None:
    op.attributes[PIN] = mlir.StringAttr.get(pin)


def _rank(value: mlir.Value) -> int:
    return value.type.rank if isinstance(value.type, mlir.RankedTensorType) else 0


def _shape(value: mlir.Value) -> tuple[int, ...]:
    return tuple(value.type.shape) if isinstance(value.type, mlir.RankedTensorType) else ()


def _marked(mark: mlir.Operation) -> str:
    """What a mark marks, for errors: ``operand 0`` or ``result 1``."""
    role = mlir.StringAttr(mark.attributes[MARK_ROLE]).value
    index = mlir.IntegerAttr(mark.attributes[MARK_INDEX]).value
    return f"{'operand' if role == 'in' else 'result'} {index}"


def _vacuous_is_none(sharding: Sharding) -> Sharding | None:
    """A constraint over one device, or with every dim open and uncut, says nothing."""
    if sharding.mesh.size == 1 or (
        sharding.rank
        and all(sharding.open_dims)
        and not any((*sharding.dims, sharding.replicated, sharding.unreduced, sharding.manual))
    ):
        return None
    return sharding


def _text(wish: _Wish, mesh: Mesh) -> str:
    """The pin over the plan's mesh."""
    if isinstance(wish.what, Cuts):
        return str(wish.what)
    if wish.what.mesh is _ONE_DEVICE:
        return str(Sharding.fully_replicated(mesh, wish.what.rank))
    try:
        sharding = wish.what.on(mesh.without_unit_axes())
    except ShardingError as error:
        raise StrategyError(error.message, wish.place) from error
    if sharding.unreduced or sharding.manual:
        raise StrategyError(
            f"sharding {sharding} has unreduced or manual axes. autoshard plans finished values "
            "that all devices share: pin the dims only.",
            wish.place,
        )
    return str(sharding)


def _mesh_of(sharding: Sharding) -> Mesh:
    """The mesh on which ``sharding`` needs whole axes only."""
    groups = (*sharding.dims, sharding.replicated)
    if any(ref.size is not None for refs in groups for ref in refs):
        return mesh_without_sub_axes([sharding]).without_unit_axes()
    return sharding.mesh.without_unit_axes()


def _pieces(cuts: Cuts) -> list[int]:
    return [count for count in cuts.counts if count is not None]


def _dealable(counts: Sequence[int], sizes: Sequence[int]) -> bool:
    """Can disjoint sets of axes have these products?"""
    if all(count == 1 for count in counts):
        return True
    if not sizes:
        return False
    first, *rest = sizes
    return any(
        count % first == 0 and _dealable([*counts[:i], count // first, *counts[i + 1 :]], rest)
        for i, count in enumerate(counts)
    ) or _dealable(counts, rest)


def _prime_mesh(mesh: Mesh) -> Mesh:
    """The same devices with every axis split into primes."""
    primes = [prime for axis in mesh.axes for prime in prime_factors(axis.size)]
    axes = tuple(Axis(f"prime_{number}", prime) for number, prime in enumerate(primes))
    return Mesh(axes, mesh.device_ids)
