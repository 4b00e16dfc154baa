"""What was decided for values that have names, as the policy of ``jax.checkpoint`` that says it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from autoshard.planned.summary import DecidedValue

_LET_GO = ("host", "recompute")


def remat_policy_text(names: Collection[str], decided: Sequence[DecidedValue]) -> str:
    """The Python text of a policy.

    Args:
        names: All names of the program. What is not decided on is saved: it fits.
        decided: What became of values. A policy says one thing of all values of a name: if some are
            let go, all are, as most bytes of them.
    """
    bytes_of: dict[tuple[str, str], float] = {}
    for one in decided:
        if one.checkpoint_name is not None:
            key = (one.checkpoint_name, one.decision)
            bytes_of[key] = bytes_of.get(key, 0.0) + one.bytes
    of: dict[str, list[str]] = {decision: [] for decision in (*_LET_GO, "keep")}
    for name in sorted(names):
        size = {decision: bytes_of.get((name, decision), 0.0) for decision in _LET_GO}
        most = max(_LET_GO, key=size.__getitem__)
        of[most if size[most] > 0 else "keep"].append(name)
    again = f"  # computed again: {', '.join(of['recompute'])}" if of["recompute"] else ""
    return (
        f"jax.checkpoint_policies.save_and_offload_only_these_names({again}\n"
        f"    names_which_can_be_saved={_list(of['keep'])},\n"
        f"    names_which_can_be_offloaded={_list(of['host'])},\n"
        '    offload_src="device",\n'
        '    offload_dst="pinned_host",\n'
        ")"
    )


def _list(names: Sequence[str]) -> str:
    quoted = (f'"{name}"' for name in names)
    return f"[{', '.join(quoted)}]"
