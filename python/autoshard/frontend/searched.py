"""What a search has read of a program, kept for questions about its plan.

A plan is a module as bytecode, which takes a second to parse, to import and to price again where
there are 50,000 ops. The plan that was made last keeps what its search had of that; older ones read
their modules again when they are asked. What they have read, and solved, goes when the next plan is
made, so that memory does not grow with plans.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from autoshard.ir import mlir
from autoshard.passes.recursive_programming import PlannedProgram
from autoshard.planned.given_plan import Costed

if TYPE_CHECKING:
    from autoshard.frontend.plan import Plan


@dataclass(eq=False)
class Searched:
    """The program of a plan, as long as no other plan is made."""

    program: PlannedProgram | None
    """None: another plan has been made since."""

    _costed: Costed | None = field(default=None, repr=False)

    _newest: ClassVar[weakref.ref[Searched] | None] = None
    _asked: ClassVar[weakref.WeakValueDictionary[int, Plan]] = weakref.WeakValueDictionary()
    """Plans whose ``subject`` has been made."""

    @classmethod
    def newest(cls, program: PlannedProgram) -> Searched:
        """Keep a program; the one that was kept before goes, and what plans were asked about."""
        before = None if cls._newest is None else cls._newest()
        if before is not None:
            before.forget()
        cls._forget_subjects()
        found = cls(program)
        cls._newest = weakref.ref(found)
        return found

    @classmethod
    def asked(cls, plan: Plan) -> None:
        """The plan's ``subject`` is made, and goes with the next plan."""
        cls._asked[id(plan)] = plan

    def forget(self) -> None:
        """Let the program go."""
        self.program = None
        self._costed = None
        self._forget_subjects()

    @classmethod
    def _forget_subjects(cls) -> None:
        for reference in cls._asked.valuerefs():
            if (plan := reference()) is not None:
                plan.__dict__.pop("subject", None)

    @property
    def known(self) -> tuple[mlir.Module, Costed] | None:
        """The module as planning left it, and the plan on it with its costs."""
        program = self.program  # once: another thread may make a plan meanwhile
        if program is None:
            return None
        costed = self._costed or program.costed()
        if self.program is program:
            self._costed = costed
        return program.module, costed
