"""Words for how a case went."""

from __future__ import annotations

from dataclasses import dataclass

EQUAL = "equal"
ROUNDING = "rounding"
"""Not within the tolerance, but the unsharded run is itself as far from one in double precision."""
WRONG_REFERENCE = "wrong reference"
"""The unsharded run is: XLA on one device. The sharded one is as in double precision."""
OF_ONE_DEVICE = "wrong on a device"
"""What one device computes of its part is wrong, or rounded otherwise: split in double precision,
the plan is right."""
REFUSED = "refused"
"""By an AutoshardError."""
OWN_FAULT = "refusal of its own fault"
"""By an AutoshardError that says nothing of the program: a plan of autoshard's that does not hold,
or a module that a pass left invalid."""
DOES_NOT_FIT = "does not fit"
BROKEN = "broken program"
"""The unsharded run fails too: a fault of the generator."""
WRONG = "WRONG"
TRACEBACK = "traceback"
"""An error that is no AutoshardError."""
ABORT = "abort"
HANG = "hang"

FINDINGS = (WRONG, TRACEBACK, OWN_FAULT, ABORT, HANG)
RESULTS = (
    *(EQUAL, ROUNDING, WRONG_REFERENCE, OF_ONE_DEVICE, REFUSED, DOES_NOT_FIT, BROKEN),
    *FINDINGS,
)


@dataclass(frozen=True)
class Outcome:
    """How a case went."""

    result: str
    """One of the words above."""
    detail: str = ""
    mismatches: tuple[str, ...] = ()
    """Texts of PlanMismatchWarnings."""
    seconds: float = 0.0
    is_cut: bool = False
    """Is any argument or result cut by the plan?"""
