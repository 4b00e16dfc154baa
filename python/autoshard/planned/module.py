"""Read a planned module: for every op, what each operand must be and what each result is.

Planning leaves three attributes: ``autoshard.mesh`` on the module, ``mhlo.sharding`` on every
function argument, function result and op, ``autoshard.strategy`` on every op with a factor rule.
Everything is read and checked before an exporter changes the first op.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from autoshard.compilers.compiler import Compiler
from autoshard.errors import AutoshardError, PlanError, ShardingError
from autoshard.ir import mlir
from autoshard.ir.attributes import MARK, MESH, MHLO_SHARDING, PLAN, STRATEGY, TRANSFER
from autoshard.ir.boundary import allows_all_to_all, main_function, pads_indivisible
from autoshard.ir.locations import place
from autoshard.ir.module import functions_of
from autoshard.ir.one_device import one_device_meshes
from autoshard.planned.summary import PlanSummary
from autoshard.sharding.hlo_text import NamedHlo, from_hlo, parse_hlo, to_v2
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.padding import padded_shape
from autoshard.sharding.sharding import AxisRef, Sharding
from autoshard.sharding.text import OpStrategy

OWN_PREFIX = "autoshard."

_RECOMPUTED = frozenset({"stablehlo.constant", "stablehlo.iota"})
_DATA_FLOW = frozenset({"stablehlo.case", "stablehlo.if"})
_IDENTITIES = frozenset(
    {"sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier", "sdy.data_flow_edge"}
)
_IDENTITY_TARGETS = frozenset({MARK, TRANSFER, "Sharding"})
_PLACED_ELSEWHERE = re.compile(r"^\{(maximal|manual)\b")


class Kind(Enum):
    """How an exporter treats an op."""

    COMPUTE = "compute"
    """Reads its operands as wanted; its results are pinned."""
    RECOMPUTED = "recomputed"
    """A constant, an iota or a broadcast scalar: cheaper to make again than to move."""
    IDENTITY = "identity"
    """A mark or an old constraint: disappears, its reader gets the operand in its sharding."""
    DROPPED = "dropped"
    """An op without results that only steers a propagation which the plan replaces."""


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """One of the plan's distinct shardings; two of them are the same only if identical objects."""

    sharding: Sharding
    """Closed, whole axes or sub-axes larger than 1, on the plan's mesh."""
    rank: int


@dataclass(frozen=True, slots=True)
class PlannedBlock:
    """One block of a function or of a loop or branch."""

    arguments: tuple[tuple[mlir.Value, Placement | None], ...]
    ops: tuple[PlannedOp, ...]


@dataclass(frozen=True, slots=True)
class PlannedOp:
    """One op and what the plan says of it. None: leave this value as it is."""

    op: mlir.Operation
    kind: Kind
    operands: tuple[Placement | None, ...]
    """What each operand must be when the op runs."""
    computed: tuple[Placement | None, ...]
    """What each result is right after the op, partial sums already reduced."""
    results: tuple[Placement | None, ...]
    """What each result is for its readers."""
    blocks: tuple[PlannedBlock, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedFunction:
    """A function, entry or callee."""

    op: mlir.Operation
    is_entry: bool
    """Called from outside the module: its boundary carries the shardings as attributes."""
    body: PlannedBlock
    arguments: tuple[Placement | None, ...]
    results: tuple[Placement | None, ...]


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where the arguments and results of a function are; None for what is no tensor."""

    arguments: tuple[Placement | None, ...]
    results: tuple[Placement | None, ...]


@dataclass(frozen=True, slots=True)
class PlannedModule:
    """All entries and the functions that they call, in module order."""

    module: mlir.Module
    mesh: Mesh
    functions: tuple[PlannedFunction, ...]
    has_all_to_all: bool
    """False: it is resharded without all-to-all."""
    pads: bool
    """True: inside, dims may be cut that have to be padded for it."""
    compiler: Compiler | None
    """Compiler of the cluster that it is planned for; None: it is planned for none."""
    one_device_meshes: frozenset[str]
    """Symbols of the ``sdy.mesh`` ops that name a single device; calls into Python use them."""
    placements: dict[tuple[tuple[AxisRef, ...], ...], Placement]
    """All there are, by what they say."""

    def may_be_compiled_so(self, rule: str) -> bool:
        """Whether the compiler does what a rule says; a plan without a cluster is for any."""
        return self.compiler is None or self.compiler.does(rule)

    def placement(self, dims: tuple[tuple[AxisRef, ...], ...]) -> Placement:
        """The one object for a sharding without axes of size 1."""
        found = self.placements.get(dims)
        if found is None:
            found = self.placements[dims] = Placement(Sharding(self.mesh, dims), len(dims))
        return found


def read_plan(module: mlir.Module) -> PlannedModule:
    """What the plan says about every value of ``module``.

    Raises:
        PlanError: No ``autoshard.mesh``, an op without ``mhlo.sharding``, or a strategy that does
            not fit the op.
        ShardingError: A sharding that cannot be read, has the wrong rank or does not divide.
    """
    return _Reader(module).read()


def read_boundary(module: mlir.Module) -> Boundary:
    """What the plan says about the arguments and results of ``main``, without reading its ops.

    Raises:
        PlanError: No ``autoshard.mesh``, or an argument or result without ``mhlo.sharding``.
        ShardingError: A sharding that cannot be read, has the wrong rank or does not divide.
    """
    return _Reader(module).boundary(main_function(module))


def _text(attribute: mlir.Attribute) -> str:
    return mlir.StringAttr(attribute).value


def _is_public(function: mlir.Operation) -> bool:
    visibility = function.attributes.get("sym_visibility")
    return visibility is None or _text(visibility) == "public"


def _growing(names: list[str]) -> Iterator[str]:
    """The elements of a list that grows while they are read."""
    position = 0
    while position < len(names):
        yield names[position]
        position += 1


class _Reader:
    """One walk over a module; each distinct attribute is parsed once."""

    def __init__(self, module: mlir.Module) -> None:
        self.module = module
        self.mesh = self._read_mesh()
        self.pads = pads_indivisible(module)
        self.interned: dict[tuple[tuple[AxisRef, ...], ...], Placement] = {}
        self.values: dict[tuple[mlir.Attribute, mlir.Type], Placement | None] = {}
        self.tuples: dict[
            tuple[mlir.Attribute, tuple[mlir.Type, ...]], tuple[Placement | None, ...]
        ]
        self.tuples = {}
        self.strategies: dict[
            tuple[mlir.Attribute, tuple[mlir.Type, ...]], tuple[tuple[Placement | None, ...], ...]
        ] = {}
        self.boundaries: dict[str, Boundary] = {}
        self.functions = {
            name: function
            for name, function in functions_of(module).items()
            if len(function.regions[0].blocks)
        }
        self.reached: list[str] = []
        """Entries, and what they call, in the order of discovery."""

    def read(self) -> PlannedModule:
        for name in self.functions:
            if self._is_entry(name):
                self._reach(name)
        read = {name: self._function(self.functions[name]) for name in _growing(self.reached)}
        return PlannedModule(
            self.module,
            self.mesh,
            tuple(read[name] for name in self.functions if name in read),
            allows_all_to_all(self.module),
            self.pads,
            self._compiler(),
            one_device_meshes(self.module),
            self.interned,
        )

    def _read_mesh(self) -> Mesh:
        attribute = self.module.operation.attributes.get(MESH)
        if attribute is None:
            raise PlanError(
                f"the module has no {MESH}: nothing has been planned. Run "
                "autoshard-sharding-propagation (or another planning pass) before the export.",
                place(self.module.operation.location),
            )
        return Mesh.parse(_text(attribute))

    def _compiler(self) -> Compiler | None:
        attribute = self.module.operation.attributes.get(PLAN)
        if attribute is None:
            return None
        return PlanSummary.from_json(_text(attribute)).read_cluster().compiler

    # Functions ------------------------------------------------------------------------------

    def boundary(self, function: mlir.Operation) -> Boundary:
        function_type = mlir.FunctionType(mlir.TypeAttr(function.attributes["function_type"]).value)
        return Boundary(
            self._side_of(function, "arg_attrs", "argument", function_type.inputs),
            self._side_of(function, "res_attrs", "result", function_type.results),
        )

    def _side_of(
        self, function: mlir.Operation, key: str, role: str, types: Sequence[mlir.Type]
    ) -> tuple[Placement | None, ...]:
        attributes = function.attributes.get(key)
        dicts = mlir.ArrayAttr(attributes) if attributes is not None else [None] * len(types)
        symbol = _text(function.attributes["sym_name"])
        is_entry = self._is_entry(symbol)
        found: list[Placement | None] = []
        checked: set[tuple[int, mlir.Type]] = set()
        for number, (attribute_dict, type_) in enumerate(zip(dicts, types, strict=True)):
            name = f"{role} {number} of @{symbol}"
            attribute = None
            if attribute_dict is not None and MHLO_SHARDING in mlir.DictAttr(attribute_dict):
                attribute = mlir.DictAttr(attribute_dict)[MHLO_SHARDING]
            placement = self._value(attribute, type_, name, function)
            if placement is not None and is_entry and (id(placement), type_) not in checked:
                self._check_boundary(placement, type_, name, function)
                checked.add((id(placement), type_))
            found.append(placement)
        return tuple(found)

    def _check_boundary(
        self, placement: Placement, type_: mlir.Type, name: str, function: mlir.Operation
    ) -> None:
        """Nothing pads what enters and leaves a program: JAX refuses it."""
        try:
            placement.sharding.check(mlir.RankedTensorType(type_).shape)
        except ShardingError as error:
            raise ShardingError(f"{name}: {error.message}", place(function.location)) from error

    def _function(self, function: mlir.Operation) -> PlannedFunction:
        boundary = self.boundaries[_text(function.attributes["sym_name"])]
        (block,) = function.regions[0].blocks
        return PlannedFunction(
            op=function,
            is_entry=self._is_entry(_text(function.attributes["sym_name"])),
            body=self._block(block, boundary.arguments, boundary.results),
            arguments=boundary.arguments,
            results=boundary.results,
        )

    def _block(
        self,
        block: mlir.Block,
        arguments: tuple[Placement | None, ...],
        yielded: tuple[Placement | None, ...],
    ) -> PlannedBlock:
        return PlannedBlock(
            tuple(zip(block.arguments, arguments, strict=True)),
            tuple(self._op(op.operation, yielded) for op in block.operations),
        )

    # Ops ------------------------------------------------------------------------------------

    def _op(self, op: mlir.Operation, yielded: tuple[Placement | None, ...]) -> PlannedOp:
        name = op.name
        if name in ("func.return", "stablehlo.return"):
            return PlannedOp(op, Kind.COMPUTE, yielded, (), ())
        if name == "sdy.sharding_group":
            return PlannedOp(op, Kind.DROPPED, (None,), (), ())
        results = self._results(op)
        if name == "stablehlo.while":
            return self._while(op, results)
        if name in _DATA_FLOW:
            blocks = tuple(self._block(region.blocks[0], (), results) for region in op.regions)
            return PlannedOp(op, Kind.COMPUTE, (None,), results, results, blocks)
        if name == "func.call":
            callee = self._callee(op)
            return PlannedOp(op, Kind.COMPUTE, callee.arguments, callee.results, results)
        if name == "stablehlo.optimization_barrier":
            return PlannedOp(op, Kind.COMPUTE, results, results, results)
        if _is_identity(op, name):
            return PlannedOp(op, Kind.IDENTITY, results, results, results)
        if name in _RECOMPUTED or _is_broadcast_scalar(op, name):
            wants = tuple(None for _ in op.operands)
            return PlannedOp(op, Kind.RECOMPUTED, wants, results, results)
        strategy = op.attributes.get(STRATEGY)
        if strategy is None:
            wants = tuple(None for _ in op.operands)
            return PlannedOp(op, Kind.COMPUTE, wants, results, results)
        operands, computed = self._strategy(op, strategy)
        return PlannedOp(op, Kind.COMPUTE, operands, computed, results)

    def _while(self, op: mlir.Operation, carried: tuple[Placement | None, ...]) -> PlannedOp:
        condition, body = op.regions
        predicate: tuple[Placement | None, ...] = (None,)
        blocks = (
            self._block(condition.blocks[0], carried, predicate),
            self._block(body.blocks[0], carried, carried),
        )
        return PlannedOp(op, Kind.COMPUTE, carried, carried, carried, blocks)

    def _is_entry(self, name: str) -> bool:
        """``main``, else every public function.

        Beside a ``main``, public functions are regions of custom calls, as comparators are.
        """
        return name == "main" if "main" in self.functions else _is_public(self.functions[name])

    def _callee(self, op: mlir.Operation) -> Boundary:
        return self._reach(mlir.FlatSymbolRefAttr(op.attributes["callee"]).value)

    def _reach(self, name: str) -> Boundary:
        """The boundary of a function that is planned.

        Functions that nobody calls are decompositions of composites, which are planned as one op.
        """
        if name not in self.boundaries:
            self.boundaries[name] = self.boundary(self.functions[name])
            self.reached.append(name)
        return self.boundaries[name]

    def _results(self, op: mlir.Operation) -> tuple[Placement | None, ...]:
        results = op.results
        count = len(results)
        if count == 0:
            return ()
        attribute = op.attributes.get(MHLO_SHARDING)
        if count == 1:
            return (self._value(attribute, results[0].type, f"the result of {op.name}", op),)
        types = tuple(result.type for result in results)
        if attribute is None:
            if any(isinstance(type_, mlir.RankedTensorType) for type_ in types):
                raise _no_sharding(f"{op.name} with {count} results", op)
            return (None,) * count
        key = (attribute, types)
        found = self.tuples.get(key)
        if found is None:
            found = self.tuples[key] = self._tuple(op, _text(attribute), types)
        return found

    def _tuple(
        self, op: mlir.Operation, text: str, types: tuple[mlir.Type, ...]
    ) -> tuple[Placement | None, ...]:
        try:
            read = parse_hlo(text)
        except AutoshardError as error:
            raise type(error)(f"{op.name}: {error.message}", place(op.location)) from error
        elements = read if isinstance(read, tuple) else (read,)
        if len(elements) != len(types):
            raise ShardingError(
                f"{op.name} has {len(types)} results, its {MHLO_SHARDING} {text!r} has "
                f"{len(elements)} elements. Write a tuple with one element per result.",
                place(op.location),
            )
        return tuple(
            self._read_value(
                to_v2(element.sharding) if isinstance(element, NamedHlo) else str(element),
                type_,
                f"result {number} of {op.name}",
                op,
            )
            for number, (element, type_) in enumerate(zip(elements, types, strict=True))
        )

    # Shardings ------------------------------------------------------------------------------

    def _value(
        self, attribute: mlir.Attribute | None, type_: mlir.Type, name: str, op: mlir.Operation
    ) -> Placement | None:
        if attribute is None:
            if not isinstance(type_, mlir.RankedTensorType):
                return None
            raise _no_sharding(name, op)
        key = (attribute, type_)
        if key not in self.values:
            self.values[key] = self._read_value(_text(attribute), type_, name, op)
        return self.values[key]

    def _read_value(
        self, text: str, type_: mlir.Type, name: str, op: mlir.Operation
    ) -> Placement | None:
        if not isinstance(type_, mlir.RankedTensorType) or _PLACED_ELSEWHERE.match(text):
            return None
        try:
            return self._checked(from_hlo(text, self.mesh, type_.rank), type_)
        except AutoshardError as error:
            raise type(error)(f"{name}: {error.message}", place(op.location)) from error

    def _checked(self, sharding: Sharding, type_: mlir.RankedTensorType) -> Placement:
        """The one object for this placement: closed, and without axes of size 1."""
        shape = padded_shape(type_.shape, self.mesh.size) if self.pads else type_.shape
        sharding.check(shape)
        dims = tuple(
            tuple(axis for axis in dim if sharding.axis_size(axis) > 1) for dim in sharding.dims
        )
        found = self.interned.get(dims)
        if found is None:
            found = self.interned[dims] = Placement(Sharding(self.mesh, dims), len(dims))
        return found

    def _strategy(
        self, op: mlir.Operation, attribute: mlir.Attribute
    ) -> tuple[tuple[Placement | None, ...], ...]:
        operand_types = [operand.type for operand in op.operands]
        result_types = [result.type for result in op.results]
        key = (attribute, (*operand_types, *result_types))
        found = self.strategies.get(key)
        if found is None:
            found = self._read_strategy(op, _text(attribute), operand_types, result_types)
            self.strategies[key] = found
        return found

    def _read_strategy(
        self,
        op: mlir.Operation,
        text: str,
        operand_types: Sequence[mlir.Type],
        result_types: Sequence[mlir.Type],
    ) -> tuple[tuple[Placement | None, ...], ...]:
        try:
            strategy = OpStrategy.parse(text, self.mesh)
            if [len(strategy.operands), len(strategy.results)] != [
                len(operand_types),
                len(result_types),
            ]:
                raise PlanError(
                    f"does not have one sharding for each of {len(operand_types)} operands and "
                    f"{len(result_types)} results. Write it as "
                    "'[{dp}, {}], [{}, {tp}] -> [{dp}, {tp}]'."
                )
            return (
                self._side(strategy.operands, operand_types),
                self._side(strategy.results, result_types),
            )
        except AutoshardError as error:
            message = f"{op.name}: {STRATEGY} {text!r}: {error.message}"
            raise type(error)(message, place(op.location)) from error

    def _side(
        self, shardings: Sequence[Sharding], types: Sequence[mlir.Type]
    ) -> tuple[Placement | None, ...]:
        return tuple(
            self._checked(sharding, type_) if isinstance(type_, mlir.RankedTensorType) else None
            for sharding, type_ in zip(shardings, types, strict=True)
        )


def _no_sharding(name: str, op: mlir.Operation) -> PlanError:
    return PlanError(
        f"{name} has no {MHLO_SHARDING}: the plan is not complete. Run a planning pass over "
        "the whole module before the export.",
        place(op.location),
    )


def _is_identity(op: mlir.Operation, name: str) -> bool:
    if name == "stablehlo.custom_call":
        return _text(op.attributes["call_target_name"]) in _IDENTITY_TARGETS
    return name in _IDENTITIES


def _is_broadcast_scalar(op: mlir.Operation, name: str) -> bool:
    return name == "stablehlo.broadcast_in_dim" and op.operands[0].type.rank == 0
