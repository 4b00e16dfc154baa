"""Which of the values that two loops compute both are stacked: the fewest bytes that will do.

A minimum cut. Gradients need some values; what is cheap to make comes with its readers for nothing,
as compilers fuse it, if what it is made of is there; anything else has to be stacked itself, or
something behind it:

    matmul -> %h -> convert -> %h32 -> tanh -> %t      gradients need %h32 and %t: %h is stacked
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csgraph, csr_array

_UNITS = 1 << 24
"""All bytes together, in flow: SciPy's flows are integers of 32 bits."""


@dataclass(frozen=True, slots=True)
class Node:
    """One value."""

    bytes: float
    """What stacking it takes."""
    made_of: tuple[Hashable, ...] | None
    """Values that are all it takes to have it; None: it has to be computed, or stacked."""


def cheapest_cut(nodes: Mapping[Hashable, Node], needed: Iterable[Hashable]) -> set[Hashable]:
    """The values to stack so that all that are needed can be had, those that are needed preferred.

    Args:
        nodes: All values by name.
        needed: Names among them.
    """
    number = {name: 2 * place for place, name in enumerate(nodes)}
    source, sink = 2 * len(nodes), 2 * len(nodes) + 1
    total = sum(node.bytes for node in nodes.values()) or 1.0
    unlimited = 2 * _UNITS + len(nodes)
    edges: dict[tuple[int, int], int] = {}
    for name, node in nodes.items():
        enter = number[name]
        edges[enter, enter + 1] = 1 + round(node.bytes / total * _UNITS)
        if node.made_of is None:
            edges[source, enter] = unlimited
        for operand in node.made_of or ():
            if operand in number:
                edges[number[operand] + 1, enter] = unlimited
    for name in needed:
        edges[number[name] + 1, sink] = unlimited
    reaching = _reaching(edges, source, sink)
    return {
        name for name, enter in number.items() if enter not in reaching and enter + 1 in reaching
    }


def _reaching(edges: Mapping[tuple[int, int], int], source: int, sink: int) -> set[int]:
    """What still reaches the sink when as much as can flows from the source."""
    rows, columns = (np.array([edge[side] for edge in edges], np.int32) for side in (0, 1))
    capacities = np.array(list(edges.values()), np.int32)
    size = sink + 1
    graph: Any = csr_array((capacities, (rows, columns)), shape=(size, size))
    flow: Any = csgraph.maximum_flow(graph, source, sink).flow
    left: Any = csr_array(graph - flow).T.tocsr()
    left.eliminate_zeros()
    order: Any = csgraph.breadth_first_order(left, sink, return_predecessors=False)
    return {int(one) for one in order}
