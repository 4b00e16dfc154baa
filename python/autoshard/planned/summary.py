"""What a plan costs, in numbers: the JSON on the module, in files, and behind ``Plan``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from autoshard.errors import ParseError
from autoshard.ir.attributes import PLAN
from autoshard.planned.symbolic_costs import SymbolicCosts

if TYPE_CHECKING:
    from autoshard.cluster import Cluster


@dataclass(frozen=True, slots=True)
class CollectiveSummary:
    """Collectives of a plan that are alike: same kind, axes, size and line."""

    kind: str
    """``all-gather``, ``all-reduce``, ..: a value of ``CollectiveKind``."""
    axes: tuple[str, ...]
    """Mesh axes whose devices take part."""
    bytes: float
    """What one device sends in one run, on a ring."""
    times: float
    """Runs in one step, loops and equal layers included."""
    seconds: float | None
    """Seconds of all runs, before overlap; None where no cluster is known."""
    location: str | None
    """``file:line`` of the op that asks for it; the first one of a fold."""
    exposed_seconds: float | None = None
    """Seconds of all runs in which nothing else is done, as scheduled; None where that is not
    known."""
    slack_seconds: float | None = None
    """How much longer one run could take until something waited for it: the least of all."""

    @property
    def total_bytes(self) -> float:
        """What one device sends in all runs."""
        return self.bytes * self.times


@dataclass(frozen=True, slots=True)
class PeakValue:
    """A tensor that lives at the worst moment of a step, or several that are alike."""

    name: str
    """``params['w']`` of an argument, else the op that makes it: ``dot_general``. Of several
    ``params['layers'][*]['w']``."""
    type: str
    """``4096x11008xbf16``, on all devices together."""
    sharding: str
    bytes: float
    """On one device, all of them."""
    count: int
    """How many tensors."""
    location: str | None
    """``file:line``; None for arguments."""


@dataclass(frozen=True, slots=True)
class AxisSummary:
    """One axis of the plan's mesh."""

    name: str
    size: int
    role: str
    """What it cuts: ``batch``, ``parameters``, ``batch and parameters``, ``activations``, ..."""
    physical: str
    """The axes of the machine that it is made of: ``x0,x1``."""


@dataclass(frozen=True, slots=True)
class BatchSplit:
    """How a plan works through the batch of a step: ``size`` is the product of all others."""

    size: int
    """Examples of one step on all devices together: dim 0 of the arguments that hold them."""
    data_parallel: int
    """Pieces into which the plan cuts that dim of the argument that it cuts least."""
    micro_batch: int
    """Examples of one piece that are worked on at once."""
    gradient_accumulation: int
    """Rounds, one after the other, whose gradients are added."""
    micro_batches: int = 1
    """Those of these rounds that ``micro_batches`` asked for."""
    per_micro_batch: tuple[str, ...] = ()
    """Lines whose sums over the batch are those of each micro-batch, as the user said: the step is
    not that of the whole batch."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "per_micro_batch", tuple(self.per_micro_batch))


@dataclass(frozen=True, slots=True)
class TriedMicroBatches:
    """A number of micro-batches that ``micro_batches="auto"`` looked at, or ``pipeline="auto"``."""

    micro_batches: int
    outcome: str
    """``taken``; ``fits``, and is slower; ``does not fit``; ``bounded``: no plan of so many is
    faster than one that fits, or is expected to be; ``refused``: the step cannot be worked through
    so."""
    step_seconds: float | None = None
    """The fastest plan's that fits; of ``bounded``, which no plan of so many falls below."""
    peak_bytes: float | None = None
    """On one device, of the worst stage; of what does not fit, of the plan that needs least."""
    reason: str = ""
    """Why it is refused, with the line."""
    stages: int = 1
    """Stages of the pipeline that they go through; 1: on all devices at once."""
    chunks: int = 1
    """Parts of the model on each stage."""
    execution: str = "stages"
    """``lockstep``: all stages run one program."""


@dataclass(frozen=True, slots=True)
class SumsReducedOnce:
    """Sums of loops that devices reduce behind these, not in every trip."""

    count: int
    axes: tuple[str, ...]
    """Over which."""
    bytes_in_trips: float
    """What one device would send in a step if they were reduced in every trip."""
    bytes_once: float
    """What it sends; part of both is whatever else a step sends."""
    memory_bytes: float
    """What a device holds more in the loop: its parts of the sums are whole."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", tuple(self.axes))


@dataclass(frozen=True, slots=True)
class RecomputedValue:
    """A tensor that is computed again instead of being kept, or several that are alike."""

    name: str
    """The op that makes it and its type: ``tanh 4096x11008xbf16``."""
    count: int
    """How many tensors."""
    bytes: float
    """On one device, all of them: what need not wait."""
    seconds: float
    """Seconds of one run of the ops that make them, without what these need first."""
    location: str | None
    """``file:line``."""


@dataclass(frozen=True, slots=True)
class DecidedValue:
    """What becomes of a tensor that could be let go between the halves, or of several alike."""

    name: str
    """The op that makes it and its type: ``tanh 4096x11008xbf16``."""
    count: int
    """How many tensors."""
    bytes: float
    """On one device, all of them."""
    decision: str
    """``keep``, ``recompute``, or ``host``: it waits in the memory of the host."""
    seconds: float
    """The price, all other decisions given: what letting it go adds to a step. For what is kept,
    what that saves: the least that it would add."""
    location: str | None
    """``file:line``."""
    checkpoint_name: str | None = None
    """Its name by ``jax.ad_checkpoint.checkpoint_name``."""


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """A plan's estimate. Seconds and bytes are those of one step on one device."""

    step_seconds: float
    """Compute, what of communication does not hide behind it, and transfers to and from hosts."""
    compute_seconds: float
    communication_seconds: float
    """Seconds of all collectives, hidden or not."""
    peak_bytes_per_device: float
    cluster: str
    mesh: str
    devices: int
    mem_coeff: float = 0.0
    """The price of memory that was used: 1 is the time to read a byte of the peak once."""
    memory_limit: float | None = None
    """Bytes that the plan had to keep within; None: it did not have to."""
    lower_bound_seconds: float = 0.0
    """No plan of those that ``bound_covers`` is faster."""
    bound_covers: str = "no other plan"
    """``all plans of this mesh``, ``plans that differ in one axis``; ``no other plan`` where
    nothing was searched by time."""
    inputs_seconds: float = 0.0
    """What of a step is there because inputs are cut alike, for what loads them: up to 1%."""
    overlap: float = 0.0
    """Share of communication that is taken to hide behind compute."""
    cost_model: str = "seconds"
    """What the search made small: ``seconds``, ``symbolic`` costs, or ``bytes`` sent."""
    planning_seconds: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)
    """Seconds by phase, in order."""
    axes: tuple[AxisSummary, ...] = ()
    collectives: tuple[CollectiveSummary, ...] = ()
    """Those that take longest first."""
    peak_line: str | None = None
    """``file:line`` of the op that runs at the worst moment."""
    peak_values: tuple[PeakValue, ...] = ()
    """The largest tensors that live then, largest first."""
    symbolic_costs: SymbolicCosts | None = None
    """What the symbolic cost weighed; None in other cost models."""
    host_bytes_per_device: float = 0.0
    """Bytes of arguments and results in the memory of the host."""
    host_transfer_bytes: float = 0.0
    """Over the link to the host in one step, both ways together."""
    host_transfer_seconds: float = 0.0
    """Seconds of these transfers, if nothing ran beside them."""
    host_exposed_seconds: float = 0.0
    """What of that is a part of ``step_seconds``: what no op of the same loop hides."""
    batch: BatchSplit | None = None
    """None where the program does not tell which arguments hold the batch."""
    tried_micro_batches: tuple[TriedMicroBatches, ...] = ()
    """What ``micro_batches="auto"`` chose from, in order; empty where the number was given."""
    tried_pipelines: tuple[TriedMicroBatches, ...] = ()
    """What ``pipeline="auto"`` chose from, in order; empty where stages were given, or none."""
    recomputed: tuple[RecomputedValue, ...] = ()
    """What ``autoshard-recompute`` chose to compute again, most bytes first."""
    recompute_seconds: float = 0.0
    """What that adds to a step; part of ``step_seconds``."""
    decided: tuple[DecidedValue, ...] = ()
    """What became of values that could be let go where memory was short: what was let go first,
    then what is kept, the cheapest first."""
    reduced_once: SumsReducedOnce | None = None
    """What ``autoshard-reduce-once`` did; None where it would not make the step faster."""
    cluster_toml: str | None = None
    """The file of a cluster that ``cluster`` alone does not say; None: the name does."""
    scheduled_seconds: float | None = None
    """Seconds of the step with hidden what the compiler hides, as a model has it, whatever
    ``overlap`` is; None in files of older releases, and where nothing is known of seconds."""
    all_hidden_seconds: float | None = None
    """Seconds of the busiest of compute and links; None as above."""

    def read_cluster(self) -> Cluster:
        """The cluster that it is an estimate for."""
        from autoshard.cluster import Cluster
        from autoshard.cluster.toml_file import parse_toml

        if self.cluster_toml is None:
            return Cluster.parse(self.cluster)
        return parse_toml(self.cluster_toml, self.cluster)

    @property
    def nothing_hidden_seconds(self) -> float:
        """Seconds of the step if everything ran one after the other."""
        return self.compute_seconds + self.communication_seconds + self.host_transfer_seconds

    @property
    def gap(self) -> float | None:
        """``step_seconds / lower_bound_seconds - 1``; None for a bound of nothing."""
        if self.lower_bound_seconds <= 0:
            return None
        return max(0.0, self.step_seconds / self.lower_bound_seconds - 1)

    @property
    def total_planning_seconds(self) -> float:
        """All phases together."""
        return sum(self.planning_seconds.values())

    def with_history_of(self, before: PlanSummary) -> PlanSummary:
        """With what is known of how a plan was found, and of its batch, that was changed since.

        Not its bound: no search has seen the changed step.
        """
        return replace(
            self,
            axes=before.axes,
            mesh=before.mesh,
            mem_coeff=before.mem_coeff,
            cost_model=before.cost_model,
            planning_seconds=before.planning_seconds,
            inputs_seconds=before.inputs_seconds,
            symbolic_costs=before.symbolic_costs,
            recomputed=before.recomputed,
            recompute_seconds=before.recompute_seconds,
            decided=before.decided,
            batch=before.batch,
            reduced_once=before.reduced_once,
        )

    def to_json(self) -> str:
        """One JSON object; ``gap`` is in it for readers."""
        found = asdict(replace(self, symbolic_costs=None))
        found["gap"] = self.gap
        if self.symbolic_costs is not None:
            found["symbolic_costs"] = self.symbolic_costs.to_json()
        return json.dumps(found)

    @classmethod
    def from_json(cls, text: str) -> PlanSummary:
        """Read what ``to_json`` wrote.

        Raises:
            ParseError: The text is not one.
        """
        try:
            read: dict[str, Any] = json.loads(text)
            del read["gap"]
            if read["symbolic_costs"] is not None:
                read["symbolic_costs"] = SymbolicCosts.from_json(read["symbolic_costs"])
            if read["batch"] is not None:
                read["batch"] = BatchSplit(**read["batch"])
            if read.get("reduced_once") is not None:
                read["reduced_once"] = SumsReducedOnce(**read["reduced_once"])
            for name, kind in (
                ("axes", AxisSummary),
                ("collectives", CollectiveSummary),
                ("peak_values", PeakValue),
                ("tried_micro_batches", TriedMicroBatches),
                ("tried_pipelines", TriedMicroBatches),
                ("recomputed", RecomputedValue),
                ("decided", DecidedValue),
            ):
                read[name] = tuple(kind(**_with_tuples(entry)) for entry in read.get(name, ()))
            return cls(**read)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ParseError(
                f"{PLAN} is no summary of a plan: {error}. Plan the module again."
            ) from error


def _with_tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    """``axes`` of a collective is the only list in it."""
    return {**entry, "axes": tuple(entry["axes"])} if "axes" in entry else dict(entry)


def seconds_text(seconds: float) -> str:
    """``12.3 ms``."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def inputs_text(summary: PlanSummary) -> str:
    """Why the plan may be slower than another one by ``inputs_seconds``."""
    return (
        f"the plan gives {seconds_text(summary.inputs_seconds)} of a step to cut its inputs alike,"
        " so that each device is sent its part alone"
    )


def bytes_text(size: float) -> str:
    """``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def tensors_text(values: Sequence[PeakValue]) -> str:
    """``2 GiB dot_general 8192x65536xf32, 4 tensors (model.py:12); ..`` of the largest ones."""
    return "; ".join(
        f"{bytes_text(value.bytes)} {value.name} {value.type}"
        + (f", {value.count} tensors" if value.count > 1 else "")
        + (f" ({value.location})" if value.location else "")
        for value in values[:8]
    )
