"""TPU kernels of Pallas: the custom call, and the Mosaic module in it.

The module's first function is the kernel. Its arguments are the place in the grid, tables
(scalar-prefetch operands), one block of each operand and result, and scratch memory:

    func @kernel(%b: i32, %q: i32, %table: memref<..>, %block: memref<1x512x128xbf16>, ..)
        iteration_bounds = [24, 16], dimension_semantics = [parallel, arbitrary],
        window_params = [{window_bounds = [1, 512, 128], transform_indices = @transform_0}, ..]

``@transform_0`` says which block of the operand is read at a place of the grid. Whole operands and
results are known to the custom call alone.
"""

from __future__ import annotations

import base64
import functools
import importlib.metadata
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from autoshard.ir import mlir, stablehlo
from autoshard.ir.attributes import custom_call_target
from autoshard.ir.mosaic import kernel_bytecode, parse_kernel

TARGET = "tpu_custom_call"

_CONFIG = "backend_config"
_PREFIX = "stable_mosaic."
_BOUNDS = "iteration_bounds"


@dataclass(frozen=True, slots=True)
class Window:
    """Which block of an operand or result the kernel has at a place of the grid."""

    block: tuple[int, ...]
    """Its shape."""
    place: tuple[mlir.Value, ...]
    """The block's index along each dim, computed from ``grid``."""
    grid: tuple[mlir.Value, ...]
    """The place in the grid, as the function that computes ``place`` is given it."""
    tables: tuple[mlir.Value, ...]
    """The tables, as that function is given them."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """What the Mosaic module of a TPU kernel says."""

    module: mlir.Module
    name: str
    grid: tuple[int, ...]
    """Sizes; at most 0 where they are known only when it runs."""
    is_parallel: tuple[bool, ...]
    """Whether no place along each dim of the grid needs what another one left behind."""
    windows: tuple[Window | None, ...]
    """Windows of operands behind the tables, then of results; None: the whole array, in HBM."""
    body: mlir.Block
    num_tables: int
    num_results: int
    num_scratch: int

    @property
    def place(self) -> tuple[mlir.Value, ...]:
        """The place in the grid, as the body is given it."""
        return self._arguments(0, len(self.grid))

    @property
    def tables(self) -> tuple[mlir.Value, ...]:
        """Tables, as the body is given them."""
        return self._arguments(len(self.grid), self.num_tables)

    @property
    def blocks(self) -> tuple[mlir.Value, ...]:
        """Memory of each window's block."""
        return self._arguments(len(self.grid) + self.num_tables, len(self.windows))

    @property
    def result_blocks(self) -> tuple[mlir.Value, ...]:
        """Memory of the results' blocks, which is written back when they change."""
        return self.blocks[len(self.windows) - self.num_results :]

    @property
    def scratch(self) -> tuple[mlir.Value, ...]:
        """Memory that stays from one place of the grid to the next."""
        first = len(self.grid) + self.num_tables + len(self.windows)
        return self._arguments(first, self.num_scratch)

    def _arguments(self, first: int, count: int) -> tuple[mlir.Value, ...]:
        return tuple(self.body.arguments[number] for number in range(first, first + count))


def is_tpu_kernel(op: mlir.Operation) -> bool:
    """Whether an op calls a TPU kernel."""
    return custom_call_target(op) == TARGET


def kernel_of(op: mlir.Operation) -> Kernel | None:
    """The kernel that a ``tpu_custom_call`` runs.

    None where it cannot be read, or its grid is known only when it runs.
    """
    kernel = read_kernel(op)
    return None if kernel is None or any(size <= 0 for size in kernel.grid) else kernel


def read_kernel(op: mlir.Operation) -> Kernel | None:
    """The kernel that a ``tpu_custom_call`` runs; None where it cannot be read."""
    body = body_of(op)
    return None if body is None else _read(body, len(op.results))


def why_unread(op: mlir.Operation) -> str:
    """In a few words, why a ``tpu_custom_call`` has no ``kernel_of``."""
    body = body_of(op)
    if body is None:
        return "its call holds no Mosaic module"
    if parse_kernel(base64.b64decode(body)) is None:
        release = importlib.metadata.version("jaxlib")
        return (
            f"jaxlib {release} cannot read its Mosaic module; plan with the release of JAX that"
            " lowered it, or a later one"
        )
    return "its grid is known only when it runs"


def body_of(op: mlir.Operation) -> str | None:
    """The Mosaic module of a ``tpu_custom_call``, as text; None where it has none."""
    return (_config(op) or {}).get("custom_call_config", {}).get("body")


def estimate_of(op: mlir.Operation) -> dict[str, float]:
    """What the kernel's author says that it costs: ``flops``, ``bytes_accessed``, .., if at all."""
    config = _config(op)
    found = {} if config is None else config.get("custom_call_config", {}).get("cost_estimate", {})
    return {name: float(value) for name, value in found.items()}


def talks_to_others(op: mlir.Operation) -> bool:
    """Whether the kernel sends to other devices."""
    config = (_config(op) or {}).get("custom_call_config", {})
    return bool(config.get("has_communication") or config.get("collective_id") is not None)


def aliases_of(op: mlir.Operation) -> list[tuple[int, int]]:
    """Results of a custom call that are written over operands: their numbers."""
    if "output_operand_aliases" not in op.attributes:
        return []
    found: list[tuple[int, int]] = []
    for each in mlir.ArrayAttr(op.attributes["output_operand_aliases"]):
        alias = stablehlo.OutputOperandAlias(each)
        found.append((next(iter(alias.output_tuple_indices), 0), alias.operand_index))
    return found


def config_on_grid(op: mlir.Operation, grid: Sequence[int]) -> str:
    """``backend_config`` of the same kernel on a smaller grid; expects that it can be read."""
    config = cast(dict[str, Any], _config(op))
    call = config["custom_call_config"]
    data = base64.b64decode(call["body"])
    module = cast(mlir.Module, parse_kernel(data))
    function = _functions(module)[0]
    old = list(mlir.DenseI64ArrayAttr(function.attributes[_BOUNDS]))
    with module.context:
        function.attributes[_BOUNDS] = mlir.DenseI64ArrayAttr.get(list(grid))
    call["body"] = base64.b64encode(kernel_bytecode(module)).decode()
    if "cost_estimate" in call:
        share = 1.0
        for before, after in zip(old, grid, strict=True):
            share *= after / before
        call["cost_estimate"] = {
            name: int(value * share) for name, value in call["cost_estimate"].items()
        }
    return json.dumps(config)


def op_name(op: mlir.Operation) -> str:
    """The name of an op of a kernel, without the mark of the stable form: ``arith.addi``."""
    return op.operation.name.removeprefix(_PREFIX)


def _config(op: mlir.Operation) -> dict[str, Any] | None:
    if _CONFIG not in op.attributes or not isinstance(op.attributes[_CONFIG], mlir.StringAttr):
        return None
    try:
        found = json.loads(mlir.StringAttr(op.attributes[_CONFIG]).value)
    except json.JSONDecodeError:
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


@functools.lru_cache(maxsize=64)
def _read(body: str, num_results: int) -> Kernel | None:
    module = parse_kernel(base64.b64decode(body))
    if module is None:
        return None
    functions = _functions(module)
    if not functions or _BOUNDS not in functions[0].attributes:
        return None
    main = functions[0]
    by_name = {_text(function.attributes["sym_name"]): function for function in functions}
    grid = tuple(mlir.DenseI64ArrayAttr(main.attributes[_BOUNDS]))
    tables = mlir.IntegerAttr(main.attributes["scalar_prefetch"]).value
    windows = tuple(
        _window(mlir.DictAttr(each), by_name, len(grid))
        for each in mlir.ArrayAttr(main.attributes["window_params"])
    )
    semantics = [str(each) for each in mlir.ArrayAttr(main.attributes["dimension_semantics"])]
    return Kernel(
        module=module,
        name=_text(main.attributes["sym_name"]),
        grid=grid,
        is_parallel=tuple("parallel" in each for each in semantics),
        windows=windows,
        body=main.regions[0].blocks[0],
        num_tables=tables,
        num_results=num_results,
        num_scratch=mlir.IntegerAttr(main.attributes["scratch_operands"]).value,
    )


def _functions(module: mlir.Module) -> list[mlir.Operation]:
    return [op.operation for op in module.body.operations if op_name(op.operation) == "func.func"]


def _window(said: mlir.DictAttr, functions: dict[str, mlir.Operation], rank: int) -> Window | None:
    if "window_bounds" not in said or "window_kind" in said:
        return None
    name = re.sub(r'[@"]', "", str(said["transform_indices"]))
    block = functions[name].regions[0].blocks[0]
    arguments = tuple(block.arguments)
    *_, last = block.operations
    return Window(
        block=tuple(mlir.DenseI64ArrayAttr(said["window_bounds"])),
        place=tuple(last.operation.operands),
        grid=arguments[:rank],
        tables=arguments[rank:],
    )


def _text(attribute: mlir.Attribute) -> str:
    return mlir.StringAttr(attribute).value
