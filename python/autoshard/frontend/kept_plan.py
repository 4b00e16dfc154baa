"""``autoshard.jit(.., plan=..)``: run a plan that was made before."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import jax

from autoshard.errors import PlanError
from autoshard.frontend.arguments import Arguments
from autoshard.frontend.device_order import source_of
from autoshard.frontend.fingerprint import Fingerprint, changes_of_program, changes_of_values
from autoshard.frontend.lower import Source, Target, lower_again
from autoshard.frontend.plan import Plan, PlannedValue
from autoshard.frontend.request import MODES, Mode, Request
from autoshard.frontend.result_names import result_names
from autoshard.ir import new_context, parse_bytes
from autoshard.ir.boundary import pads_indivisible
from autoshard.ir.custom_partitioning import names_callbacks
from autoshard.ir.planned_call import cannot_be_called
from autoshard.sharding import Mesh

_tree: Any = jax.tree_util

PlanLike = Plan | str | os.PathLike[str]
"""A plan, or the path of a file that ``plan.save`` wrote."""
Update = Literal["if-better"]


@dataclass(frozen=True)
class KeptPlan:
    """A plan that was made before, and what may take its place."""

    plan: PlanLike
    update: Update | None = None

    def __post_init__(self) -> None:
        if self.update not in (None, "if-better"):
            raise PlanError(
                f"update={self.update!r} is not known. Use 'if-better', or leave it out to run the"
                " plan that is given and no other."
            )
        if not isinstance(cast("object", self.plan), Plan | str | os.PathLike):
            raise PlanError(
                f"plan={self.plan!r} is no plan. Give what autoshard.plan or autoshard.Plan.load"
                " returned, or the path of a file that plan.save wrote."
            )

    def check_options(self, given: list[str]) -> None:
        """Refuse options of planning where nothing is planned.

        Raises:
            PlanError: There are some, and ``update`` is not given.
        """
        if given and self.update is None:
            raise PlanError(
                f"{', '.join(given)} would say nothing: plan= has decided already. Leave it out, or"
                " give update='if-better', which plans with it and takes the better plan."
            )

    def request(self, asked: Request) -> Request:
        """What a new plan is asked for: the cluster of this one, where no other is said.

        Raises:
            PlanError: It is a pipeline, which no new plan is compared with.
        """
        before = self.read()
        if before is not None and before.pipeline is not None:
            raise PlanError(
                f"update={self.update!r} is for plans of one program, and the plan that is given is"
                " a pipeline. Leave update out: then it is run."
            )
        if asked.cluster is not None or before is None or before.summary is None:
            return asked
        return replace(asked, cluster=before.summary.read_cluster())

    @property
    def path(self) -> Path | None:
        """The file, if it was given by name."""
        return None if isinstance(self.plan, Plan) else Path(self.plan)

    def read(self) -> Plan | None:
        """The plan; None where its file is still to be made.

        Raises:
            PlanError: There is no such file, and no update may make it.
            ParseError: It is no plan.
        """
        if isinstance(self.plan, Plan):
            return self.plan
        path = Path(self.plan)
        if path.exists():
            return Plan.load(path)
        if self.update is None:
            raise PlanError(
                f"plan={str(path)!r}: there is no such file. Make it by plan.save, or give"
                " update='if-better', which plans and writes it."
            )
        return None


def lower_for_plan(
    fn: Callable[..., Any], arguments: Arguments, plan: Plan, jit_options: Mapping[str, Any]
) -> Source:
    """``fn`` lowered as it was for the plan.

    Raises:
        PlanError: The plan does not say for what that was.
    """
    fingerprint = _fingerprint(plan)
    return lower_again(
        fn,
        arguments,
        Target(
            machine=plan.machine.with_mesh(Mesh.parse(fingerprint.mesh)),
            mode=_mode(plan),
            cluster=None if plan.summary is None else plan.summary.read_cluster(),
            has_mesh=fingerprint.has_mesh,
        ),
        jit_options,
        may_pad=pads_indivisible(parse_bytes(plan.bytecode, new_context(), plan.name)),
    )


def plan_for(plan: Plan, source: Source) -> Plan:
    """The plan with the structures of the arguments and results of a program.

    Raises:
        PlanError: It is another program than that of the plan; the message says what changed.
    """
    changes = changes_of(plan, source)
    if changes:
        raise PlanError(
            f"{source.name}: the plan is for another program: {'; '.join(changes)}. Plan again, or"
            " give update='if-better', which does so where the program has changed."
        )
    bound = bound_to_process(source)
    if bound is not None:
        raise PlanError(
            f"{source.name}: {bound}, which a plan that is kept cannot name. Leave plan= out."
        )
    stage: Any = source.program.stage
    return replace(plan, in_tree=stage.in_tree, out_tree=stage.out_tree)


def changes_of(plan: Plan, source: Source) -> list[str]:
    """How a program differs from that of the plan; empty where it does not."""
    stage: Any = source.program.stage
    arguments = zip(source.argument_names, _tree.tree_leaves(stage.args_info), strict=True)
    results = zip(result_names(stage.out_tree), _tree.tree_leaves(stage.out_info), strict=True)
    found = changes_of_values(_typed(plan.arguments), [_type(*each) for each in arguments])
    found += changes_of_values(_typed(plan.results), [_type(*each) for each in results])
    if plan.machine.devices != source_of(plan, source).machine.devices:
        found.append("its devices are others")
    return found or changes_of_program(_fingerprint(plan), source)


def bound_to_process(source: Source) -> str | None:
    """Why a planned program means nothing to another process; None if it does."""
    reason = cannot_be_called(source.program)
    if reason is None and names_callbacks(parse_bytes(source.program.bytecode, new_context())):
        reason = "it calls functions of Python while it is compiled (custom_partitioning)"
    return reason


def updated(kept: KeptPlan, source: Source, planned: Callable[[], Plan]) -> Plan:
    """The better plan of a new one and the kept one; a new one is written to its file.

    Args:
        kept: With ``update``.
        source: The program.
        planned: Makes the new plan.

    Raises:
        PlanError: A plan was made without a cluster, so that nothing is known of its seconds.
        OutputError: The file cannot be written.
    """
    new = planned()
    before = kept.read()
    if (
        before is not None
        and not changes_of(before, source)
        and before.step_seconds <= new.step_seconds
    ):
        return plan_for(before, source)
    if kept.path is not None:
        new.save(kept.path)
    return new


def _fingerprint(plan: Plan) -> Fingerprint:
    if plan.fingerprint is None:
        raise PlanError(
            f"plan of {plan.name}: it does not say for which program it is. Plan again."
        )
    return plan.fingerprint


def _mode(plan: Plan) -> Mode:
    return MODES[[*MODES].index(cast(Mode, plan.mode))]


def _typed(values: tuple[PlannedValue, ...]) -> list[tuple[str, str]]:
    return [(value.name, f"{value.dtype}{list(value.shape)}") for value in values]


def _type(name: str, info: Any) -> tuple[str, str]:
    return name, f"{info.dtype}{list(info.shape)}"
