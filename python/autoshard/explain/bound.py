"""What the seconds of an op are spent on, and what the chip at its peak would take.

    roofline = max(F / devices / peak, B / memory_bandwidth)

F are the operations of the whole op, B the bytes that one device moves for it, as planned; the
rates are the chip's, without what the model knows of efficiencies, tiles and launches. So the
distance to it has all of these, and what is computed several times.

Source: Williams, Waterman, Patterson 2009, "Roofline: an insightful visual performance model".
"""

from __future__ import annotations

from enum import Enum

from autoshard import _core
from autoshard.cluster.chips import Chip


class Bound(Enum):
    """What the time of a step is spent on."""

    MATRIX = "matrix units"
    VECTOR = "vector units"
    MEMORY = "HBM"
    LAUNCH = "launches"
    LINKS = "links"
    HOST = "host link"


def roofline_seconds(rule: _core.Rule, chip: Chip, devices: int, size: float) -> float:
    """Seconds of one run at the peak.

    Args:
        rule: Of the op, whole.
        chip: Each device.
        devices: How many could share its operations.
        size: Bytes that one device moves for it.
    """
    return max(rule.flops / devices / _peak(rule, chip), size / chip.memory_bandwidth.value)


def bound_of(rule: _core.Rule, chip: Chip, seconds: float, size: float) -> Bound:
    """What most of one run is spent on, by the formula of docs/design/cost_model.md.

    Args:
        rule: Of the op.
        chip: Each device.
        seconds: Of one run on one device.
        size: Bytes that one device moves for it.
    """
    memory = size / (chip.memory_bandwidth.value * chip.memory_efficiency.value)
    launch = chip.launch_seconds.value if size > 0 else 0.0
    work = seconds - launch
    if launch > work:
        return Bound.LAUNCH
    if memory >= work * (1 - 1e-6):
        return Bound.MEMORY
    return Bound.MATRIX if _is_matmul(rule) else Bound.VECTOR


def _is_matmul(rule: _core.Rule) -> bool:
    return rule.work in (_core.Work.MATMUL, _core.Work.KERNEL)


def _peak(rule: _core.Rule, chip: Chip) -> float:
    """FLOP/s."""
    if _is_matmul(rule):
        return chip.matmul_flops(rule.arithmetic).value
    return chip.vector_flops.value
