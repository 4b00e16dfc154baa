"""One planned and compiled program: its arguments go where the plan wants them, and it runs."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax

from autoshard.errors import AutoshardWarning
from autoshard.frontend.arguments import Arguments
from autoshard.frontend.donation import Placement, is_placed, own_arrays, own_memory
from autoshard.frontend.place import moved
from autoshard.frontend.plan import Plan
from autoshard.ir.dispatch import ends_on_deleted_arrays, fast_call
from autoshard.ir.lowering import user_line
from autoshard.planned.summary import bytes_text

_tree: Any = jax.tree_util

_WORTH_A_WORD = 1 << 20
"""Bytes of a call, sent as in the call before, from which a warning says so: 10 us at 100 GB/s."""


class Running:
    """A program that is called again and again."""

    def __init__(
        self,
        plan: Plan,
        donated: Sequence[bool],
        compiled: jax.stages.Compiled | Callable[..., Any],
    ) -> None:
        """What is called.

        Args:
            plan: Its devices are here.
            donated: For each flat argument whether it is donated.
            compiled: The program of the plan, or a function that runs those of a pipeline.
        """
        self.plan = plan
        self.compiled = compiled
        self.placements: tuple[Placement, ...] = tuple(
            (number, sharding, donated[number])
            for number, sharding in enumerate(plan.named_shardings[0])
            if plan.arguments[number].is_used
        )
        self.donates = any(donated for _, _, donated in self.placements)
        mesh: Any = plan.jax_mesh if plan.pipeline is None else plan.pipeline.meshes[0]
        platform: str = mesh.devices.flat[0].platform
        self.ends_on_deleted_arrays = ends_on_deleted_arrays(platform, plan.mesh.size)
        self._may_share_memory = self.donates and platform == "cpu"
        """Has it not been called yet, on devices that cannot be given one buffer twice?"""
        self._sent: dict[int, weakref.ref[Any]] = {}
        """What the last call sent, by number of the argument."""
        self._has_warned = False

    def __call__(self, arguments: Arguments) -> tuple[Any, Any]:
        """The result, and how C++ makes such calls by itself; None if it cannot.

        Raises:
            DonationError: An array that is deleted, or that is donated and passed a second time.
        """
        given = self.owned(arguments.leaves)
        leaves = list(given)
        sent: list[int] = []
        for number, sharding, donated in self.placements:
            leaf = leaves[number]
            if isinstance(leaf, jax.Array) and not is_placed(leaf, sharding):
                leaves[number] = moved(leaf, sharding, self.plan, number, donated=donated)
                sent.append(number)
        may_be_fast = not self._matters(given, sent)
        if self._may_share_memory:
            self._may_share_memory = False
            leaves = own_memory(leaves, self.placements)
        args, kwargs = _tree.tree_unflatten(arguments.tree, leaves)
        result = self.compiled(*args, **kwargs)
        if not may_be_fast or not isinstance(self.compiled, jax.stages.Compiled):
            return result, None
        return result, fast_call(self.compiled, len(leaves), *_tree.tree_flatten(result))

    def owned(self, leaves: Sequence[Any]) -> list[Any]:
        """The arguments of a call, as they can be placed; see ``own_arrays``."""
        return own_arrays(leaves, self.placements, self.donates, self.plan)

    def _matters(self, leaves: Sequence[Any], sent: Sequence[int]) -> bool:
        """Must calls like this one see where their arguments lie? Warns of what is sent again.

        C++ sends arrays that are on no device in particular, and no others.
        """
        if not sent:
            return False
        donated = {number for number, _, is_donated in self.placements if is_donated}
        size = sum(leaves[number].nbytes for number in sent)
        again = [number for number in sent if self._is_sent_again(number, leaves[number])]
        self._sent = {number: weakref.ref(leaves[number]) for number in sent}
        bytes_again = sum(leaves[number].nbytes for number in again)
        if bytes_again >= _WORTH_A_WORD and not self._has_warned:
            self._has_warned = True
            self._warn(again, bytes_again)
        return size >= _WORTH_A_WORD or any(
            leaves[number].committed or number in donated for number in sent
        )

    def _is_sent_again(self, number: int, leaf: Any) -> bool:
        return number in self._sent and self._sent[number]() is leaf

    def _warn(self, numbers: Sequence[int], size: int) -> None:
        names = [self.plan.arguments[number].name for number in numbers]
        first = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        warnings.warn(
            AutoshardWarning(
                f"{self.plan.name}: {first} ({bytes_text(size)}) are not where the plan wants them"
                " and are sent there in every call. Put them there once: plan = jitted.plan(..),"
                " then args = plan.place(..) in place of the arguments.",
                user_line(),
            ),
            stacklevel=2,
        )
