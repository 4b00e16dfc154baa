"""``autoshard.plan_together``: several programs that share arguments, as a train and a decode step.

The shared arguments lie once, as the plan of one of the programs wants them, and the others are
planned around that; or each program has a copy of its own, moved there after each update.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import jax

from autoshard.cluster import Cluster
from autoshard.errors import DoesNotFitError, PlanError, StrategyError
from autoshard.frontend.jit import Jitted, jit
from autoshard.frontend.pins import fed_back_arguments
from autoshard.frontend.plan import Plan, PlannedValue
from autoshard.frontend.planning import plan
from autoshard.frontend.request import ClusterLike
from autoshard.ir import new_context, parse_bytes
from autoshard.passes.recursive_programming import memory_limit_of
from autoshard.planned.summary import bytes_text, seconds_text
from autoshard.sharding import Mesh, to_partition_spec

_tree: Any = jax.tree_util

Program = Sequence[Any]
"""A function and its arguments, ``(decode, params, cache, token)``."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to lay out what is shared."""

    name: str
    """``as train_step`` or ``each its own``."""
    step_seconds: tuple[float, ...]
    """Seconds of a step of each program."""
    move_seconds: float
    """Seconds of all moves of a round."""
    round_seconds: float
    """A round: each program as often as its weight says, and the moves."""
    peak_bytes: float
    """On one device, copies that wait included."""


@dataclass(frozen=True)
class Together:
    """What was decided for several programs."""

    plans: tuple[Plan, ...]
    """One a program; ``autoshard.jit(decode, plan=together.plans[1])`` runs it, with the donated
    and static arguments that it was planned with."""
    weights: tuple[float, ...]
    """How often each program runs in a round."""
    way: Way
    """What was taken."""
    ways: tuple[Way, ...]
    """All that are possible and fit, the shortest round first."""
    moves: tuple[Plan | None, ...] = field(repr=False)
    """For each program the plan of bringing it what is shared, after another one has updated it;
    None where it lies there."""

    def move(self, number: int) -> Callable[..., Any]:
        """What brings a program what is shared: a planned function of it, flat, as a tuple.

        Raises:
            PlanError: It lies there already.
        """
        found = self.moves[number]
        if found is None:
            raise PlanError(
                f"{self.plans[number].name}: what is shared lies where it wants it, nothing moves."
            )
        return cast("Jitted[Any, Any]", jit(_moved, plan=found))

    def __str__(self) -> str:
        """A line for each way."""
        names = [plan.name for plan in self.plans]
        runs = ", ".join(f"{n} × {w:g}" for n, w in zip(names, self.weights, strict=True))
        lines = [f"together: {runs} a round; shared {self.way.name}"]
        for way in self.ways:
            steps = ", ".join(map(seconds_text, way.step_seconds))
            moves = f", moves {seconds_text(way.move_seconds)}" if way.move_seconds else ""
            lines.append(
                f"{way.name}: {seconds_text(way.round_seconds)} a round (steps {steps}{moves}),"
                f" {bytes_text(way.peak_bytes)} a device"
            )
        return "\n".join(lines)


def plan_together(
    programs: Sequence[Program],
    *,
    share: str,
    weights: Sequence[float] | None = None,
    cluster: ClusterLike | None = None,
    each: Sequence[Mapping[str, Any]] | None = None,
    **options: Any,
) -> Together:
    """Plan programs that run in turns on the same arrays, such as a train and a decode step.

    A round runs each program as often as its weight says. Tried is the layout that each program
    alone wants for what is shared, with the others planned around it, and a layout of its own for
    each, moved to it once a round where another program updates what is shared. The way with the
    shortest round that fits is taken.

    Args:
        programs: Of each the function and its arguments, ``(decode, params, cache, token)``;
            ``jax.ShapeDtypeStruct``s will do.
        share: The name that the shared argument has in all functions, ``"params"``.
        weights: How often each program runs; None: each once.
        cluster: As of ``autoshard.plan``.
        each: Options for each program alone, as ``{"donate_argnums": (0, 1)}``.
        options: As of ``autoshard.plan``, for all of them.

    Raises:
        PlanError: Fewer than two programs, no such argument, or one of another type; weights that
            are no numbers above 0.
        DoesNotFitError: No way fits.
    """
    parts = _parts(programs, share, each, options)
    counts = _weights(weights, len(parts))
    cluster = Cluster.detect() if cluster is None else Cluster.of(cluster)
    limit = memory_limit_of(cluster, str(options.get("memory_limit") or ""))
    alone = [part.planned(cluster) for part in parts]
    shared = [part.shared(found) for part, found in zip(parts, alone, strict=True)]
    _check_alike([found.name for found in alone], share, shared)
    found = [_apart(alone, shared, counts, cluster, limit)]
    failed: DoesNotFitError | None = None
    for owner, values in enumerate(shared):
        try:
            plans = [
                alone[number] if number == owner else part.planned(cluster, alone[owner], values)
                for number, part in enumerate(parts)
            ]
        except DoesNotFitError as error:
            failed = error
            continue
        except StrategyError:  # a mark or pin of another program says otherwise
            continue
        found.append(_as_one(f"as {alone[owner].name}", plans, counts))
    possible = [each for each in found if each is not None]
    if not possible:
        assert failed is not None
        raise failed
    best = min(possible, key=lambda found: found.way.round_seconds)
    ways = sorted((each.way for each in possible), key=lambda way: way.round_seconds)
    return Together(tuple(best.plans), counts, best.way, tuple(ways), tuple(best.moves))


@dataclass(frozen=True)
class _Found:
    way: Way
    plans: Sequence[Plan]
    moves: Sequence[Plan | None]


@dataclass(frozen=True)
class _Part:
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    place: int
    """Number of the shared argument."""
    options: Mapping[str, Any]

    def planned(
        self, cluster: Cluster, owner: Plan | None = None, values: Sequence[PlannedValue] = ()
    ) -> Plan:
        """Alone, or with what is shared as another plan has it."""
        if owner is None:
            return plan(self.fn, *self.args, cluster=cluster, **self.options)
        tree = _tree.tree_structure(self.args[self.place])
        specs = [to_partition_spec(value.sharding) for value in values]
        pins: list[Any] = [None] * len(self.args)
        pins[self.place] = _tree.tree_unflatten(tree, specs)
        return plan(
            self.fn,
            *self.args,
            cluster=cluster,
            mesh=owner.mesh,
            in_shardings=tuple(pins),
            **self.options,
        )

    def shared(self, plan: Plan) -> list[PlannedValue]:
        """The arrays that are shared, in order."""
        before = len(_tree.tree_leaves(self.args[: self.place]))
        count = len(_tree.tree_leaves(self.args[self.place]))
        return list(plan.arguments[before : before + count])


def _parts(
    programs: Sequence[Program],
    share: str,
    each: Sequence[Mapping[str, Any]] | None,
    options: Mapping[str, Any],
) -> list[_Part]:
    if len(programs) < 2:
        raise PlanError(f"plan_together: {len(programs)} program. Give two or more.")
    nothing: Mapping[str, Any] = {}
    own = [nothing] * len(programs) if each is None else list(each)
    if len(own) != len(programs):
        raise PlanError(
            f"plan_together: each= has {len(own)} entries for {len(programs)} programs. Give one"
            " for each, {} where there is nothing to say."
        )
    for refused in ("in_shardings", "mesh"):
        if any(refused in given for given in (options, *own)):
            raise PlanError(
                f"plan_together: {refused} is what it decides. Use autoshard.shard in the programs"
                " for what must be so."
            )
    found: list[_Part] = []
    for (fn, *args), said in zip(programs, own, strict=True):
        names = list(inspect.signature(fn).parameters)[: len(args)]
        if share not in names:
            raise PlanError(
                f"plan_together: {getattr(fn, '__name__', fn)} has no argument {share}, only"
                f" {', '.join(names)}. Name the shared argument alike in all functions."
            )
        found.append(_Part(fn, tuple(args), names.index(share), {**options, **said}))
    return found


def _weights(weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    found = tuple(float(weight) for weight in (weights or [1.0] * count))
    if len(found) != count or not all(weight > 0 for weight in found):
        raise PlanError(
            f"plan_together: weights={weights} for {count} programs. Give a number above 0 for"
            " each: how often it runs in a round."
        )
    return found


def _check_alike(
    names: Sequence[str], share: str, shared: Sequence[Sequence[PlannedValue]]
) -> None:
    first = [(value.shape, value.dtype) for value in shared[0]]
    for name, values in zip(names[1:], shared[1:], strict=True):
        if [(value.shape, value.dtype) for value in values] != first:
            raise PlanError(
                f"plan_together: {share} of {name} has other arrays than that of {names[0]}. What"
                " is shared has one type in all programs."
            )


def _as_one(name: str, plans: Sequence[Plan], weights: Sequence[float]) -> _Found:
    steps = tuple(plan.step_seconds for plan in plans)
    seconds = sum(w * s for w, s in zip(weights, steps, strict=True))
    peak = max(plan.peak_bytes for plan in plans)
    return _Found(Way(name, steps, 0.0, seconds, peak), plans, [None] * len(plans))


def _apart(
    plans: Sequence[Plan],
    shared: Sequence[Sequence[PlannedValue]],
    weights: Sequence[float],
    cluster: Cluster,
    limit: float,
) -> _Found | None:
    """Each program with a layout of its own; None if the copies do not fit."""
    owners = [number for number, each in enumerate(plans) if _updates(each, shared[number])]
    owner = owners[0] if owners else 0
    moves: list[Plan | None] = []
    for other, values in zip(plans, shared, strict=True):
        is_there = all(
            value.sharding.same_placement(own.sharding)
            for value, own in zip(values, shared[owner], strict=True)
        )
        moves.append(
            None if is_there else _move(plans[owner], shared[owner], other, values, cluster)
        )
    copies = [_local_bytes(values) for values in shared]
    waiting = sum(copies[n] for n, move in enumerate(moves) if move is not None) + copies[owner]
    peak = max(
        each.peak_bytes + waiting - (copies[owner] if move is None else copies[number])
        for number, (each, move) in enumerate(zip(plans, moves, strict=True))
    )
    if peak > limit:
        return None
    moved = sum(move.step_seconds for move in moves if move is not None) if owners else 0.0
    found = _as_one("each its own", plans, weights)
    way = found.way
    return _Found(
        Way(way.name, way.step_seconds, moved, way.round_seconds + moved, peak), plans, moves
    )


def _updates(plan: Plan, values: Sequence[PlannedValue]) -> bool:
    """Does a result of the program take the place of what is shared?"""
    assert plan.origin is not None
    source = plan.origin.source
    module = parse_bytes(source.program.bytecode, new_context(), source.name)
    replaced = set(fed_back_arguments(source, module).values())
    number = plan.arguments.index(values[0])
    program = source.program
    places = {kept: at + program.constant_count for at, kept in enumerate(program.kept)}
    return places.get(number) in replaced


def _local_bytes(values: Sequence[PlannedValue]) -> float:
    return float(sum(_bytes(value) for value in values))


def _bytes(value: PlannedValue) -> int:
    struct = jax.ShapeDtypeStruct(value.local_shape, value.dtype)
    return struct.size * struct.dtype.itemsize


def _moved(*arrays: Any) -> tuple[Any, ...]:
    return arrays


def _move(
    owner: Plan,
    there: Sequence[PlannedValue],
    plan_: Plan,
    here: Sequence[PlannedValue],
    cluster: Cluster,
) -> Plan:
    """The plan of bringing what is shared from one layout to another."""
    mesh = Mesh.common_refinement([owner.mesh, plan_.mesh])
    types = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in here]
    return plan(
        _moved,
        *types,
        cluster=cluster,
        mesh=mesh,
        mode="semi_auto",
        in_shardings=tuple(value.sharding.on(mesh) for value in there),
        out_shardings=tuple(value.sharding.on(mesh) for value in here),
    )
