"""Write planned modules by hand: ``$(...)`` stands for the attributes that planning writes.

$([{dp}, {}])                               mhlo.sharding of an argument, result or op
$([{dp}, {}], [{}, {tp}] -> [{dp}, {tp}])   the same, and the op's strategy
$([{dp}, {tp}] -> [{dp}, {}] => [{dp}, {tp}])   results resharded after the op
$([], [{dp}, {}])                           several results without strategy: a tuple
"""

from __future__ import annotations

import re
from itertools import permutations, product

from autoshard.ir import mlir, new_context, parse_bytes
from autoshard.sharding.hlo_text import to_v2, to_v2_tuple
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.sharding import Sharding


def planned_text(text: str, mesh: str = "dp=2,tp=4") -> str:
    """The module text with ``$(...)`` replaced and ``autoshard.mesh`` set."""
    plan_mesh = Mesh.parse(mesh)
    body = re.sub(r"\$\((.*?)\)", lambda found: _attributes(found[1], plan_mesh), text)
    return f'module attributes {{autoshard.mesh = "{mesh}"}} {{\n{body}\n}}\n'


def planned_module(text: str, mesh: str = "dp=2,tp=4") -> mlir.Module:
    """``planned_text``, parsed."""
    return parse_bytes(planned_text(text, mesh).encode(), new_context())


def _attributes(text: str, mesh: Mesh) -> str:
    strategy, _, after = text.partition("=>")
    computed = strategy.partition("->")[2]
    shardings = [
        Sharding.parse(item, mesh)
        for item in re.findall(r"\[[^\]]*\]", after or computed or strategy)
    ]
    hlo = to_v2(shardings[0]) if len(shardings) == 1 else to_v2_tuple(shardings)
    attributes = [f'mhlo.sharding = "{hlo}"']
    if computed:
        attributes.append(f'autoshard.strategy = "{strategy.strip()}"')
    return f"{{{', '.join(attributes)}}}"


def every_matrix_sharding() -> list[str]:
    """Every sharding of a matrix on a mesh of the axes ``dp`` and ``tp``."""
    found: list[str] = []
    for homes in product((None, 0, 1), repeat=2):
        dims = [
            [axis for axis, home in zip(("dp", "tp"), homes, strict=True) if home == dim]
            for dim in (0, 1)
        ]
        for first, second in product(permutations(dims[0]), permutations(dims[1])):
            found.append(f"[{{{', '.join(first)}}}, {{{', '.join(second)}}}]")
    return found
