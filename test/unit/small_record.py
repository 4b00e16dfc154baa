"""A small record of which every number is known, for tests of what is read of records."""

from __future__ import annotations

from autoshard.explain.record import Record, RecordedCollective, RecordedOp
from autoshard.ir.locations import Frame
from autoshard.planned.summary import AxisSummary, PlanSummary


def op(name: str, phase: str, frame: int, seconds: float, bound: str) -> RecordedOp:
    return RecordedOp(
        id=f"{name}#0",
        name=name,
        op="dot_general",
        phase=phase,
        frame=frame,
        count=2,
        runs=1,
        type="8x8xf32",
        strategy="",
        seconds=seconds,
        roofline_seconds=seconds / 2,
        flops=1.0,
        bytes=1.0,
        bound=bound,
        idle_axes=(),
        uncut=(),
    )


def gather(scope: str, frame: int, seconds: float) -> RecordedCollective:
    return RecordedCollective(
        id="all-gather of w for operand 1 of dot_general",
        kind="all-gather",
        axes=("model",),
        bytes=8.0,
        times=2.0,
        seconds=seconds,
        location="/home/me/mlp.py:41",
        of="operand 1 of dot_general",
        value="w",
        type="8x8xf32",
        phase="forward",
        frame=frame,
        scope=scope,
        count=2,
    )


FRAMES = (
    Frame("step", "/home/me/run.py", 9, -1),
    Frame("mlp", "/home/me/mlp.py", 41, 0),
    Frame("Dense.call", "/lib/site-packages/flax/linear.py", 7, 1),
    Frame("adam", "/lib/site-packages/optax/adam.py", 3, 0),
)
SUMMARY = PlanSummary(
    step_seconds=13.0,
    compute_seconds=10.0,
    communication_seconds=4.0,
    peak_bytes_per_device=2**30,
    memory_limit=2.0**31,
    lower_bound_seconds=10.0,
    bound_covers="all plans",
    cluster="v5e:4x4",
    mesh="model=16",
    devices=16,
    axes=(AxisSummary("model", 16, "parameters", "x0,x1"),),
    host_exposed_seconds=1.0,
)
RECORD = Record(
    name="step",
    mode="auto",
    mesh="model=16",
    summary=SUMMARY,
    resharded_bytes=None,
    missing=None,
    frames=FRAMES,
    ops=(
        op("layers/*/dot_general@linear.py:7", "forward", 2, 4.0, "matrix units"),
        op("layers/*/dot_general@linear.py:7", "backward", 2, 3.0, "HBM"),
        op("add@adam.py:3", "update", 3, 2.0, "HBM"),
    ),
    collectives=(gather("layers/*", 2, 4.0),),
)
