"""What an op does with its elements: kind of work, arithmetic, operations, bytes touched.

Read once for each rule, never for each op. Operations are counted as XLA's cost analysis counts
them: 2 for each multiply-add, 1 for each element of an elementwise op. The transcendental
functions and the division, which XLA counts apart, are named (``FUNCTIONS``): how many operations
an element takes is up to the compiler (rows ``functions`` of docs/design/compilers.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2, prod
from typing import cast

from autoshard._core import Arithmetic, Expense, Function, Work
from autoshard.importer.decomposition import decomposition_work
from autoshard.ir import chlo, element_bits, mlir, stablehlo
from autoshard.kernels.calls import kernel_call
from autoshard.kernels.cudnn_attention import cudnn_attention
from autoshard.kernels.mosaic import Kernel, estimate_of, is_tpu_kernel, kernel_of
from autoshard.kernels.scalars import Integers
from autoshard.kernels.tables import contents_of_parts
from autoshard.kernels.work import KernelWork, bytes_moved, kernel_work

VIEWS = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("reshape", "transpose", "broadcast_in_dim", "slice", "pad", "reverse", "concatenate"),
        "bitcast_convert",
    )
)
"""Ops that move elements, or make more of them."""

MATRIX_OPS = frozenset(("stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution"))
"""Multiply matrices: what an axis cuts of them says what it is for."""
_RAGGED_DOT = "chlo.ragged_dot"
_REDUCES = frozenset(("stablehlo.reduce", "stablehlo.reduce_window"))
_INDEXED = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("gather", "scatter", "dynamic_slice", "dynamic_update_slice"),
        *("select_and_scatter", "torch_index_select"),
    )
)
_OTHERS = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("sort", "fft", "rng", "rng_bit_generator", "custom_call", "composite", "cholesky"),
        *("triangular_solve", "batch_norm_training", "batch_norm_grad", "batch_norm_inference"),
        *("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "collective_permute"),
        *("collective_broadcast", "infeed", "outfeed", "send", "recv"),
    )
) | {"chlo.top_k", "chlo.scan"}

MADE_OF_NOTHING = frozenset(("stablehlo.constant", "stablehlo.iota"))
"""Ops without operands, of whose result each reader can make its own copy."""

_RECIPROCALS = ("divide", "remainder", "sqrt", "rsqrt")

_FUNCTIONS = {
    **dict.fromkeys(
        (
            *("exponential", "exponential_minus_one", "log", "log_plus_one", "logistic"),
            *("cbrt", "erf"),
        ),
        Expense.EXPONENTIAL,
    ),
    **dict.fromkeys(
        (
            *("tanh", "sine", "cosine", "tan", "sinh", "cosh"),
            *("asin", "acos", "atan", "asinh", "acosh", "atanh"),
            *("power", "atan2", "erf_inv", "lgamma", "digamma", "bessel_i1e", "polygamma", "zeta"),
            "next_after",
        ),
        Expense.POLYNOMIAL,
    ),
    "erfc": Expense.POLYNOMIALS,
}
"""Expense of what vector units have no instruction for. Compilers decide by it what they store
(``fusion.stored_functions`` in docs/design/compilers.md). A division nearly always is one by a
broadcast, which costs a multiplication."""

FUNCTIONS = {
    **dict.fromkeys(_FUNCTIONS, Function.OTHER),
    **dict.fromkeys(("sqrt", "rsqrt", "cbrt"), Function.ROOT),
    **dict.fromkeys(("exponential", "exponential_minus_one"), Function.EXPONENTIAL),
    **dict.fromkeys(("log", "log_plus_one"), Function.LOGARITHM),
    **dict.fromkeys(("sine", "cosine", "tan"), Function.SINE),
    "divide": Function.DIVISION,
    "remainder": Function.REMAINDER,
    "logistic": Function.LOGISTIC,
    "tanh": Function.TANH,
    "erf": Function.ERROR,
    "erfc": Function.ERROR_COMPLEMENT,
    "power": Function.POWER,
}
"""Ops of whose elements compilers make several operations."""

WORK_ATTRIBUTES = {
    "stablehlo.convolution": ("lhs_dilation", "rhs_dilation", "dimension_numbers", "padding"),
    "stablehlo.pad": ("interior_padding",),
    "stablehlo.reduce_window": ("window_dimensions",),
    "stablehlo.select_and_scatter": ("window_dimensions",),
    "stablehlo.sort": ("dimension",),
    "stablehlo.fft": ("fft_length",),
    "stablehlo.gather": ("dimension_numbers",),
    "stablehlo.scatter": ("scatter_dimension_numbers",),
    "stablehlo.custom_call": ("call_target_name", "backend_config"),
    "stablehlo.composite": ("decomposition",),
}
"""Attributes that decide about the work, beyond the types and Shardy's rule."""


@dataclass(frozen=True, slots=True)
class OpWork:
    """As in ``Rule`` of passes/model/program.h, where each field is explained."""

    work: Work
    arithmetic: Arithmetic
    flops: float
    is_cheap: bool = False
    has_workspace: bool = False
    operand_bytes: tuple[float, ...] = ()
    result_bytes: tuple[float, ...] = ()
    touched_as: int = -1
    in_place_operand: int = -1
    padded_bytes: float = 0.0
    dilation: float = 1.0
    expense: Expense = Expense.CHEAP
    function: Function = Function.NONE
    kernels: float = 1.0
    scratch_bytes: float = 0.0
    moved_again: float = 0.0
    exponentials: float = 0.0
    vector_flops: float = 0.0
    transforms: tuple[float, ...] = ()


def work_key(op: mlir.Operation) -> tuple[mlir.Attribute, ...]:
    """What two ops of one name, with equal types and factors, must share to do equal work."""
    names = WORK_ATTRIBUTES.get(op.name, ())
    found = tuple(op.attributes[name] for name in names if name in op.attributes)
    if op.name == "stablehlo.convolution":
        return (*found, mlir.BoolAttr.get(_is_reversed(op)))
    return found


def is_elementwise(name: str) -> bool:
    """Does an op of this name make each element of its result from one element of each operand?"""
    return name.startswith(("stablehlo.", "chlo.")) and name not in (
        MATRIX_OPS | VIEWS | _REDUCES | _INDEXED | _OTHERS | MADE_OF_NOTHING | {_RAGGED_DOT}
    )


def work_of(op: mlir.Operation) -> OpWork:
    """Kind, operations and bytes of one op with static shapes."""
    name = op.name
    arithmetic = _arithmetic(op)
    if name in MATRIX_OPS:
        flops = _matmul_flops(op) * (4 if _is_complex(op) else 1)
        if name == "stablehlo.convolution":
            return OpWork(
                Work.MATMUL,
                arithmetic,
                flops,
                has_workspace=True,
                padded_bytes=_padded_bytes(op),
                dilation=prod(_filled(op)),
            )
        if _contracted(op) == 1:  # compilers multiply elements, as of broadcast operands
            elements = flops / 2
            return OpWork(Work.ELEMENTWISE, arithmetic, elements, is_cheap=True)
        return OpWork(Work.MATMUL, arithmetic, flops)
    if name in VIEWS:
        return _view(op, arithmetic)
    if name in _REDUCES:
        if _is_reshape(op):
            return _view(op, arithmetic)
        return OpWork(Work.REDUCE, arithmetic, _reduce_flops(op))
    if name in _INDEXED:
        return _indexed(op, arithmetic)
    if is_tpu_kernel(op):
        return _kernel_work(op, arithmetic)
    if (call := kernel_call(op)) is not None:
        if call.matmul_flops:
            multiplied = arithmetic if call.product is None else _of_element(call.product)
            return OpWork(
                Work.KERNEL,
                multiplied,
                call.matmul_flops,
                moved_again=call.moved_again,
                exponentials=call.exponentials,
                vector_flops=call.vector_flops,
            )
        return _call_work(op, arithmetic)
    if (attention := cudnn_attention(op)) is not None:
        work = Work.ATTENTION_GRADIENT if attention.is_backward else Work.ATTENTION
        # Statistics in float32 are among the operands; the products are of queries and keys.
        queries = mlir.RankedTensorType(op.operands[0].type).element_type
        scratch = attention.workspace_bytes
        return OpWork(
            work,
            _of_element(queries),
            attention.flops,
            scratch_bytes=scratch,
            exponentials=attention.exponentials,
            vector_flops=attention.vector_flops,
        )
    if name == _RAGGED_DOT:
        return OpWork(Work.MATMUL, arithmetic, _ragged_dot_flops(op))
    if name in _OTHERS:
        return OpWork(Work.OTHER, arithmetic, _other_flops(op), transforms=_transforms(op))
    # A product of complex numbers is four real ones.
    parts = 4.0 if _is_complex(op) and op.name != "stablehlo.complex" else 1.0
    expense = _expense(op)
    return OpWork(
        Work.ELEMENTWISE,
        arithmetic,
        parts * _elements(op.results[0]),
        is_cheap=expense == Expense.CHEAP,
        expense=expense,
        function=_function(op),
    )


def _kernel_work(op: mlir.Operation, arithmetic: Arithmetic) -> OpWork:
    kernel = kernel_of(op)
    own = estimate_of(op)
    if kernel is None:
        again = own.get("bytes_accessed", 0.0) - sum(map(_bytes, (*op.operands, *op.results)))
        work, flops = (Work.KERNEL, own["flops"]) if own.get("flops") else (Work.OTHER, 0.0)
        flops = flops or _other_flops(op)
        return OpWork(work, arithmetic, flops, moved_again=max(0.0, again))
    tables, counted = _slowest_part(
        kernel, list(map(contents_of_parts, list(op.operands)[: kernel.num_tables]))
    )
    behind = [*list(op.operands)[kernel.num_tables :], *op.results]
    moved = bytes_moved(kernel, [value.type for value in behind], tables)
    once = [min(bytes_, _bytes(value)) for bytes_, value in zip(moved, behind, strict=True)]
    read, written = once[: len(once) - len(op.results)], once[len(once) - len(op.results) :]
    if counted.product is None and not own.get("flops"):
        work, flops = Work.OTHER, float(counted.vector_flops)
    else:
        work, flops = Work.KERNEL, float(counted.matmul_flops) or own["flops"]
        arithmetic = arithmetic if counted.product is None else _of_element(counted.product)
    return OpWork(
        work,
        arithmetic,
        flops,
        operand_bytes=(*(-1.0 for _ in tables), *read),
        result_bytes=tuple(written),
        moved_again=sum(moved) - sum(once),
    )


def _slowest_part(
    kernel: Kernel, contents: Sequence[list[Integers] | None]
) -> tuple[list[Integers | None], KernelWork]:
    """The tables of the device that has most to do, and its work."""
    devices = max((len(parts) for parts in contents if parts is not None), default=1)
    if any(parts is not None and len(parts) not in (1, devices) for parts in contents):
        contents, devices = [None] * len(contents), 1
    found: list[tuple[list[Integers | None], KernelWork]] = []
    for number in range(devices):
        mine = [None if parts is None else parts[number % len(parts)] for parts in contents]
        found.append((mine, kernel_work(kernel, mine)))
    return max(found, key=lambda it: (float(it[1].matmul_flops), float(it[1].vector_flops)))


def _call_work(op: mlir.Operation, arithmetic: Arithmetic) -> OpWork:
    counted = decomposition_work(op, work_of)
    if counted.product is None:
        return OpWork(Work.OTHER, arithmetic, counted.other_flops)
    others = (-1.0 for _ in list(op.results)[1:])
    moved = (counted.loop_bytes, *others) if counted.loop_bytes else ()
    return OpWork(
        Work.KERNEL,
        counted.product,
        counted.matmul_flops,
        result_bytes=moved,
        kernels=max(1.0, counted.loop_kernels),
    )


def _padded_bytes(op: mlir.Operation) -> float:
    """Bytes of a convolution's first operand with its padding, where that is not the same on both
    sides of every dim, and with the zeros between its elements, where a library does not know
    them; else 0."""
    dilation = _filled(op)[0]
    lows, highs = _padding(op)
    if (lows == highs and dilation == 1) or (dilation == 1 and _input_dilation(op) != 1):
        return 0.0
    image = mlir.RankedTensorType(op.operands[0].type)
    shape = list(image.shape)
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    between = _of_each(op, "lhs_dilation", lows)
    for dim, low, high, apart in zip(
        numbers.input_spatial_dimensions, lows, highs, between, strict=True
    ):
        shape[dim] = (shape[dim] - 1) * apart + 1 + low + high
    return prod(shape) * element_bits(image.element_type) / 8


def _filled(op: mlir.Operation) -> tuple[float, float]:
    """Elements of a convolution's image and of its kernel for each that is no zero between two
    others, where libraries take neither as dilated.

    They do so with a kernel that is reversed, the gradient of a strided convolution, and with
    one that is larger than the result, the gradient of weights; of the others padding must be
    the same on both sides where the kernel is dilated.
    """
    lows, highs = _padding(op)
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    kernel, result = _shape(op.operands[1]), _shape(op.results[0])
    window = [kernel[dim] for dim in numbers.kernel_spatial_dimensions]
    made = [result[dim] for dim in numbers.output_spatial_dimensions]
    if any(size > of_result for size, of_result in zip(window, made, strict=True)):
        return 1.0, 1.0
    image = 1.0 if _is_reversed(op) or prod(window) == 1 else float(_input_dilation(op))
    if lows == highs and image == 1:
        return image, 1.0
    apart = _of_each(op, "rhs_dilation", lows)
    spread = prod((size - 1) * each + 1 for size, each in zip(window, apart, strict=True))
    return image, spread / max(1, prod(window))


def _is_reversed(convolution: mlir.Operation) -> bool:
    owner = convolution.operands[1].owner
    return not isinstance(owner, mlir.Block) and owner.operation.name == "stablehlo.reverse"


def _padding(convolution: mlir.Operation) -> tuple[list[int], list[int]]:
    """Before and behind each spatial dim."""
    numbers = stablehlo.ConvDimensionNumbers(convolution.attributes["dimension_numbers"])
    if "padding" not in convolution.attributes:
        none = [0] * len(numbers.input_spatial_dimensions)
        return none, none
    sides = mlir.DenseIntElementsAttr(convolution.attributes["padding"])
    padding = [sides[k] for k in range(len(sides))]
    return padding[::2], padding[1::2]


def _of_each(convolution: mlir.Operation, name: str, dims: list[int]) -> list[int]:
    """An attribute of each spatial dim, 1 where it is not there."""
    if name not in convolution.attributes:
        return [1] * len(dims)
    return list(cast(list[int], mlir.DenseI64ArrayAttr(convolution.attributes[name])))


def _function(op: mlir.Operation) -> Function:
    return FUNCTIONS.get(op.name.partition(".")[2], Function.NONE)


def _expense(op: mlir.Operation) -> Expense:
    name = op.name.partition(".")[2]
    expense = _FUNCTIONS.get(name, Expense.CHEAP)
    if not _is_complex(op) or (expense == Expense.CHEAP and name not in _RECIPROCALS):
        return expense
    # A function of complex numbers is made of several real ones.
    return Expense(min(expense + 1, Expense.POLYNOMIALS))


def _view(op: mlir.Operation, arithmetic: Arithmetic) -> OpWork:
    touched = (_bytes(op.results[0]),) if op.name == "stablehlo.slice" else ()
    apart = 1.0
    if op.name == "stablehlo.pad":
        between = mlir.DenseI64ArrayAttr(op.attributes["interior_padding"])
        apart = float(prod(1 + each for each in cast(list[int], between)))
    return OpWork(Work.VIEW, arithmetic, 0.0, is_cheap=True, operand_bytes=touched, dilation=apart)


def _is_reshape(op: mlir.Operation) -> bool:
    """Does a reduction drop dims of one element and nothing else?"""
    return (
        op.name == "stablehlo.reduce"
        and len(op.results) == 1
        and _elements(op.operands[0]) == _elements(op.results[0])
    )


def _indexed(op: mlir.Operation, arithmetic: Arithmetic) -> OpWork:
    """A slice or a gather reads what it returns; an update reads and writes what it changes."""
    operands, count = list(op.operands), len(op.results)
    if op.name == "stablehlo.select_and_scatter":
        flops = _elements(operands[1]) * _window(op)
        return OpWork(Work.INDEXED, arithmetic, flops)
    if op.name == "stablehlo.dynamic_update_slice":
        update = _bytes(operands[1])
        touched = (0.0, *(-1.0 for _ in operands[1:]))
        made = (update,)
        return OpWork(
            Work.INDEXED,
            arithmetic,
            0.0,
            operand_bytes=touched,
            result_bytes=made,
            touched_as=1,
            in_place_operand=0,
        )
    if _is_one_of_each_row(op):
        # Compilers compare an iota with the index: a scatter is a select, a gather a masked sum.
        is_scatter = op.name == "stablehlo.scatter"
        return OpWork(
            Work.ELEMENTWISE if is_scatter else Work.REDUCE,
            arithmetic,
            float(_elements(operands[0])),
            is_cheap=True,
            in_place_operand=0 if is_scatter else -1,
        )
    if op.name == "stablehlo.scatter":
        updates = operands[count + 1 :]
        touched = (*map(_bytes, updates), *(-1.0 for _ in operands[count:]))
        flops = float(sum(_elements(update) for update in updates))
        made = tuple(map(_bytes, updates))
        return OpWork(
            Work.INDEXED,
            arithmetic,
            flops,
            operand_bytes=touched,
            result_bytes=made,
            touched_as=count + 1,
            in_place_operand=0,
        )
    touched = (_bytes(op.results[0]), *(-1.0 for _ in operands[1:]))
    return OpWork(
        Work.INDEXED,
        arithmetic,
        0.0,
        is_cheap=True,
        operand_bytes=touched,
        touched_as=len(operands),
    )


def _is_one_of_each_row(op: mlir.Operation) -> bool:
    """Whether a gather or scatter takes one element of each row, as ``take_along_axis`` does."""
    if op.name == "stablehlo.gather":
        numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
        batching, window = numbers.operand_batching_dims, numbers.offset_dims
        smaller = op.results[0]
    elif op.name == "stablehlo.scatter" and len(op.operands) == 3:
        numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
        batching, window = numbers.input_batching_dims, numbers.update_window_dims
        smaller = op.operands[2]
    else:
        return False
    shape = _shape(op.operands[0])
    rows = prod(shape[dim] for dim in batching)
    return not window and len(batching) == len(shape) - 1 and _elements(smaller) == rows


def _contracted(op: mlir.Operation) -> int:
    """How many products each element of the result of a ``dot`` or ``dot_general`` adds up."""
    left = _shape(op.operands[0])
    if op.name == "stablehlo.dot":
        return left[-1]
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    return prod(left[dim] for dim in numbers.lhs_contracting_dimensions)


def _matmul_flops(op: mlir.Operation) -> float:
    """Two for each multiply-add."""
    if op.name != "stablehlo.convolution":
        return 2.0 * _elements(op.results[0]) * _contracted(op)
    right = _shape(op.operands[1])
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    # Input channels of the kernel are those of one group.
    products = prod(right) // max(1, right[numbers.kernel_output_feature_dimension])
    # Zeros between the elements of a dilated input are not multiplied.
    return 2.0 * _elements(op.results[0]) * products / _input_dilation(op)


def _ragged_dot_flops(op: mlir.Operation) -> float:
    """Two for each multiply-add: a row is multiplied with the matrix of its group alone."""
    numbers = chlo.RaggedDotDimensionNumbers(op.attributes["ragged_dot_dimension_numbers"])
    inside = {
        *numbers.rhs_batching_dimensions,
        *numbers.rhs_contracting_dimensions,
        *numbers.rhs_group_dimensions,
    }
    left, right = _shape(op.operands[0]), _shape(op.operands[1])
    columns = prod(size for dim, size in enumerate(right) if dim not in inside)
    return 2.0 * prod(left) * columns


def _input_dilation(op: mlir.Operation) -> int:
    """Elements of a convolution's dilated input for each one that is not a zero in between."""
    if "lhs_dilation" not in op.attributes:
        return 1
    return prod(cast(list[int], mlir.DenseI64ArrayAttr(op.attributes["lhs_dilation"])))


def _reduce_flops(op: mlir.Operation) -> float:
    """One for each element that is taken in."""
    if op.name == "stablehlo.reduce":
        return float(sum(_elements(op.operands[k]) for k in range(len(op.results))))
    shape = _shape(op.results[0])
    window = cast(list[int], mlir.DenseI64ArrayAttr(op.attributes["window_dimensions"]))
    # A window as long as its dim is a running sum, which compilers compute as a tree.
    taken = prod(
        min(size, 2 * log2(size)) if size == dim and size > 1 else size
        for size, dim in zip(window, shape, strict=True)
    )
    return prod(shape) * taken * len(op.results)


def _window(op: mlir.Operation) -> int:
    if "window_dimensions" not in op.attributes:
        return 1
    return prod(cast(list[int], mlir.DenseI64ArrayAttr(op.attributes["window_dimensions"])))


def _other_flops(op: mlir.Operation) -> float:
    operand = op.operands[0] if len(op.operands) else op.results[0]
    elements, shape = float(_elements(operand)), _shape(operand)
    match op.name:
        case "stablehlo.sort":
            length = shape[mlir.IntegerAttr(op.attributes["dimension"]).value] if shape else 1
            return elements * len(op.results) * log2(max(2, length))
        case "chlo.top_k":
            return elements * log2(max(2, shape[-1]))
        case "stablehlo.fft":
            return 5.0 * elements * log2(max(2.0, prod(_transforms(op))))
        case "stablehlo.cholesky":
            return elements * shape[-1] / 3
        case "stablehlo.triangular_solve":
            return float(_elements(op.operands[1])) * shape[-1]
        case _:
            return float(sum(_elements(value) for value in op.results))


def _transforms(op: mlir.Operation) -> tuple[float, ...]:
    """Lengths of the dims along which a Fourier transform runs."""
    if op.name != "stablehlo.fft":
        return ()
    return tuple(map(float, cast(list[int], mlir.DenseI64ArrayAttr(op.attributes["fft_length"]))))


def _arithmetic(op: mlir.Operation) -> Arithmetic:
    """The arithmetic of the widest operand, or of the first result where there is none."""
    values = [v for v in op.operands if isinstance(v.type, mlir.RankedTensorType)]
    ranked = [v for v in values if _shape(v)] or values or list(op.results)[:1]
    return min((_of_element(v.type.element_type) for v in ranked), default=Arithmetic.F32)


def _of_element(element: mlir.Type) -> Arithmetic:
    if isinstance(element, mlir.ComplexType):
        return _of_element(element.element_type)
    bits = element_bits(element)
    if not isinstance(element, mlir.FloatType):
        # There are fast units for small integers; wide ones share the vector unit with floats.
        return Arithmetic.I8 if bits <= 8 else Arithmetic.F32
    if bits <= 8:
        return Arithmetic.F8
    return {16: Arithmetic.F16, 64: Arithmetic.F64}.get(bits, Arithmetic.F32)


def _is_complex(op: mlir.Operation) -> bool:
    value_type = op.results[0].type
    return isinstance(value_type, mlir.RankedTensorType) and isinstance(
        value_type.element_type, mlir.ComplexType
    )


def _shape(value: mlir.Value) -> list[int]:
    return list(value.type.shape) if isinstance(value.type, mlir.RankedTensorType) else []


def _elements(value: mlir.Value) -> int:
    return prod(_shape(value))


def _bytes(value: mlir.Value) -> float:
    element = cast(mlir.RankedTensorType, value.type).element_type
    return _elements(value) * element_bits(element) / 8
