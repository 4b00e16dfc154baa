"""What the core asks of each class of ops to cut a step into stages."""

from __future__ import annotations

from autoshard import _core
from autoshard.importer.micro_batch_cuts import kind_of
from autoshard.importer.work import MADE_OF_NOTHING, MATRIX_OPS, VIEWS, is_elementwise
from autoshard.ir import element_bits, mlir
from autoshard.ir.attributes import STAGE, attribute_of
from autoshard.ir.module import with_its_ops
from autoshard.ir.reading import element_of, shape_of

_UNITS = MATRIX_OPS | frozenset(
    (
        *("chlo.ragged_dot", "stablehlo.custom_call", "stablehlo.composite", "func.call"),
        *("sdy.manual_computation", "stablehlo.fft", "stablehlo.cholesky"),
        "stablehlo.triangular_solve",
    )
)


def stage_op(op: mlir.Operation) -> _core.StageOp:
    """What holds for an op and all of its class."""
    is_identity = kind_of(op) == _core.CutKind.IDENTITY
    return _core.StageOp(
        is_heavy=not is_identity and does_much(op),
        is_free=op.name in MADE_OF_NOTHING,
        is_light=is_light(op) and op.name not in MADE_OF_NOTHING,
        is_view=op.name in VIEWS,
        is_loop=op.name == "stablehlo.while",
        is_add=op.name == "stablehlo.add",
        mark=stage_of_mark(op),
        result_bytes=[value_bytes(result) for result in op.results],
    )


def is_light(op: mlir.Operation) -> bool:
    """Is an op, which reads nothing else than is there anyway, as well done once more?"""
    if len(op.regions):
        return False
    is_made = op.name in MADE_OF_NOTHING or op.name in VIEWS or op.name in _SLICES
    return is_made or is_elementwise(op.name) or kind_of(op) == _core.CutKind.IDENTITY


_SLICES = ("stablehlo.dynamic_slice",)


def stage_of_mark(op: mlir.Operation) -> int:
    """The stage that a mark, or an op with marks in its regions, wants; -1 for other ops."""
    stage = attribute_of(op, STAGE)
    return -1 if stage is None else mlir.IntegerAttr(stage).value


def value_bytes(value: mlir.Value) -> float:
    """Bytes of a tensor; 0 of what is none."""
    if not isinstance(value.type, mlir.RankedTensorType):
        return 0.0
    bits = element_bits(element_of(value))
    for size in shape_of(value):
        bits *= size
    return bits / 8


def does_much(op: mlir.Operation) -> bool:
    """Whether an op, or one in its regions, multiplies matrices or is a program of its own."""
    return any(
        inner.name in _UNITS and kind_of(inner) == _core.CutKind.PLAIN for inner in with_its_ops(op)
    )
