"""Tuple strategies: into how many pieces each dim of each operand is cut, ``((4, 1), (1, 2))``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from autoshard.errors import StrategyError
from autoshard.sharding.scanner import Scanner
from autoshard.sharding.sharding import Sharding
from autoshard.sharding.text import parse_sharding


@dataclass(frozen=True, slots=True)
class Cuts:
    """One value's tuple strategy; a dim that ``jax.vmap`` added is open.

    Raises:
        StrategyError: A number of pieces below 1.
    """

    counts: tuple[int | None, ...]
    """Pieces of each dim; None is open."""

    def __post_init__(self) -> None:
        for dim, count in enumerate(self.counts):
            if count is not None and count < 1:
                raise StrategyError(
                    f"strategy {self}: dim {dim} is cut into {count} pieces, but the number of"
                    " pieces must be larger than 0. Write 1 for a dim that is not cut."
                )

    def __str__(self) -> str:
        """``(4, 1)``, with ``?`` for an open dim."""
        return f"({', '.join('?' if count is None else str(count) for count in self.counts)})"

    @classmethod
    def parse(cls, text: str) -> Cuts:
        """Read ``(4, ?, 1)``.

        Raises:
            ParseError: The text has another form.
            StrategyError: A number of pieces below 1.
        """
        scanner = Scanner(text, "tuple strategy", "(4, 1)")
        scanner.expect("(")
        counts: list[int | None] = []
        while not scanner.accept(")"):
            counts.append(None if scanner.accept("?") else scanner.integer())
            if not scanner.accept(",") and scanner.peek() != ")":
                scanner.fail("expected ',' or ')'")
        scanner.expect_end()
        return cls(tuple(counts))

    @property
    def device_count(self) -> int:
        """Devices that hold different pieces."""
        return prod(count for count in self.counts if count is not None)

    def with_dim_inserted(self, dim: int) -> Cuts:
        """With a new open dim before ``dim``, as ``jax.vmap`` adds one."""
        return Cuts((*self.counts[:dim], None, *self.counts[dim:]))

    def check(
        self,
        shape: Sequence[int],
        device_count: int | None,
        name: str,
        location: str | None,
        allow_padding: bool = False,
    ) -> None:
        """Whether a value of ``shape`` can be cut this way on ``device_count`` devices.

        Args:
            shape: The value's shape.
            device_count: Devices that there are; None where that is not known yet.
            name: What the value is, for the error: ``"MatMul operand 0"``.
            location: ``file:line`` for the error.
            allow_padding: Accept sizes that leave the last pieces smaller.

        Raises:
            StrategyError: Wrong rank, indivisible size, or a number of pieces that does not
                divide the number of devices.
        """
        if len(shape) != len(self.counts):
            raise StrategyError(
                f"{name}: strategy {self} has {len(self.counts)} numbers, but the shape"
                f" ({', '.join(map(str, shape))}) has {len(shape)} dims."
                " Give one number for every dim; 1 leaves a dim whole.",
                location,
            )
        for dim, (size, count) in enumerate(zip(shape, self.counts, strict=True)):
            if count is not None and size % count and not allow_padding:
                raise StrategyError(
                    f"{name}: dim {dim} (size {size}) cannot be cut into {count} pieces by strategy"
                    f" {self}: {size} % {count} = {size % count}."
                    " Choose a number that divides the size, or cut another dim."
                    + (" Or plan with indivisible='pad'." if size > count else ""),
                    location,
                )
        if device_count is not None:
            check_device_count(
                self.device_count, device_count, f"{name}: strategy {self}", location
            )


def check_device_count(needed: int, available: int, name: str, location: str | None = None) -> None:
    """Raise StrategyError unless ``needed`` devices are there and divide ``available``."""
    if needed > available:
        raise StrategyError(
            f"{name} needs {needed} devices, but there are {available}."
            f" Make the product of the cuts at most {available}, or use more devices.",
            location,
        )
    if available % needed:
        raise StrategyError(
            f"{name} needs {needed} devices, which does not divide the {available} devices there"
            f" are: {available} % {needed} = {available % needed}."
            " Choose cuts whose product divides the number of devices.",
            location,
        )


def parse_mark(text: str) -> Sharding | Cuts:
    """Read the text of a user's mark: ``mesh[dp=2,tp=4] [{dp}, {}]`` or ``(4, 1)``.

    Raises:
        ParseError: The text has another form.
        ShardingError: A sharding that cannot be.
        StrategyError: A number of pieces below 1.
    """
    return Cuts.parse(text) if text.lstrip().startswith("(") else parse_sharding(text)
