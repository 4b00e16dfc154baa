"""A module as the core has it, and the way back from the core's numbers to the module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from autoshard import _core
from autoshard.importer.core_rules import RuleTable
from autoshard.importer.pins import Pinned, core_pin
from autoshard.ir import mlir
from autoshard.sharding import Mesh

NO_VALUE = _core.NO_VALUE
"""Number of what is no value of the core: of rank 0, or no tensor."""


@dataclass(slots=True)
class FunctionValues:
    """The core's values at the edges of one function."""

    op: mlir.Operation
    arguments: list[int]
    results: list[int]


@dataclass(frozen=True, slots=True)
class HostValues:
    """What of a program is on the host, by numbers of the core."""

    values: frozenset[int]
    """Values in its memory."""
    moves: tuple[int, ...]
    """Ops that move a value there or back."""
    ops: tuple[int, ...]
    """Ops that it computes."""


@dataclass(frozen=True, slots=True)
class RoundedOperand:
    """A cast that is an op of the core alone."""

    source: int
    """The value that it reads."""
    result: int
    """What it makes, which is no value of the module."""
    type: mlir.Type
    """The type of that."""
    position: int
    """Which operand of its matmul it is."""


@dataclass(frozen=True, slots=True)
class ValueName:
    """One value of the core, as the user knows it."""

    name: str
    """``params['w']`` of an argument, else the op that makes it: ``dot_general``."""
    type: str
    """``4096x11008xbf16``."""
    location: str | None
    """``file:line``."""
    of_any_layer: str
    """The name with stars for numbers."""


@dataclass(frozen=True, slots=True)
class ManualComputation:
    """A body of ``jax.shard_map``: one device's part already, which no plan changes."""

    op: mlir.Operation
    trips: float
    """How often it runs in a step."""
    after: int
    """The core's op before it; the first one where there is none."""


@dataclass(slots=True)
class ImportedProgram:
    """A program and the way back from its indices to the module."""

    program: _core.Program
    module: mlir.Module = field(repr=False)
    """The ops live in it, and none of them keeps it alive."""
    mesh: Mesh
    """Without axes of size 1; axis ``i`` of the core is ``mesh.axes[i]``."""
    operations: Sequence[mlir.Operation] = field(repr=False, compare=False)
    """All ops of the module, outer ones first."""
    read: _core.ReadModule = field(repr=False, compare=False)
    """The same as numbers."""
    core_ops: list[mlir.Operation]
    """Ops that have a rule, by the core's index."""
    result_values: list[tuple[mlir.Operation, list[int]]]
    """Every op with results, and the core's value of each (-1: rank 0)."""
    functions: list[FunctionValues]
    """Those that are called, ``main`` last."""
    pins: list[Pinned]
    assumed_loops: list[str]
    """Places of loops whose trip count is not known; ``trip_count`` was assumed."""
    replicated_ops: list[mlir.Operation]
    """Ops without a rule, or with one that nobody could find: operands and results are whole."""
    value_shapes: list[Sequence[int]]
    """Shape of every value of the core."""
    value_bits: list[int]
    """Bits of an element of every value of the core."""
    value_is_free: list[bool]
    """Constants and the like, of which each reader makes its own copy."""
    pads: bool
    """Whether dims may be cut that have to be padded for it; the core sees them padded."""
    matrix_ops: list[int]
    """Numbers of the core's ops that are one of ``MATRIX_OPS``."""
    host: HostValues
    state: frozenset[int]
    """Numbers of the arguments that a result replaces in the next call: a step's state."""
    one_device_ops: frozenset[int]
    """Numbers of ``result_values`` that one device runs."""
    op_classes: NDArray[np.int32] = field(repr=False, compare=False)
    """A number for each of the core's ops, equal for those that differ in operands, regions and
    locations only."""
    result_classes: list[int]
    """The same of each of ``result_values``."""
    op_locations: NDArray[np.int32] = field(repr=False, compare=False)
    """A number for each, equal for equal locations."""
    rules: RuleTable = field(repr=False)
    """Rules of its ops, with which copies of the module are read faster."""
    rounded: Mapping[int, RoundedOperand]
    """Casts that the compiler adds before matmuls, by their numbers in ``core_ops``, where the
    matmul stands for each."""
    unread_casts: Sequence[_core.UnreadCast] = ()
    """Casts whose results matmuls would round back: the core reads what they are made of."""
    manual: Sequence[ManualComputation] = ()
    makers: list[int] | None = None
    """Which of ``result_values`` each value is first, once somebody asked."""
    lines: dict[int, str | None] = field(default_factory=dict[int, "str | None"])
    """``file:line`` of the core's ops, as far as somebody asked."""
    names: dict[int, ValueName] = field(default_factory=dict[int, ValueName])
    """Names of the core's values, as far as somebody asked."""
    values_of_module: dict[mlir.Value, int] | None = None
    """``value_of``, once somebody asked."""

    def changed(
        self,
        mesh: Mesh,
        pins: Sequence[Pinned],
        *,
        kept_operands: Sequence[tuple[int, int]] = (),
        whole_factors: Sequence[tuple[int, int]] = (),
        held_operands: Sequence[Sequence[tuple[int, int]]] = (),
        op_trips: Sequence[float] | None = None,
    ) -> ImportedProgram:
        """The same program on another mesh and with other pins.

        Args:
            mesh: Without axes of size 1.
            pins: All that there are.
            kept_operands: (op, operand) that are read as they are made.
            whole_factors: (op, factor) that no axis cuts.
            held_operands: Lists of (op, operand) that read a copy of their one value. Pins name the
                copies by numbers of their own, behind those of all values.
            op_trips: How often each op runs in a step; None: as before.
        """
        program = self.program.changed(
            axis_sizes=mesh.axis_sizes,
            pins=[core_pin(pinned) for pinned in pins],
            kept_operands=kept_operands,
            whole_factors=whole_factors,
            held_operands=held_operands,
            op_trips=None if op_trips is None else np.asarray(op_trips, np.float64),
        )
        return replace(self, program=program, mesh=mesh, pins=list(pins))

    @property
    def value_of(self) -> dict[mlir.Value, int]:
        """Every value of the module -> the core's (-1: rank 0).

        Made when somebody asks, of the ops that were read: all of them must be there still.
        """
        if self.values_of_module is None:
            found: dict[mlir.Value, int] = {}

            def bind(values: Iterable[mlir.Value], numbers: Iterable[int]) -> None:
                found.update(zip(values, numbers, strict=True))

            for function in self.functions:
                bind(function.op.regions[0].blocks[0].arguments, function.arguments)
            for op, values in self.result_values:
                bind(op.results, values)
                if op.name == "stablehlo.while":
                    for region in op.regions:
                        bind(region.blocks[0].arguments, values)
            self.values_of_module = found
        return self.values_of_module
