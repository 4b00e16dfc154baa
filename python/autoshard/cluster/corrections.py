"""What a compiler made of a program over what the model says: costs of this program alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

_NEAR = 0.005
_NEAR_BYTES = 2.0**26


@dataclass(frozen=True, slots=True)
class Corrections:
    """Seconds and bytes of a compiled plan over, and besides, those of its model.

    Plans that are made for a cluster with corrections have them in all their costs; what is
    compiled is timed without.
    """

    products: float = 1.0
    """Seconds of matmuls, convolutions and kernels, times as many,"""
    others: float = 1.0
    """and of all other ops."""
    memory_bytes: float = 0.0
    """What a device needs more than planned; less, where it is negative."""

    def is_near(self, other: Corrections) -> bool:
        """Whether plans by either are as good as the same."""
        return (
            math.isclose(self.products, other.products, rel_tol=_NEAR)
            and math.isclose(self.others, other.others, rel_tol=_NEAR)
            and math.isclose(self.memory_bytes, other.memory_bytes, abs_tol=_NEAR_BYTES)
        )

    @property
    def none_needed(self) -> bool:
        """Whether the model is right."""
        return self == AS_MODELLED

    def __str__(self) -> str:
        besides = f"{abs(self.memory_bytes) / 2**30:.2f} GiB"
        return (
            f"corrected for one program: products take {self.products:.3f} times as long, other ops"
            f" {self.others:.3f} times, {besides} {'more' if self.memory_bytes >= 0 else 'less'}"
            " than planned"
        )


AS_MODELLED = Corrections()
CORRECTION_KEYS: tuple[str, ...] = tuple(one.name for one in fields(Corrections))
