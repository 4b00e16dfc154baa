"""What a search has read of a program, kept for questions about its plan.

A plan is a module as bytecode, which takes a second to parse, to import and to price again where
there are 50,000 ops. The plan that was made last keeps what its search had of that; older ones read
their modules again, so that memory does not grow with plans.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from autoshard.ir import mlir
from autoshard.passes.recursive_programming import PlannedProgram
from autoshard.planned.given_plan import Costed


@dataclass(eq=False)
class Searched:
    """The program of a plan, as long as no other plan is made."""

    program: PlannedProgram | None
    """None: another plan has been made since."""

    _newest: ClassVar[weakref.ref[Searched] | None] = None

    @classmethod
    def newest(cls, program: PlannedProgram) -> Searched:
        """Keep a program; the one that was kept before goes."""
        before = None if cls._newest is None else cls._newest()
        if before is not None:
            before.forget()
        found = cls(program)
        cls._newest = weakref.ref(found)
        return found

    def forget(self) -> None:
        """Let the program go."""
        self.program = None
        self.__dict__.pop("_costed", None)

    @property
    def known(self) -> tuple[mlir.Module, Costed] | None:
        """The module as planning left it, and the plan on it with its costs."""
        return None if self.program is None else (self.program.module, self._costed)

    @cached_property
    def _costed(self) -> Costed:
        assert self.program is not None
        return self.program.costed()
