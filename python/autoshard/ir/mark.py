"""The primitive behind ``autoshard.shard``: an identity that carries one operand's layout.

before  y = mark[mark=in 0 mesh[dp=2,tp=4] [{dp}, {}]] x
after   ordinary jit: nothing, y is x
        autoshard:    %y = stablehlo.custom_call @autoshard.mark(%x) {autoshard.role = "in", ...}
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from autoshard.errors import StrategyError
from autoshard.ir.attributes import LAYOUT, MARK, MARK_GROUP, MARK_INDEX, MARK_ROLE
from autoshard.ir.identity import identity_primitive
from autoshard.ir.lowering import marks_are_lowered, user_line

OPEN_DIM = "?"
"""A dim about which the user said nothing, as the one that ``vmap`` adds."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What the user said of one operand or result of one ``autoshard.shard`` call."""

    group: int
    """The same for all marks of one call, different for every other call that was traced."""
    role: Literal["in", "out"]
    index: int
    """Number of the operand (or result) among the array leaves of the call."""
    dims: tuple[str, ...]
    """For each dim its axes, major first (``dp, sp``), its number of cuts (``4``), or ``?``."""
    mesh: str | None
    """``mesh[dp=2,sp=2]``, or None where ``dims`` are numbers of cuts."""

    def __str__(self) -> str:
        """``in 0 (4, 1)``, as jaxprs show it."""
        return f"{self.role} {self.index} {self.text}"

    @property
    def text(self) -> str:
        """``mesh[dp=2,sp=2] [{dp, sp}, {}]`` or ``(4, 1)``."""
        if self.mesh is None:
            return f"({', '.join(self.dims)})"
        return f"{self.mesh} [{', '.join(f'{{{dim}}}' for dim in self.dims)}]"

    def with_open_dim(self, position: int) -> Mark:
        """The mark of the same value with one more dim before ``position``."""
        dims = (*self.dims[:position], OPEN_DIM, *self.dims[position:])
        return replace(self, dims=dims)

    def of_rank(self, rank: int) -> Mark:
        """With trailing whole dims, as a typed PRNG key has in memory."""
        whole = "1" if self.mesh is None else ""
        return replace(self, dims=self.dims + (whole,) * (rank - len(self.dims)))


def bind(value: jax.typing.ArrayLike, mark: Mark) -> jax.Array:
    """``value`` itself, with ``mark`` attached wherever it is traced."""
    return mark_p.bind(value, mark=mark)


def _with_new_dim(position: int, *, mark: Mark) -> dict[str, Any]:
    return {"mark": mark.with_open_dim(position)}


def _lower(context: Any, value: Any, *, mark: Mark) -> list[Any]:
    if not marks_are_lowered():
        return [value]
    if getattr(context.module_context.axis_context, "manual_axes", None):
        raise StrategyError(
            f"autoshard.shard({mark.text}) inside shard_map: the values there are already one "
            "device's part, nothing is left to split. Call the sharded function outside.",
            user_line(),
        )
    operation: Any = stablehlo.CustomCallOp(
        [value.type], [value], call_target_name=MARK, has_side_effect=False
    ).operation
    i64 = ir.IntegerType.get_signless(64)
    rank = ir.RankedTensorType(value.type).rank
    operation.attributes[MARK_GROUP] = ir.IntegerAttr.get(i64, mark.group)
    operation.attributes[MARK_ROLE] = ir.StringAttr.get(mark.role)
    operation.attributes[MARK_INDEX] = ir.IntegerAttr.get(i64, mark.index)
    operation.attributes[LAYOUT] = ir.StringAttr.get(mark.of_rank(rank).text)
    return [operation.result]


mark_p = identity_primitive("autoshard_mark", _lower, _with_new_dim)
"""Identity of one array with parameter ``mark``."""
