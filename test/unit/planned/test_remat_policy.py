"""What was decided for named values is a policy of ``jax.checkpoint``."""

from __future__ import annotations

from autoshard.planned.remat_policy import remat_policy_text
from autoshard.planned.summary import DecidedValue


def value(decision: str, size: float, name: str | None) -> DecidedValue:
    return DecidedValue("dot_general 8x8xf32", 1, size, decision, 1e-3, None, name)


def test_names_are_saved_offloaded_or_left_out() -> None:
    decided = (
        value("host", 4.0, "mlp"),
        value("keep", 4.0, "mlp"),
        value("recompute", 2.0, "query"),
        value("host", 1.0, "query"),
        value("keep", 1.0, "out"),
        value("recompute", 1.0, None),
    )
    assert remat_policy_text({"mlp", "query", "out", "fits"}, decided) == (
        "jax.checkpoint_policies.save_and_offload_only_these_names(  # computed again: query\n"
        '    names_which_can_be_saved=["fits", "out"],\n'
        '    names_which_can_be_offloaded=["mlp"],\n'
        '    offload_src="device",\n'
        '    offload_dst="pinned_host",\n'
        ")"
    )
