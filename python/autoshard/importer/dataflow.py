"""Which value of a module comes from which, through calls, loops and branches.

Scalars are values here, unlike in the core's program: counters and learning rates are scalars.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from autoshard.errors import ImportModuleError
from autoshard.ir import mlir, place
from autoshard.ir.attributes import MARK, PIPELINE_STAGE
from autoshard.ir.host_memory import PLACEMENT

CARRY = "carry"
"""Name of the steps from an initial or yielded value of a loop into its carried value."""

BRANCH = "branch"
"""Name of the steps from a value of a branch into the result of the branches."""

IDENTITY = "identity"
"""Name of the steps that only say how a value is split: marks and constraints."""


@dataclass(slots=True)
class Dataflow:
    """Nodes are values, steps lead from nodes to nodes; both by number, in program order.

    A call's operands and the arguments of its callee are one node, as are the block arguments and
    results of a loop, and both sides of an optimization barrier.
    """

    nodes: dict[mlir.Value, int] = field(default_factory=dict[mlir.Value, int])
    node_value: list[mlir.Value] = field(default_factory=list[mlir.Value])
    """The first value of each node."""
    names: list[str] = field(default_factory=list[str])
    """Name of each step: its op, or one of the three names above."""
    ops: list[mlir.Operation] = field(default_factory=list[mlir.Operation])
    sources: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    targets: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    depths: list[int] = field(default_factory=list[int])
    """Loops around each step."""
    arguments: list[int] = field(default_factory=list[int])
    """Nodes of ``main``'s arguments."""
    results: list[int] = field(default_factory=list[int])
    readers: list[list[int]] = field(default_factory=list[list[int]])
    """Steps that each node is a source of."""
    makers: list[list[int]] = field(default_factory=list[list[int]])
    """Steps that each node is a target of: several for carried values."""

    def reached(self, start: Iterable[int], blocked: frozenset[int] = frozenset()) -> set[int]:
        """Nodes that depend on those in ``start``, which are among them; not through blocked."""
        return self._closure(start, self.readers, self.targets, blocked)

    def sources_of(self, start: Iterable[int], blocked: frozenset[int] = frozenset()) -> set[int]:
        """Nodes that those in ``start`` depend on, and they themselves; not through blocked."""
        return self._closure(start, self.makers, self.sources, blocked)

    def held_by_loops(self, node: int) -> set[int]:
        """A value and the carried values of loops that start with it."""
        found, waiting = {node}, [node]
        while waiting:
            for step in self.readers[waiting.pop()]:
                target = self.targets[step][0]
                if self.names[step] == CARRY and target not in found:
                    found.add(target)
                    waiting.append(target)
        return found

    def _closure(
        self,
        start: Iterable[int],
        steps_of: Sequence[Sequence[int]],
        ends_of: Sequence[Sequence[int]],
        blocked: frozenset[int],
    ) -> set[int]:
        found = set(start)
        waiting = list(found)
        while waiting:
            node = waiting.pop()
            if node in blocked:
                continue
            for step in steps_of[node]:
                for end in ends_of[step]:
                    if end not in found:
                        found.add(end)
                        waiting.append(end)
        return found


def dataflow(module: mlir.Module) -> Dataflow:
    """Read a module whose calls are flattened: each call has its own callee.

    Raises:
        ImportModuleError: There is no function ``main``.
    """
    reader = _Reader()
    reader.read(module)
    return reader.flow


class _Reader:
    def __init__(self) -> None:
        self.flow = Dataflow()
        self.functions: dict[str, mlir.Operation] = {}
        self.depth = 0
        self.handlers = {
            "func.call": self.call,
            "stablehlo.while": self.loop,
            "stablehlo.case": self.branches,
            "stablehlo.if": self.branches,
            "stablehlo.optimization_barrier": self.barrier,
        }

    def read(self, module: mlir.Module) -> None:
        for op in module.body.operations:
            operation = op.operation
            if operation.name == "func.func":
                name = mlir.StringAttr(operation.attributes["sym_name"]).value
                self.functions[name] = operation
        main = self.functions.get("main")
        if main is None:
            raise ImportModuleError(
                "no function main. Rename the entry function to main.",
                place(module.operation.location),
            )
        block = main.regions[0].blocks[0]
        self.flow.arguments = self.new(block.arguments)
        self.block(block)
        self.flow.results = self.known(_terminator(block).operands)

    def new(self, values: Iterable[mlir.Value]) -> list[int]:
        flow = self.flow
        made: list[int] = []
        for value in values:
            node = len(flow.node_value)
            flow.nodes[value] = node
            flow.node_value.append(value)
            flow.readers.append([])
            flow.makers.append([])
            made.append(node)
        return made

    def known(self, values: Iterable[mlir.Value]) -> list[int]:
        nodes = self.flow.nodes
        return [nodes[value] for value in values]

    def bind(self, values: Iterable[mlir.Value], nodes: Iterable[int]) -> None:
        self.flow.nodes.update(zip(values, nodes, strict=True))

    def step(
        self, name: str, op: mlir.Operation, sources: Sequence[int], targets: Sequence[int]
    ) -> None:
        flow = self.flow
        number = len(flow.names)
        flow.names.append(name)
        flow.ops.append(op)
        flow.sources.append(tuple(sources))
        flow.targets.append(tuple(targets))
        flow.depths.append(self.depth)
        for node in sources:
            flow.readers[node].append(number)
        for node in targets:
            flow.makers[node].append(number)

    def flows(self, name: str, op: mlir.Operation, source: int, target: int) -> None:
        if source != target:
            self.step(name, op, (source,), (target,))

    def block(self, block: mlir.Block) -> None:
        handlers = self.handlers
        for op in block.operations:
            operation = op.operation
            handler = handlers.get(operation.name)
            if handler is not None:
                handler(operation)
                continue
            results = list(operation.results)
            if results:
                nodes = self.flow.nodes
                sources = [nodes[value] for value in operation.operands]
                self.step(_name(operation), operation, sources, self.new(results))

    def call(self, op: mlir.Operation) -> None:
        callee = self.functions[mlir.FlatSymbolRefAttr(op.attributes["callee"]).value]
        block = callee.regions[0].blocks[0]
        self.bind(block.arguments, self.known(op.operands))
        self.block(block)
        self.bind(op.results, self.known(_terminator(block).operands))

    def loop(self, op: mlir.Operation) -> None:
        carried = self.new(op.results)
        for initial, target in zip(self.known(op.operands), carried, strict=True):
            self.flows(CARRY, op, initial, target)
        self.depth += 1
        condition, body = (region.blocks[0] for region in op.regions)
        for block in (condition, body):
            self.bind(block.arguments, carried)
            self.block(block)
        yielded = self.known(_terminator(body).operands)
        for source, target in zip(yielded, carried, strict=True):
            self.flows(CARRY, op, source, target)
        self.depth -= 1

    def branches(self, op: mlir.Operation) -> None:
        results = self.new(op.results)
        for region in op.regions:
            block = region.blocks[0]
            self.block(block)
            for source, target in zip(
                self.known(_terminator(block).operands), results, strict=True
            ):
                self.flows(BRANCH, op, source, target)

    def barrier(self, op: mlir.Operation) -> None:
        self.bind(op.results, self.known(op.operands))


def _name(op: mlir.Operation) -> str:
    if op.name == "sdy.sharding_constraint":
        return IDENTITY
    if op.name == "stablehlo.custom_call":
        target = mlir.StringAttr(op.attributes["call_target_name"]).value
        return IDENTITY if target in (MARK, PIPELINE_STAGE, PLACEMENT, "Sharding") else op.name
    return op.name


def _terminator(block: mlir.Block) -> mlir.Operation:
    return block.operations[len(block.operations) - 1].operation


def shape_of(value: mlir.Value) -> tuple[int, ...]:
    """Shape of a tensor; () for anything else."""
    type_ = value.type
    return tuple(type_.shape) if isinstance(type_, mlir.RankedTensorType) else ()
