"""When, where and with what the constants of a cluster were measured."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class CalibrationRecord:
    """What ``autoshard.calibrate`` measured on; the table ``[calibration]`` of a file."""

    date: str
    """``2026-01-31``."""
    jax: str
    """Release."""
    jaxlib: str
    platform: str
    """``cpu``, ``gpu``, ``tpu``."""
    device_kind: str
    """As ``jax.Device`` names it; of CPUs the processor."""
    num_devices: int
    """All working at once."""
    num_points: int

    def __str__(self) -> str:
        return (
            f"measured on {self.date}, {self.num_points} points on {self.num_devices} x"
            f" {self.device_kind} ({self.platform}), jax {self.jax}, jaxlib {self.jaxlib}"
        )


RECORD_NUMBERS = ("num_devices", "num_points")
"""Its fields that are numbers; the others are texts."""
RECORD_KEYS: tuple[str, ...] = tuple(f.name for f in fields(CalibrationRecord))
