"""The option ``mesh-shape`` of a search."""

from __future__ import annotations

from autoshard.errors import PassOptionError
from autoshard.sharding import Axis, Mesh


def mesh_of_shape(levels: Mesh, shape: str, name: str) -> Mesh:
    """Neighbours of the axes of a search joined to axes of the sizes that are asked for.

    Args:
        levels: All axes.
        shape: ``8x4``.
        name: Of the pass.

    Raises:
        PassOptionError: No neighbours come to these sizes.
    """
    left = list(levels.axes)
    joined: list[Axis] = []
    for size in map(int, shape.split("x")):
        names, reached = list[str](), 1
        while left and reached < size:
            axis = left.pop(0)
            names.append(axis.name)
            reached *= axis.size
        joined.append(Axis("_".join(names) or "data", reached))
    if left or "x".join(str(axis.size) for axis in joined) != shape:
        raise PassOptionError(
            f"{name}: option mesh-shape={shape} joins no neighbours of the"
            f" axes {levels}. Their product has to be {levels.size}; or give mesh=."
        )
    return Mesh(tuple(joined))
