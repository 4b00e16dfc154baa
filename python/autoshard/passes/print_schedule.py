"""Print when each stage of a pipeline works on which micro-batch.

    2 stages, 4 micro-batches: 1.12 ms, bubble 16.7 %, no schedule is under 1.12 ms
    stage 0  F0 F1 ... B0 F2 B1 F3 B2 ... B3  keeps 2
    stage 1  ... FB0 FB1 FB2 FB3 ...  keeps 0

The module stays as it is.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar, Literal

from autoshard.cluster import Cluster
from autoshard.errors import PassOptionError
from autoshard.ir import mlir
from autoshard.ir.micro_batch_loop import micro_batches_of, pipeline_chunks_of
from autoshard.passes.base import Pass, no_cluster
from autoshard.planned.stage_works import stage_works
from autoshard.schedule.gantt import gantt
from autoshard.schedule.rules import schedule_of_works
from autoshard.writing import write_file


@dataclass(frozen=True)
class PrintSchedule(Pass):
    """Print the schedule of a step whose ops have stages, as a chart of text.

    Seconds are those that the cost model gives each op on one device.
    """

    name: ClassVar[str] = "autoshard-print-schedule"

    cluster: str = ""
    """By whose chip ops are timed, h100:4x8 or a TOML file; must be given."""

    schedule: Literal["gpipe", "1f1b", "zero_bubble"] = "1f1b"
    """The rule by which stages choose what they do first."""

    micro_batches: int = 0
    """How many; those of the module when 0."""

    transfer_seconds: float = 0.0
    """What it takes to hand something to another stage."""

    width: int = 160
    """Columns at most."""

    file: str = ""
    """Where to print; standard error when empty."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.micro_batches < 0 or self.transfer_seconds < 0 or self.width < 1:
            raise PassOptionError(
                f"{self.name}: micro-batches={self.micro_batches} transfer-seconds="
                f"{self.transfer_seconds} width={self.width}: expected 0 or more, and a width."
            )

    def run(self, module: mlir.Module) -> None:
        """See ``Pass.run``. OutputError when the file cannot be written."""
        if not self.cluster:
            raise no_cluster(self.name)
        with module.context, mlir.Location.unknown():
            works = stage_works(
                module, Cluster.of(self.cluster), splits_gradients=self.schedule == "zero_bubble"
            )
            count = self.micro_batches or micro_batches_of(module)
            chunks = pipeline_chunks_of(module)
        schedule = schedule_of_works(
            self.schedule,
            works,
            1 + max(work.stage for work in works),
            count,
            chunks,
            self.transfer_seconds,
        )
        text = gantt(schedule, self.width, self.transfer_seconds)
        if not self.file:
            print(text, file=sys.stderr)
            return
        write_file(self.file, f"{text}\n".encode())
