"""What a plan is asked: why, why not, what if, and what differs."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

from autoshard.errors import PlanError
from autoshard.verify.ahead_of_time import TIME_LIMIT_SECONDS

if TYPE_CHECKING:
    from autoshard.explain.annotations import Annotations
    from autoshard.explain.causes import Why
    from autoshard.explain.diff import Diff
    from autoshard.explain.frontier import Frontier
    from autoshard.explain.library_annotations import LibraryAnnotations
    from autoshard.explain.question import Subject
    from autoshard.explain.record import Record
    from autoshard.explain.sensitivity import Sensitivities
    from autoshard.explain.what_if import WhatIf
    from autoshard.explain.why_not import WhyNot
    from autoshard.frontend.plan import Plan
    from autoshard.report.explanation import Explanation
    from autoshard.verify.verification import Verification


class PlanQuestions:
    """The questions of a ``Plan``, which alone is made of it."""

    @property
    def _plan(self) -> Plan:
        return cast("Plan", self)

    @cached_property
    def record(self) -> Record:
        """All that is told of the plan, equal layers once: what ``explain`` and files read."""
        from autoshard.explain.question import record_of_plan

        return record_of_plan(self._plan)

    def explain(
        self, *, frontier: bool = False, verified: Verification | None = None
    ) -> Explanation:
        """Why a step takes as long as it does: print it, or ask for ``to_markdown()``.

        What a step is spent on, with the bottleneck, by phase and by function of the user, each
        with its distance from the roofline; the dearest collectives. ``to_html()`` has more: the
        step and its memory over time, the program, tensors, devices.

        Args:
            frontier: Show ``frontier()`` as well, which takes several searches.
            verified: What ``verify()`` returned: the page shows the step as the compiler ordered
                it beside the plan's.

        Raises:
            PlanError: The plan was not searched by time and is asked for its frontier; or, of what
                is shown, it was made without a cluster.
            CompileError: The compiler left no program of which the order is known.
        """
        from autoshard.report.explanation import Explanation

        return Explanation(
            self.record,
            self.frontier() if frontier else None,
            None if verified is None else verified.simulated(),
        )

    @cached_property
    def subject(self) -> Subject:
        """The plan as questions are asked of it, with its program and what was solved so far.

        The program is what its search has read, or read again; kept until another plan is made.

        Raises:
            PlanError: It was not searched by time.
        """
        from autoshard.explain.question import subject_of
        from autoshard.frontend.searched import Searched

        Searched.asked(self._plan)
        return subject_of(self._plan)

    def why_not(self, *alternatives: str, **changes: Any) -> WhyNot:
        """Why the plan is not otherwise: the alternative is held, and all else planned again.

        Args:
            alternatives: How values are cut, ``"params.w2=P(None, 'model')"``: an argument or
                result by its path, with ``*`` for any word, or what a line makes, ``mlp.py:41``.
                Several hold together. Also an option, ``"mesh=data=2,model=4"``.
            changes: Options of ``autoshard.plan``: ``mesh="data=2,model=4"``, ``recompute="auto"``,
                ``host_offload="auto"``, ``optimizer_parallel=3``, ..

        Returns:
            One of four words, chosen, dearer, does not fit (by how much, which tensors) and
            impossible (which rule), and the difference by compute, communication and memory. A
            fifth, missed, where the search of the plan turns out to have missed a faster one.

        Raises:
            PlanError: No such value or option; an option of a plan that was loaded; or a plan that
                was not searched by time.
        """
        from autoshard.explain.why_not import why_not_plan

        return why_not_plan(self._plan, alternatives, changes)

    def why(self, what: int | str) -> Why:
        """Why a collective is there, or a value is cut as it is.

        Args:
            what: The number of a collective in the plan's table, from 1; an argument or result by
                its path, ``params.w2``; or a line, ``mlp.py:41``: its dearest collective, or else
                what it makes.

        Returns:
            Causes, each with what it would cost to have it otherwise, and its end: a pin, a limit
            of memory or of a rule, or a price.

        Raises:
            PlanError: There is no such thing, or the plan was not searched by time.
        """
        from autoshard.explain.causes import why

        return why(self.subject, what)

    def frontier(self) -> Frontier:
        """Plans that no other beats in both step and peak, about a dozen.

        From the fastest to that of least memory, each with the ``mem_coeff`` of its shardings;
        ``take(3)`` makes one of them the plan, ``within("7GiB")`` the fastest within a limit.
        They are of this mesh where all values are kept. Of a plan with ``recompute="auto"`` or
        ``host_offload="auto"`` they may compute values again and send them to the host, as far as
        it is allowed that, on the mesh that is fastest for each; not of one in stages, nor of one
        that was loaded, whose decisions stay.

        Raises:
            PlanError: The plan was not searched by time.
        """
        from autoshard.explain.frontier import fitted_frontier, frontier
        from autoshard.frontend.fitted_frontier import frontier_search

        search = frontier_search(self._plan)
        if search is not None:
            return fitted_frontier(self._plan, search)
        return frontier(self.subject, self._plan)

    def what_if(self, **ranges: Any) -> WhatIf:
        """The step as it would be planned on other machines, with another batch or limit.

        Args:
            ranges: What varies, a value or several of each; all combinations are planned.
                ``cluster``: names, files or ``Cluster``s; ``chips``: so many of the same;
                ``batch``: examples of a step; ``sequence``: dim 1 of its ids; ``memory_limit`` and
                ``overlap``: as in ``autoshard.plan``; and so many times as much of ``bandwidth``
                and ``latency`` (of all links), ``flops``, ``memory_bandwidth``, ``memory``,
                ``host_bandwidth`` and ``launch``.

        Raises:
            PlanError: Nothing varies; or another batch or sequence of a plan that was loaded.
        """
        from autoshard.explain.what_if import what_if_plan

        return what_if_plan(self._plan, ranges)

    def sensitivities(self, more: float = 0.1) -> Sensitivities:
        """By what part a step changes with so much more of each number of the machine.

        The plan stays as it is and is priced again.

        Args:
            more: As a part of what there is; 0.1 is a tenth.
        """
        from autoshard.explain.sensitivity import sensitivities

        return sensitivities(self.subject, more)

    def annotations(
        self,
        most_lines: int = 20,
        *,
        verify: bool = False,
        compiles: int = 1,
        timeout: float = TIME_LIMIT_SECONDS,
    ) -> Annotations:
        """A few lines of user code with which Shardy, and so ``jax.jit``, arrives at this plan.

        Shardings of arguments and ``with_sharding_constraint``s on what at most so many lines of
        the program make; what they do not reproduce, and what is sent besides, is listed with its
        bytes. Shardy's propagation, of the installed jaxlib, is asked what it makes of them; where
        it refuses a program, ``not_by_shardy`` says why, and the planner's is asked. None of them
        can be left out, but for those that ``untried`` counts in programs of some 10,000 ops. It
        takes tens of propagations: Ctrl-C takes the best lines so far.

        Args:
            most_lines: How many at most.
            verify: Compile the program with the lines as well, and with the whole plan, each in a
                process of its own: ``as_compiled`` says what comes back then. As for ``verify()``
                the compiler is needed, and no device.
            compiles: With ``verify`` how many lists of lines may be compiled. From 2 on lines are
                added around ops for which the compiler sends more or less than by the plan, and the
                best list as compiled is taken.
            timeout: Seconds of each compile.

        Raises:
            PlanError: The plan was not searched by time, ``most_lines`` or ``compiles`` is not
                above 0, or ``compiles`` is given without ``verify``.
            CompileError: The compiler is not installed, fails for another reason than memory, or is
                not done in time; or the plan does not fit as compiled.
        """
        from autoshard.explain.annotations import annotate, annotate_as_compiled
        from autoshard.explain.compiled_lines import LinesCompiler

        if not verify:
            if compiles != 1:
                raise PlanError(f"annotations: compiles={compiles} without verify=True. Give both.")
            return annotate(self.subject, most_lines)
        options = self._plan.compiler_options
        compiler = LinesCompiler(self.subject, timeout=timeout, compiler_options=options)
        return annotate_as_compiled(self.subject, compiler, most_lines, compiles)

    def annotations_for(
        self, library: Literal["flax", "nnx", "maxtext", "keras"], *variables: Any
    ) -> LibraryAnnotations:
        """This plan's shardings of arguments in the form of a library, as text to paste.

        The text begins with what the program with it reproduces of the plan's communication, and
        what the form cannot say. Shardings of what a program computes follow by propagation;
        ``annotations()`` names the lines that are worth a constraint.

        Args:
            library: ``"flax"``: rules for logical axes; ``"nnx"``: axes for
                ``nnx.with_partitioning``, by path; ``"maxtext"``: keys of its config, rules and
                sizes of the mesh; ``"keras"``: a ``LayoutMap`` and its ``ModelParallel``.
            variables: Of keras alone: for each positional argument its variables,
                ``model.trainable_variables``, or None.

        Raises:
            PlanError: The program has nothing that the form speaks of, or the plan was not searched
                by time.
            StrategyError: No propagation keeps what the form says.
        """
        from autoshard.explain.library_annotations import annotations_for

        return annotations_for(self._plan, self.subject, library, variables)

    def diff(self, other: Plan) -> Diff:
        """What another plan does otherwise, of this program or of another revision of it.

        Terms of a step, values that are cut otherwise, collectives and memory; equal changes are
        one row. ``autoshard diff A B`` does the same with files.

        Args:
            other: Made now, or loaded.

        Raises:
            PlanError: It is no plan.
        """
        from autoshard.explain.diff import diff_plans

        if not isinstance(cast("object", other), PlanQuestions):
            raise PlanError(
                f"plan.diff({other!r}): that is no plan. Give one that autoshard.plan returned, or"
                " autoshard.Plan.load(path) of a file."
            )
        return diff_plans(self._plan, other)
