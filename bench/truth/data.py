"""What ops are run on: small integers, and indices inside and outside of bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

SEEDS = 3
"""Data sets inside of bounds, and as many outside."""

Spec = Mapping[str, Any]
"""A ``cases.Operand`` as JSON."""


def data_sets(operands: Sequence[Spec]) -> list[tuple[str, list[np.ndarray]]]:
    """Names and arrays; ``outside`` has indices that have to be clamped, or are dropped."""
    if not any(operand["fill"] in ("start", "vectors") for operand in operands):
        return [("values", [filled(operand, 0, "inside") for operand in operands])]
    return [
        (where, [filled(operand, seed, where) for operand in operands])
        for where in ("inside", "outside")
        for seed in range(SEEDS)
    ]


def filled(operand: Spec, seed: int, where: str) -> np.ndarray:
    """One operand."""
    shape, dtype = operand["shape"], np.dtype(operand["dtype"])
    random = np.random.default_rng([seed, *shape])
    fill = operand["fill"]
    if fill == "start":
        limit, size = operand["limits"][0], operand["sizes"][0]
        starts = {
            "inside": (0, limit // 2, limit),
            "outside": (-size - 3, limit + 1, limit + 2 * size),
        }
        return np.asarray(starts[where][seed], dtype)
    if fill == "vectors":
        return _vectors(operand, random, where).astype(dtype)
    if fill == "positive_definite":
        noise = random.integers(-3, 4, shape)
        noise = noise + np.swapaxes(noise, -1, -2)
        return (noise + 16 * shape[-1] * np.eye(shape[-1])).astype(dtype)
    if fill == "triangular":
        return (np.tril(random.integers(1, 4, shape)) + 4 * np.eye(shape[-1])).astype(dtype)
    if dtype == np.bool_:
        return random.integers(0, 2, shape).astype(dtype)
    values = random.integers(0 if dtype.kind == "u" else -3, 4, shape)
    if dtype.kind == "c":
        return (values + 1j * random.integers(-3, 4, shape)).astype(dtype)
    return values.astype(dtype)


def _vectors(operand: Spec, random: np.random.Generator, where: str) -> np.ndarray:
    """Index vectors along the last dim, sorted and distinct where the op is promised that."""
    *outer, count = operand["shape"]
    limits, sizes = np.array(operand["limits"]), np.array(operand["sizes"])
    low = np.zeros_like(limits) if where == "inside" else -sizes
    high = limits + 1 if where == "inside" else limits + 2 * sizes
    batch = [n for dim, n in enumerate(outer) if dim in operand["batch_dims"]]
    rest = [n for dim, n in enumerate(outer) if dim not in operand["batch_dims"]]
    found = np.empty((*batch, int(np.prod(rest)), count), np.int64)
    for place in np.ndindex(*batch):
        if operand["distinct"]:
            chosen = _distinct(random, low, high, operand["windows"], found.shape[-2])
        else:
            chosen = random.integers(low, high, found.shape[-2:])
        found[place] = chosen[np.lexsort(chosen.T[::-1])] if operand["sorted"] else chosen
    # Batch dims of the indices may stand anywhere, here they are in front.
    found = found.reshape(*batch, *rest, count)
    order = [dim for dim in range(len(outer)) if dim in operand["batch_dims"]]
    order += [dim for dim in range(len(outer)) if dim not in operand["batch_dims"]]
    return np.transpose(found, (*np.argsort(order), len(outer)))


def _distinct(
    random: np.random.Generator,
    low: np.ndarray,
    high: np.ndarray,
    windows: Sequence[int],
    needed: int,
) -> np.ndarray:
    """Starts of windows that do not overlap; far outside of bounds once there are no more."""
    ranges = [
        np.arange(-(-first // step) * step, last, step)
        for first, last, step in zip(low, high, windows, strict=True)
    ]
    grid = np.stack(np.meshgrid(*ranges, indexing="ij"), -1).reshape(-1, len(windows))
    if needed > len(grid):
        far = 2**20 + np.arange(needed)[:, None] * np.array(windows)
        grid = np.concatenate([grid, far])
        return grid[random.permutation(needed)]
    return grid[random.permutation(len(grid))[:needed]]
