"""The policy of ``jax.checkpoint`` that says what a plan decided for values that have names."""

from __future__ import annotations

from autoshard.errors import PlanError
from autoshard.ir import new_context, parse_bytes
from autoshard.ir.checkpoint_names import checkpoint_names
from autoshard.planned.remat_policy import remat_policy_text
from autoshard.planned.summary import PlanSummary


def remat_policy(bytecode: bytes, name: str, summary: PlanSummary) -> str:
    """Python text of the policy.

    Args:
        bytecode: The planned module.
        name: Of the program.
        summary: What was decided.

    Raises:
        PlanError: Nothing in the program has a name.
    """
    names = checkpoint_names(parse_bytes(bytecode, new_context(), name))
    if not names:
        raise PlanError(
            f"plan of {name}: no value of it has a name that a policy could say. Give"
            ' values names: x = jax.ad_checkpoint.checkpoint_name(x, "x").'
        )
    return remat_policy_text(names, summary.decided)
