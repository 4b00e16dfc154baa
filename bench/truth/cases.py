"""Ops of programs, each as a module of its own, and the cuts to try on it.

    op        stablehlo.pad %0, %1, low = [1, 0] ..
    rule      ([i, j], [])->([i, j]) permutation={i}
    job       i cut over axis "a" of the mesh a=2,b=4: arguments, operands and results pinned

A job pins as the exporter does: a constraint on every operand right before the op, and on every
result right behind it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations, permutations
from math import prod
from typing import Any

from autoshard.compilers.partitioner import DTYPES
from autoshard.importer.factor_roles import UNEVEN_CUT, role_of, traits_of
from autoshard.importer.factors import FactorKind
from autoshard.importer.rules import FactorRule, partitioners_rule_of
from autoshard.ir import mlir, new_context, parse_bytes, stablehlo
from autoshard.ir.module import operations_of
from autoshard.planned.write import populate_rules, remove_rules
from autoshard.sharding import Mesh, Sharding
from autoshard.sharding.hlo_text import to_v2
from autoshard.sharding.sdy_text import mesh_to_sdy, to_sdy
from bench.truth.programs import Program

RULE = "sdy.sharding_rule"
PARTITIONERS = ("shardy", "gspmd")

SINGLES = (("a=8", "a"), ("a=2,b=4", "a"), ("a=2,b=4", "b"), ("a=2,b=4", "ba"), ("a=4,b=2", "ab"))
"""Meshes, and axes that cut one factor; an axis is a letter."""

PAIRS = (("a=2,b=4", "a", "b"), ("a=2,b=4", "b", "a"), ("a=2,b=2,c=2", "a", "c"))

INEXACT = frozenset(
    f"stablehlo.{name}"
    for name in (
        *(
            "cholesky",
            "triangular_solve",
            "fft",
            "divide",
            "exponential",
            "tanh",
            "log",
            "logistic",
        ),
        *(
            "log_plus_one",
            "exponential_minus_one",
            "sqrt",
            "rsqrt",
            "cbrt",
            "sine",
            "cosine",
            "tan",
        ),
        *("atan2", "power"),
    )
)
TOLERANCE = 1e-4
"""Tolerance of ops whose results are rounded."""

Cut = Mapping[int, str]
"""Factor -> axes."""

_INDEX_OPERANDS = {
    "stablehlo.dynamic_slice": lambda count: range(1, count),
    "stablehlo.dynamic_update_slice": lambda count: range(2, count),
}


@dataclass(frozen=True)
class Operand:
    """What to give an op."""

    shape: tuple[int, ...]
    dtype: str
    fill: str = "values"
    """``start``: one start of a slice; ``vectors``: vectors of indices."""
    limits: tuple[int, ...] = ()
    """The largest start within bounds, for each component of an index."""
    sizes: tuple[int, ...] = ()
    """Sizes of the operand's dims that the components index."""
    windows: tuple[int, ...] = ()
    """What is taken or written there."""
    batch_dims: tuple[int, ...] = ()
    distinct: bool = False
    sorted: bool = False


@dataclass(frozen=True)
class Pins:
    """Axes of factors: while an op runs, of its operands before and of its results after it."""

    mesh: str
    cut: Cut
    before: Cut = field(default_factory=dict[int, str])
    after: Cut = field(default_factory=dict[int, str])

    @property
    def is_whole_outside(self) -> bool:
        """Whether arguments come, and results leave, without any cut."""
        return not self.before and not self.after

    def roles(self, roles: Sequence[str]) -> list[str]:
        """Roles of the factors that are cut; what is cut only before or after the op says so."""
        found = [roles[factor] for factor in self.cut]
        for more, suffix in ((self.before, "before"), (self.after, "after")):
            moved = [factor for factor, axes in more.items() if self.cut.get(factor) != axes]
            found += [f"{roles[factor]}_{suffix}" for factor in moved]
        return sorted(found)

    def described(self, roles: Sequence[str]) -> str:
        """``batch:a image:b on a=2,b=4``."""

        def text(cut: Cut) -> str:
            return " ".join(f"{roles[f]}:{axes}" for f, axes in sorted(cut.items())) or "whole"

        return (
            f"{text(self.cut)} on {self.mesh}, before {text(self.before)}, after {text(self.after)}"
        )


@dataclass
class Instance:
    """One op of a program, alone in a module."""

    op: mlir.Operation
    rule: FactorRule
    text: str
    operands: list[Operand]
    traits: frozenset[str]
    dtype: str
    """One of the traits for it; empty: float32."""
    roles: list[str]
    module: mlir.Module = field(repr=False)
    """Keeps the op alive."""

    @property
    def is_plain(self) -> bool:
        """Whether the op has no attributes that could matter."""
        return not self.traits and self.op.name not in _WITH_WORDS

    @property
    def name(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Job:
    """One op, one cut, one partitioner."""

    id: str
    op: str
    dtype: str
    traits: list[str]
    roles: list[str]
    cut: str
    """``batch:a image:b on a=2,b=4``."""
    partitioner: str
    mesh: str
    devices: int
    results: int
    whole: str
    text: str
    operands: list[dict[str, Any]]
    tolerance: float


# Ops of programs --------------------------------------------------------------------------------


def instances(programs: Iterable[Program]) -> Iterator[Instance]:
    """Each different op of the programs once."""
    known: set[str] = set()
    plain: dict[tuple[str, str], int] = {}
    for program in programs:
        context = new_context()
        module = parse_bytes(program.lowered().encode(), context, program.group)
        with context, mlir.Location.unknown():
            populate_rules(module)
            for op in operations_of(module.operation):
                found = _instance(op, module)
                if found is None or found.text in known:
                    continue
                key = (op.name, found.dtype)
                if not found.traits and op.name not in _WITH_WORDS:
                    plain[key] = plain.get(key, 0) + 1
                    if plain[key] > _MOST_PLAIN:
                        continue
                known.add(found.text)
                yield found


_WITH_WORDS = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("convolution", "dot_general", "dynamic_slice", "dynamic_update_slice", "gather", "pad"),
        *("reduce_window", "reverse", "scatter", "select_and_scatter", "slice", "concatenate"),
        *("reshape", "broadcast_in_dim", "sort", "rng_bit_generator", "bitcast_convert"),
    )
)
_MOST_PLAIN = 2
"""Instances of one op and type, of ops that have no attributes which matter."""


def _instance(op: mlir.Operation, owner: mlir.Module) -> Instance | None:
    if not op.name.startswith(("stablehlo.", "chlo.")) or op.name == "stablehlo.custom_call":
        return None
    if not op.results or any(region.blocks and _is_loop(op) for region in op.regions):
        return None
    if not all(isinstance(v.type, mlir.RankedTensorType) for v in (*op.operands, *op.results)):
        return None
    attribute = op.attributes.get(RULE)
    rule = partitioners_rule_of(op, attribute)
    if not any(factor.size > 1 for factor in rule.factors):
        return None
    operands = _operands(op)
    module = _module(op, _held_apart(op), None, "", None)
    return Instance(
        op,
        rule,
        module,
        operands,
        traits_of(op) - DTYPES,
        " ".join(traits_of(op) & DTYPES),
        [role_of(op, rule, factor) for factor in range(len(rule.factors))],
        owner,
    )


def _is_loop(op: mlir.Operation) -> bool:
    return op.name in ("stablehlo.while", "stablehlo.case", "stablehlo.if")


def _held_apart(op: mlir.Operation) -> list[mlir.Value]:
    """Operands that become arguments: all but constants of rank 0."""
    return [value for value in op.operands if _constant(value) is None]


def _constant(value: mlir.Value) -> mlir.Operation | None:
    owner = value.owner
    if isinstance(owner, mlir.Block) or mlir.RankedTensorType(value.type).rank:
        return None
    operation = owner.operation
    if operation.name == "stablehlo.broadcast_in_dim":
        return _constant(operation.operands[0])
    return operation if operation.name == "stablehlo.constant" and not _is_index(value) else None


def _is_index(value: mlir.Value) -> bool:
    """Whether the value starts a dynamic slice somewhere: it must be free there."""
    for use in value.uses:
        user = use.owner.operation
        indices = _INDEX_OPERANDS.get(user.name)
        if indices is not None and use.operand_number in indices(len(user.operands)):
            return True
    return False


def _operands(op: mlir.Operation) -> list[Operand]:
    found = []
    scatter_indices = (len(op.operands) - 1) // 2
    for number, value in enumerate(op.operands):
        if _constant(value) is not None:
            continue
        shape, dtype = _shape(value), _numpy_name(value)
        indices = _INDEX_OPERANDS.get(op.name)
        if indices is not None and number in indices(len(op.operands)):
            found.append(_start(op, number - indices(len(op.operands))[0], shape, dtype))
        elif op.name == "stablehlo.gather" and number == 1:
            found.append(_gathered(op, shape, dtype))
        elif op.name == "stablehlo.scatter" and number == scatter_indices:
            found.append(_scattered(op, shape, dtype))
        elif op.name == "stablehlo.cholesky":
            found.append(Operand(shape, dtype, "positive_definite"))
        elif op.name == "stablehlo.triangular_solve" and number == 0:
            found.append(Operand(shape, dtype, "triangular"))
        else:
            found.append(Operand(shape, dtype))
    return found


def _start(op: mlir.Operation, dim: int, shape: tuple[int, ...], dtype: str) -> Operand:
    size = _shape(op.operands[0])[dim]
    part = op.results[0] if op.name == "stablehlo.dynamic_slice" else op.operands[1]
    return Operand(shape, dtype, "start", (size - _shape(part)[dim],), (size,))


def _gathered(op: mlir.Operation, shape: tuple[int, ...], dtype: str) -> Operand:
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    sizes = list(mlir.DenseI64ArrayAttr(op.attributes["slice_sizes"]))
    dims = list(numbers.start_index_map)
    return Operand(
        shape,
        dtype,
        "vectors",
        tuple(_shape(op.operands[0])[dim] - sizes[dim] for dim in dims),
        tuple(_shape(op.operands[0])[dim] for dim in dims),
        tuple(sizes[dim] for dim in dims),
        tuple(numbers.start_indices_batching_dims),
        sorted=_flag(op, "indices_are_sorted"),
    )


def _scattered(op: mlir.Operation, shape: tuple[int, ...], dtype: str) -> Operand:
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    gone = {*numbers.inserted_window_dims, *numbers.input_batching_dims}
    updates = _shape(op.operands[len(op.operands) - 1])
    window = [updates[dim] for dim in numbers.update_window_dims]
    operand = _shape(op.operands[0])
    sizes = [1 if dim in gone else window.pop(0) for dim in range(len(operand))]
    dims = list(numbers.scattered_dims_to_operand_dims)
    is_last_one_kept = len(op.regions[0].blocks[0].operations) == 1
    return Operand(
        shape,
        dtype,
        "vectors",
        tuple(operand[dim] - sizes[dim] for dim in dims),
        tuple(operand[dim] for dim in dims),
        tuple(sizes[dim] for dim in dims),
        tuple(numbers.scatter_indices_batching_dims),
        distinct=is_last_one_kept or _flag(op, "unique_indices"),
        sorted=_flag(op, "indices_are_sorted"),
    )


def _flag(op: mlir.Operation, name: str) -> bool:
    return name in op.attributes and mlir.BoolAttr(op.attributes[name]).value


def _shape(value: mlir.Value) -> tuple[int, ...]:
    return tuple(mlir.RankedTensorType(value.type).shape)


_NUMPY = {
    "f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16", "i1": "bool",
    "complex<f32>": "complex64",
}  # fmt: skip


def _numpy_name(value: mlir.Value) -> str:
    name = str(mlir.RankedTensorType(value.type).element_type)
    if name in _NUMPY:
        return _NUMPY[name]
    return name.replace("ui", "uint") if name.startswith("ui") else name.replace("i", "int")


# Cuts -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """One job that is not written yet."""

    instance: Instance
    pins: Pins
    partitioner: str
    is_padded: bool
    """Dims are cut into parts that are not equal."""

    @property
    def traits(self) -> list[str]:
        """Traits of the op and of the cut, types of numbers left out."""
        return sorted(self.instance.traits | ({UNEVEN_CUT} if self.is_padded else set()))

    @property
    def row(self) -> tuple[str, ...]:
        """Jobs that are alike for the table."""
        instance, pins = self.instance, self.pins
        return (
            instance.op.name,
            " ".join(self.traits),
            " ".join(pins.roles(instance.roles)),
        )

    @property
    def variant(self) -> str:
        """The mesh and its axes: what is replicated, and in which order axes are."""
        pins = self.pins
        axes = [",".join(cut.values()) for cut in (pins.cut, pins.before, pins.after)]
        return f"{pins.mesh} {axes[0] if pins.cut else axes[1:]}"

    @property
    def order(self) -> str:
        """Mixes the jobs of a row, always in the same way."""
        said = f"{self.instance.name} {self.pins} {self.partitioner}"
        return hashlib.sha256(said.encode()).hexdigest()

    @property
    def boundary(self) -> str:
        """As ``variant``, and whether arguments and results are whole."""
        return f"{self.variant}{' whole outside' if self.pins.is_whole_outside else ''}"

    @property
    def size(self) -> int:
        """Elements of all operands."""
        return sum(prod(operand.shape) for operand in self.instance.operands)

    def job(self) -> Job:
        with self.instance.module.context, mlir.Location.unknown():
            return _job(self)


def candidates(instance: Instance) -> Iterator[Candidate]:
    """All cuts of an instance, with both partitioners."""
    for pins in pinned(instance):
        is_even = _is_expressible(instance, pins)
        if is_even or _is_expressible_padded(instance, pins):
            for partitioner in PARTITIONERS:
                yield Candidate(instance, pins, partitioner, not is_even)


def pinned(instance: Instance) -> Iterator[Pins]:
    """Each factor alone and each pair, arguments and results cut alike, whole, or otherwise."""
    factors = [number for number, factor in enumerate(instance.rule.factors) if factor.size > 1]
    free = [f for f in factors if instance.rule.factors[f].kind != FactorKind.NEED_REPLICATION]
    for factor in free:
        for mesh, axes in SINGLES:
            yield from _both(Pins(mesh, {factor: axes}))
    for first, second in combinations(free, 2):
        for mesh, one, other in PAIRS:
            yield from _both(Pins(mesh, {first: one, second: other}))
    if instance.is_plain:
        return
    for factor in factors:
        for mesh, axes in SINGLES[:3]:
            yield Pins(mesh, {}, {factor: axes}, {})
            yield Pins(mesh, {}, {}, {factor: axes})
    for factor, other in permutations(factors, 2):
        if factor not in free:
            continue
        yield Pins("a=2,b=4", {factor: "a"}, {factor: "a", other: "b"}, {factor: "a"})
        yield Pins("a=2,b=4", {factor: "a"}, {factor: "a"}, {factor: "a", other: "b"})
        yield Pins("a=2,b=4", {factor: "a"}, {factor: "a"}, {other: "a"})


def _both(pins: Pins) -> Iterator[Pins]:
    """Arguments and results as the op wants them, and whole."""
    yield replace(pins, before=pins.cut, after=pins.cut)
    yield pins


def _is_expressible(instance: Instance, pins: Pins) -> bool:
    """Whether the cuts are ones of whole dims, in even parts: as passes/planning/options.cpp."""
    op, rule = instance.op, instance.rule
    sides = ((rule.operands, op.operands), (rule.results, op.results))
    return (
        all(_fits(instance, pins, pins.cut, tensors, values) for tensors, values in sides)
        and _fits(instance, pins, pins.before, *sides[0])
        and _fits(instance, pins, pins.after, *sides[1])
        and _differ(pins.before, pins.cut, rule.operands)
        and _differ(pins.after, pins.cut, rule.results)
    )


def _is_expressible_padded(instance: Instance, pins: Pins) -> bool:
    """Whether the op can be cut inside of a program that pads dims: its outside is whole."""
    if not pins.cut or not pins.is_whole_outside:
        return False
    tensors = (*instance.rule.operands, *instance.rule.results)
    values = (*instance.op.operands, *instance.op.results)
    mesh = Mesh.parse(pins.mesh)
    for tensor, value in zip(tensors, values, strict=True):
        for dim, size in zip(tensor, _shape(value), strict=True):
            parts = prod(_count(mesh, pins.cut.get(factor, "")) for factor in dim)
            if parts > size or (parts > 1 and len(dim) > 1):
                return False
    return True


def _differ(boundary: Cut, cut: Cut, tensors: Sequence[Sequence[tuple[int, ...]]]) -> bool:
    """Whether what the boundary cuts besides is of a tensor there."""
    there = {factor for tensor in tensors for dim in tensor for factor in dim}
    return all(factor in there for factor in boundary if factor not in cut)


def _fits(
    instance: Instance,
    pins: Pins,
    cut: Cut,
    tensors: Sequence[Sequence[tuple[int, ...]]],
    values: Sequence[mlir.Value],
) -> bool:
    mesh, factors = Mesh.parse(pins.mesh), instance.rule.factors
    parts = {factor: _count(mesh, axes) for factor, axes in cut.items()}
    for tensor, value in zip(tensors, values, strict=True):
        for dim, size in zip(tensor, _shape(value), strict=True):
            if size % prod(parts.get(factor, 1) for factor in dim):
                return False
            complete = True
            for factor in dim:
                count = parts.get(factor, 1)
                is_even = factors[factor].size % count == 0
                if count > 1 and (not complete or (len(dim) > 1 and not is_even)):
                    return False
                complete = complete and count == factors[factor].size
    return all(
        factors[f].size % count == 0 or factors[f].kind == FactorKind.NEED_REPLICATION
        for f, count in parts.items()
    )


def _count(mesh: Mesh, axes: str) -> int:
    sizes = {axis.name: axis.size for axis in mesh.axes}
    return prod(sizes[axis] for axis in axes)


def _job(candidate: Candidate) -> Job:
    instance, pins, partitioner = candidate.instance, candidate.pins, candidate.partitioner
    op, rule = instance.op, instance.rule
    mesh = Mesh.parse(pins.mesh)
    given = [
        tensor
        for tensor, value in zip(rule.operands, op.operands, strict=True)
        if _constant(value) is None
    ]
    placed = Placed(
        *(
            [_sharding(mesh, tensor, cut) for tensor in tensors]
            for tensors, cut in (
                (given, pins.before),
                (given, pins.cut),
                (rule.results, pins.cut),
                (rule.results, pins.after),
            )
        )
    )
    text = _module(op, _held_apart(op), placed, partitioner, mesh)
    return Job(
        hashlib.sha256(f"{partitioner} {text}".encode()).hexdigest()[:16],
        op.name,
        instance.dtype,
        candidate.traits,
        pins.roles(instance.roles),
        pins.described(instance.roles),
        partitioner,
        str(mesh),
        mesh.size,
        len(op.results),
        instance.text,
        text,
        [asdict(operand) for operand in instance.operands],
        tolerance(op.name),
    )


def written(program: str) -> Job:
    """The job that a program of the table is: a module with one op between constraints."""
    partitioner = "shardy" if "sdy.mesh" in program else "gspmd"
    module = parse_bytes(program.encode(), new_context(), "program")
    with module.context, mlir.Location.unknown():
        populate_rules(module)
        found = (_instance(op, module) for op in operations_of(module.operation))
        (instance,) = (each for each in found if each is not None)
        devices = mlir.IntegerAttr(module.operation.attributes["mhlo.num_partitions"]).value
        return Job(
            id=hashlib.sha256(f"{partitioner} {program}".encode()).hexdigest()[:16],
            op=instance.op.name,
            dtype=instance.dtype,
            traits=sorted(instance.traits),
            roles=[],
            cut="",
            partitioner=partitioner,
            mesh=program.partition("sdy.mesh")[2].partition("\n")[0] or f"{devices} devices",
            devices=devices,
            results=len(instance.op.results),
            whole=instance.text,
            text=program,
            operands=[asdict(operand) for operand in instance.operands],
            tolerance=tolerance(instance.op.name),
        )


def tolerance(op: str) -> float:
    """How much the results of an op may differ, relatively and absolutely."""
    return TOLERANCE if op in INEXACT or op.startswith("chlo.") else 0


def _sharding(mesh: Mesh, tensor: tuple[tuple[int, ...], ...], cut: Cut) -> Sharding:
    return Sharding.named(
        mesh, *(tuple(axis for factor in dim for axis in cut.get(factor, "")) for dim in tensor)
    )


@dataclass(frozen=True)
class Placed:
    """Shardings at the boundary and while the op runs."""

    arguments: list[Sharding]
    operands: list[Sharding]
    computed: list[Sharding]
    results: list[Sharding]


# Modules ----------------------------------------------------------------------------------------


def _module(
    op: mlir.Operation,
    arguments: list[mlir.Value],
    placed: Placed | None,
    partitioner: str,
    mesh: Mesh | None,
) -> str:
    """The op alone, pinned; without shardings as it is."""
    module = mlir.Module.create()
    attributes = module.operation.attributes
    int32 = mlir.IntegerType.get_signless(32)
    attributes["mhlo.num_partitions"] = mlir.IntegerAttr.get(int32, mesh.size if mesh else 1)
    attributes["mhlo.num_replicas"] = mlir.IntegerAttr.get(int32, 1)
    at_end = mlir.InsertionPoint(module.body)
    if partitioner == "shardy" and mesh is not None:
        mesh_attribute = mlir.Attribute.parse(mesh_to_sdy(mesh))
        mlir.Operation.create(
            "sdy.mesh",
            attributes={"sym_name": mlir.StringAttr.get("mesh"), "mesh": mesh_attribute},
            ip=at_end,
        )
    function = mlir.Operation.create(
        "func.func",
        attributes={
            "sym_name": mlir.StringAttr.get("main"),
            "sym_visibility": mlir.StringAttr.get("public"),
            "function_type": mlir.TypeAttr.get(
                mlir.FunctionType.get([v.type for v in arguments], [v.type for v in op.results])
            ),
        },
        regions=1,
        ip=at_end,
    )
    if placed is not None:
        function.attributes["arg_attrs"] = _boundary(placed.arguments, partitioner)
        function.attributes["res_attrs"] = _boundary(placed.results, partitioner)
    block = function.regions[0].blocks.append(*(value.type for value in arguments))
    where = mlir.InsertionPoint(block)

    def held(value: mlir.Value, *shardings: Sharding) -> mlir.Value:
        for sharding in shardings:
            value = _held(value, sharding, partitioner, where)
        return value

    given = list(block.arguments)
    if placed is not None:
        given = [held(v, s) for v, s in zip(given, placed.operands, strict=True)]
    rest = iter(given)
    values = []
    for value in op.operands:
        constant = _constant(value)
        values.append(next(rest) if constant is None else constant.clone(ip=where).results[0])
    made = op.clone(ip=where)
    if RULE in made.attributes:
        del made.attributes[RULE]
    for number, value in enumerate(values):
        made.operands[number] = value
    found = list(made.results)
    if placed is not None:
        steps = zip(placed.computed, placed.results, strict=True)
        found = [
            held(value, computed) if computed == final else held(value, computed, final)
            for value, (computed, final) in zip(found, steps, strict=True)
        ]
    mlir.Operation.create("func.return", operands=found, ip=where)
    remove_rules(module)
    return str(module)


def _boundary(shardings: list[Sharding], partitioner: str) -> mlir.Attribute:
    name = "sdy.sharding" if partitioner == "shardy" else "mhlo.sharding"
    return mlir.ArrayAttr.get(
        [mlir.DictAttr.get({name: _attribute(s, partitioner)}) for s in shardings]
    )


def _attribute(sharding: Sharding, partitioner: str) -> mlir.Attribute:
    if partitioner == "shardy":
        return mlir.Attribute.parse(to_sdy(sharding))
    return mlir.StringAttr.get(to_v2(sharding))


def _held(
    value: mlir.Value, sharding: Sharding, partitioner: str, where: mlir.InsertionPoint
) -> mlir.Value:
    """``value`` behind a constraint; scalars have none."""
    if not mlir.RankedTensorType(value.type).rank:
        return value
    if partitioner == "shardy":
        return mlir.Operation.create(
            "sdy.sharding_constraint",
            results=[value.type],
            operands=[value],
            attributes={"sharding": _attribute(sharding, partitioner)},
            ip=where,
        ).results[0]
    return mlir.Operation.create(
        "stablehlo.custom_call",
        results=[value.type],
        operands=[value],
        attributes={
            "call_target_name": mlir.StringAttr.get("Sharding"),
            "backend_config": mlir.StringAttr.get(""),
            "mhlo.sharding": _attribute(sharding, partitioner),
        },
        ip=where,
    ).results[0]
