"""Every error a user of autoshard can see.

A message names the place, the rule, the values found and a way out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

BytesWithout = Callable[[Collection[int]], float]
"""Bytes that a plan needs on one device with these arguments of ``main`` in the memory of the host,
by an estimate."""

RewrittenWith = Callable[[Collection[int], float], Any]
"""A plan as it was written with arguments of ``main`` in the memory of the host besides, within so
many bytes on one device: ``passes.recompute.Recomputed``, or a ``PlanError``."""


class AutoshardError(Exception):
    """Base of all autoshard errors.

    Attributes:
        message: What is wrong and what to do, without the place.
        location: ``file:line:col`` or ``file:line`` of the user's code, or None.
    """

    def __init__(self, message: str, location: str | None = None) -> None:
        super().__init__(f"{location}: {message}" if location else message)
        self.message = message
        self.location = location


class ParseError(AutoshardError):
    """A module, a sharding text, a mesh or a pass pipeline cannot be read."""


class ShardingError(AutoshardError, ValueError):
    """A sharding that cannot hold: unknown axis, axis used twice, wrong rank, indivisible size."""


class StrategyError(AutoshardError, ValueError):
    """A user's strategy that does not fit the op, or two that contradict each other."""


class ImportModuleError(AutoshardError):
    """A module that autoshard cannot plan, such as one with dynamic shapes."""


class PlanError(AutoshardError):
    """No plan satisfies what the user asked for."""


class DoesNotFitError(PlanError):
    """No plan keeps the program within the memory of a device.

    Attributes:
        peak_bytes: Of the plan that needs least, on one device at its worst moment.
        memory_limit: Bytes that a device may use.
        found: The message without its advice.
        advice: What may help.
        micro_batches: Parts of the batch in that plan; None where nobody chose them.
        free_seconds: A step of the plan with all the memory there could be; 0: nobody searched.
        bytes_without: What the plan would need with arguments on the host; None: nobody can tell.
        least_without: The same with others of its values computed again or sent to the host, as few
            bytes as that may come to; None likewise.
        rewritten_with: The plan of ``bytes_without``; None: it has to be made.
        within: The error of a smaller limit, within which no more fits; None: nobody can tell.
        largest: The largest tensors at the worst moment of that plan, with their bytes.
    """

    free_seconds: float = 0.0
    bytes_without: BytesWithout | None = None
    least_without: BytesWithout | None = None
    rewritten_with: RewrittenWith | None = None
    within: Callable[[float], DoesNotFitError] | None = None
    largest: str = ""

    def __init__(
        self,
        message: str,
        location: str | None,
        peak_bytes: float,
        memory_limit: float,
        *,
        advice: str = "",
        micro_batches: int | None = None,
    ) -> None:
        super().__init__(f"{message} {advice}" if advice else message, location)
        self.micro_batches = micro_batches
        self.found = message
        self.advice = advice
        self.peak_bytes = peak_bytes
        self.memory_limit = memory_limit


class SlowerPlanError(PlanError):
    """All plans have slower steps than asked for."""


class TracingError(AutoshardError):
    """A function that JAX cannot trace with the arguments that autoshard has to give it."""


class DonationError(AutoshardError, RuntimeError):
    """An array that has been deleted, or one that is donated and passed a second time."""


class OutputError(AutoshardError):
    """A file of results cannot be written."""


class PassOptionError(AutoshardError, ValueError):
    """An unknown pass, an unknown option of a pass, or a value it does not take."""


class PassError(AutoshardError):
    """A pass failed, or left a module that does not verify.

    Attributes:
        notes: What MLIR adds to the message: pairs of a text and its place (None if unknown).
    """

    def __init__(
        self,
        message: str,
        location: str | None = None,
        notes: tuple[tuple[str, str | None], ...] = (),
    ) -> None:
        super().__init__(message, location)
        self.notes = notes


class SolverError(AutoshardError, ValueError):
    """A cost network, or a file with one, that is malformed; or a choice that does not fit it."""


class ClusterError(AutoshardError, ValueError):
    """A cluster that nobody knows, that cannot be built, or that does not fit a mesh."""


class CompileError(AutoshardError):
    """A compiler could not say what it makes of a program.

    Attributes:
        reason: ``"refused"`` by an error of the compiler, ``"ended"`` its process, ``"killed"``
            by the machine, as where there is no memory left, ``"time limit"``, or
            ``"not installed"``.
    """

    def __init__(self, message: str, location: str | None = None, *, reason: str) -> None:
        super().__init__(message, location)
        self.reason = reason


class CheckError(AutoshardError):
    """A plan computes something wrong, or nobody can say whether it does."""


class AutoshardWarning(UserWarning):
    """Something the user should know about a place in the program.

    Attributes:
        message: What was found, without the place.
        location: ``file:line:col`` or ``file:line``, or None.
    """

    def __init__(self, message: str, location: str | None = None) -> None:
        super().__init__(f"{location}: {message}" if location else message)
        self.message = message
        self.location = location


class PlanMismatchWarning(UserWarning):
    """XLA did something else than the plan says."""
