"""``autoshard.plan_together``: several programs that share arguments, as a train and a decode step.

The shared arguments lie once, as the plan of one of the programs wants them, and the others are
planned around that; or each program has a copy of its own, moved there after each update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import jax

from autoshard.cluster import Cluster
from autoshard.errors import DoesNotFitError, PlanError, StrategyError
from autoshard.frontend.arguments import StaticArguments, positional_names
from autoshard.frontend.jit import Jitted, jit
from autoshard.frontend.lower import Source, Traced, traced_for
from autoshard.frontend.pins import fed_back_arguments
from autoshard.frontend.plan import Plan, PlannedValue
from autoshard.frontend.planning import plan, plan_source
from autoshard.frontend.request import ClusterLike, Request
from autoshard.ir import new_context, parse_bytes
from autoshard.ir.boundary import tie_donated, tied_arguments
from autoshard.passes.memory_limit import memory_limit_of
from autoshard.planned.summary import bytes_text, seconds_text
from autoshard.progress import task
from autoshard.sharding import Mesh, Sharding

_tree: Any = jax.tree_util

Program = Sequence[Any]
"""A function and its arguments, ``(decode, params, cache, token)``."""

_MOST_TRIES = 4
"""How often programs are planned with less memory, as others need more while they wait."""

_OF_JIT = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")

Key = tuple[str, int]
"""The name of what is shared, and which of its arrays."""


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
    """On one device, with what lies there meanwhile: arguments of the programs that wait, and
    copies."""


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
    """All that are possible and fit, the best by the objective first."""
    moves: tuple[Plan | None, ...] = field(repr=False)
    """For each program the plan of bringing it what is shared, after another one has updated it;
    None where it lies there."""
    moved: tuple[tuple[str, ...], ...] = ()
    """For each program the names of what its move brings."""

    def move(self, number: int) -> Callable[..., Any]:
        """What brings a program what is shared: a function of the parts that ``moved`` names.

        It takes them as pytrees, or their arrays one by one, and returns a tuple of the same.

        Raises:
            PlanError: It lies there already.
        """
        found = self.moves[number]
        if found is None:
            raise PlanError(
                f"{self.plans[number].name}: what is shared lies where it wants it, nothing moves."
            )
        brought = cast("Jitted[Any, Any]", jit(_moved, plan=found))

        def bring(*parts: Any) -> Any:
            leaves, tree = _tree.tree_flatten(parts)
            return _tree.tree_unflatten(tree, brought(*leaves))

        return bring

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
    share: str | Sequence[str],
    weights: Sequence[float] | None = None,
    cluster: ClusterLike | None = None,
    each: Sequence[Mapping[str, Any]] | None = None,
    objective: Literal["round", "latency"] = "round",
    **options: Any,
) -> Together:
    """Plan programs that run in turns on the same arrays, such as a train and a decode step.

    A round runs each program as often as its weight says, one after the other. Tried is the layout
    that each program alone wants for what is shared, with the others planned around it, and a
    layout of its own for each, moved to it once a round where another program updates what is
    shared. The way with the shortest round that fits is taken, or, for latency, the one with the
    shortest step of the program that runs most often. While a program runs, the arguments of the
    others stay on the device, and count.

    Args:
        programs: Of each the function and its arguments, ``(decode, params, cache, token)``;
            ``jax.ShapeDtypeStruct``s will do.
        share: The name that the shared argument has in the functions, ``"params"``, or several,
            ``("params", "cache")``; each is an argument of two programs or more.
        weights: How often each program runs; None: each once.
        cluster: As of ``autoshard.plan``.
        each: Options for each program alone, as ``{"donate_argnums": (0, 1)}``.
        objective: ``"round"``, or ``"latency"``: whatever the other programs and moves take then;
            of ways that are equal the shortest round.
        options: As of ``autoshard.plan``, for all of them.

    Raises:
        PlanError: Fewer than two programs, no such argument, or one of another type; weights that
            are no numbers above 0; an option that is decided here, or is one for all programs;
            an objective that is none.
        DoesNotFitError: No way fits.
    """
    if objective not in ("round", "latency"):
        raise PlanError(f"plan_together: objective={objective!r}. Give 'round' or 'latency'.")
    names = (share,) if isinstance(share, str) else tuple(share)
    counts = _weights(weights, len(programs))
    cluster = Cluster.detect() if cluster is None else cluster
    parts = _parts(programs, names, each, {**options, "cluster": cluster})
    _check_alike(parts, names)
    found: list[_Found] = []
    failed: list[DoesNotFitError | StrategyError] = []
    for owner in (None, *range(len(parts))):
        try:
            found.append(_found(parts, names, owner, counts))
        except (DoesNotFitError, StrategyError) as error:  # marks of another program, or memory
            failed.append(error)
    if not found:
        raise next((error for error in failed if isinstance(error, DoesNotFitError)), failed[0])
    often = counts.index(max(counts))

    def cost(way: Way) -> tuple[float, float]:
        step = way.step_seconds[often] if objective == "latency" else 0.0
        return step, way.round_seconds

    best = min(found, key=lambda found: cost(found.way))
    ways = sorted((each.way for each in found), key=cost)
    moved = tuple(tuple(move.names) if move else () for move in best.moves)
    moves = tuple(move.plan if move else None for move in best.moves)
    return Together(tuple(best.plans), counts, best.way, tuple(ways), moves, moved)


@dataclass(frozen=True)
class _Move:
    names: Sequence[str]
    plan: Plan


@dataclass(frozen=True)
class _Found:
    way: Way
    plans: Sequence[Plan]
    moves: Sequence[_Move | None]


@dataclass(frozen=True)
class _Part:
    """One program, traced and lowered once."""

    source: Source
    request: Request
    traced: Traced
    places: Mapping[str, range]
    """Numbers of the arrays of what is shared, by its name."""
    known: dict[Any, Plan] = field(default_factory=dict[Any, Plan])
    """Plans of it, by what was asked."""

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def types(self) -> Sequence[Any]:
        """Types of all arrays among the arguments."""
        return _tree.tree_leaves(cast(Any, self.source.program.stage).args_info)

    @property
    def limit(self) -> float:
        """Bytes that it and what lies beside it may use of a device."""
        cluster = cast(Cluster, self.source.cluster)
        return memory_limit_of(cluster, self.request.options().memory_limit)

    def keys(self) -> dict[int, Key]:
        """What is shared, by the number of the array."""
        return {
            number: (name, at)
            for name, numbers in self.places.items()
            for at, number in enumerate(numbers)
        }

    def planned(
        self, allowed: float, mesh: Mesh | None = None, settled: Mapping[Key, Sharding] = {}
    ) -> Plan:
        """Within so many bytes; on a mesh, with what is settled of what is shared."""
        pins = {n: settled[key] for n, key in self.keys().items() if key in settled}
        asked = (allowed, mesh, tuple(pins.items()))
        if asked in self.known:
            return self.known[asked]
        source, request = replace(self.source, keeps_order=True), self.request
        if allowed < self.limit:
            request = replace(request, memory_limit=int(allowed))
        if mesh is not None:
            machine = source.machine.with_mesh(mesh)
            source = replace(source, machine=machine, has_mesh=True, is_mesh_given=True)
            tree = _tree.tree_structure(cast(Any, source.program.stage).args_info[0])
            leaves = [pins.get(number) for number in range(len(self.types))]
            request = replace(request, mesh=mesh, in_shardings=_tree.tree_unflatten(tree, leaves))
        try:
            with task(f"planning {self.name}", keeps_best=True):
                self.known[asked] = plan_source(source, request, self.traced)
        except DoesNotFitError as error:
            raise self._told(error, allowed) from error
        return self.known[asked]

    def _told(self, error: DoesNotFitError, allowed: float) -> DoesNotFitError:
        """The error, with which program it is, and what waits beside it."""
        waits = self.limit - allowed
        beside = f" {bytes_text(waits)} beside it wait for the other programs." if waits > 0 else ""
        return DoesNotFitError(
            f"{self.name}: {error.found}{beside}",
            error.location,
            error.peak_bytes,
            error.memory_limit,
            advice=error.advice,
        )

    def updates(self, name: str) -> bool:
        """Do results of the program take the place of arrays of what is shared?"""
        source, program = self.source, self.source.program
        module = parse_bytes(program.bytecode, new_context(), source.name)
        tie_donated(module)
        pairs = {**tied_arguments(module), **fed_back_arguments(source, module)}
        kept = {at + program.constant_count: n for at, n in enumerate(program.kept)}
        replaced = {kept[at] for at in pairs.values() if at in kept}
        return not replaced.isdisjoint(self.places[name])


def _parts(
    programs: Sequence[Program],
    share: Sequence[str],
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
    if any("pipeline" in given for given in (options, *own)):
        raise PlanError(
            "plan_together: pipeline= puts arguments on stages, which no other program shares."
            " Plan that program alone, by autoshard.plan."
        )
    for refused in ("cluster", "compiler"):
        if any(refused in given for given in own):
            raise PlanError(
                f"plan_together: each= has {refused}, but all programs run on the same devices."
                f" Give {refused}= once, beside each=."
            )
    parts = [
        _part(program, share, {**options, **said})
        for program, said in zip(programs, own, strict=True)
    ]
    for name in share:
        having = [part for part in parts if name in part.places]
        if len(having) < 2:
            where = having[0].name if having else "no program"
            raise PlanError(
                f"plan_together: share={name!r} is an argument of {where} only. Name the shared"
                " argument alike in two functions or more."
            )
    return parts


def _part(program: Program, share: Sequence[str], options: dict[str, Any]) -> _Part:
    if not program or not callable(program[0]):
        raise PlanError(
            f"plan_together: {program!r} is no program. Give the function and its arguments,"
            " (decode, params, token)."
        )
    fn, *args = program
    of_jit = [options.pop(name, None) for name in _OF_JIT]
    called = getattr(fn, "__name__", str(fn))
    try:
        request = Request(**options)
    except TypeError as error:
        raise PlanError(f"plan_together: {called}: {error}. See autoshard.plan.") from error
    if request.micro_batches == "auto":
        raise PlanError(
            f"plan_together: {called}: micro_batches='auto' is not chosen for several programs."
            " Give a number, as autoshard.plan of this program alone finds it."
        )
    names = positional_names(fn)[: len(args)]
    if not share or not any(name in names for name in share):
        raise PlanError(
            f"plan_together: {called} has no argument {' or '.join(share) or 'that is shared'},"
            f" only {', '.join(names)}. Name the shared argument alike in all functions."
        )
    static = StaticArguments.of(fn, *of_jit[:2])
    fixed = {number % len(args) for number in static.numbers}
    places: dict[str, range] = {}
    first = 0
    for number, arg in enumerate(args):
        count = 0 if number in fixed else len(_tree.tree_leaves(arg))
        name = names[number] if number < len(names) else ""
        if name in share:
            if not count:
                why = "is static" if number in fixed else "holds no array"
                raise PlanError(
                    f"plan_together: {name} of {called} {why}. Share an argument with arrays."
                )
            places[name] = range(first, first + count)
        first += count
    traced = traced_for(fn, (tuple(args), {}), static=tuple(of_jit[:2]), donate=tuple(of_jit[2:]))
    return _Part(traced.source(request), request, traced, places)


def _weights(weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    try:
        found = (1.0,) * count if weights is None else tuple(float(weight) for weight in weights)
    except (TypeError, ValueError):
        found = ()
    if len(found) != count or not all(0 < weight < math.inf for weight in found):
        raise PlanError(
            f"plan_together: weights={weights} for {count} programs. Give a number above 0 for"
            " each: how often it runs in a round."
        )
    return found


def _check_alike(parts: Sequence[_Part], share: Sequence[str]) -> None:
    for name in share:
        having = [part for part in parts if name in part.places]
        types = [
            [(tuple(part.types[n].shape), str(part.types[n].dtype)) for n in part.places[name]]
            for part in having
        ]
        for part, found in zip(having, types, strict=True):
            if found != types[0]:
                raise PlanError(
                    f"plan_together: {name} of {part.name} has other arrays than that of"
                    f" {having[0].name}. What is shared has one type in all programs."
                )


def _found(
    parts: Sequence[_Part], share: Sequence[str], owner: int | None, weights: Sequence[float]
) -> _Found:
    """One way: as one program wants it, or, without an owner, each program as it wants it.

    Raises:
        DoesNotFitError: It does not, with what waits on the device.
        StrategyError: A program has a mark that says otherwise.
    """
    allowed = [part.limit for part in parts]
    tries = 0
    while True:
        plans = _plans(parts, owner, allowed)
        waiting = _waiting(parts, plans)
        peaks = [plan.peak_bytes + more for plan, more in zip(plans, waiting, strict=True)]
        over = [n for n, part in enumerate(parts) if peaks[n] > part.limit]
        if not over:
            break
        tries += 1
        for number in over:
            allowed[number] = min(allowed[number], parts[number].limit - waiting[number])
        if tries == _MOST_TRIES or min(allowed) < 1:
            raise _does_not_fit(parts, peaks, waiting)
    moves, seconds = _moves(parts, share, plans) if owner is None else ([None] * len(parts), 0.0)
    steps = tuple(plan.step_seconds for plan in plans)
    together = sum(w * s for w, s in zip(weights, steps, strict=True)) + seconds
    name = "each its own" if owner is None else f"as {parts[owner].name}"
    return _Found(Way(name, steps, seconds, together, max(peaks)), plans, moves)


def _does_not_fit(
    parts: Sequence[_Part], peaks: Sequence[float], waiting: Sequence[float]
) -> DoesNotFitError:
    """The error of the program that needs most over what it may use."""
    worst = max(range(len(parts)), key=lambda number: peaks[number] - parts[number].limit)
    part = parts[worst]
    return DoesNotFitError(
        f"{part.name}: it needs {bytes_text(peaks[worst])} on a device, of which"
        f" {bytes_text(waiting[worst])} wait there for the other programs, and"
        f" {bytes_text(part.limit)} are allowed.",
        None,
        peaks[worst],
        part.limit,
        advice="Use more devices, or host_offload='auto'.",
    )


def _plans(parts: Sequence[_Part], owner: int | None, allowed: Sequence[float]) -> list[Plan]:
    """The owner first, the others around it; what the owner does not read is as the next has it."""
    if owner is None:
        return [part.planned(bytes_) for part, bytes_ in zip(parts, allowed, strict=True)]
    found: dict[int, Plan] = {}
    settled: dict[Key, Sharding] = {}
    mesh: Mesh | None = None
    for number in (owner, *(n for n in range(len(parts)) if n != owner)):
        part = parts[number]
        found[number] = part.planned(allowed[number], mesh, settled)
        mesh = found[owner].mesh
        for at, key in part.keys().items():
            if found[number].arguments[at].is_used:
                settled.setdefault(key, found[number].arguments[at].sharding)
    return [found[number] for number in range(len(parts))]


def _waiting(parts: Sequence[_Part], plans: Sequence[Plan]) -> list[float]:
    """Bytes on a device, for each program, of what the others hold and it does not read."""
    copies: dict[Key, list[PlannedValue]] = {}
    own = [0.0] * len(parts)
    """What the program itself reads, and so counts in its peak."""
    everything = 0.0
    for number, (part, planned) in enumerate(zip(parts, plans, strict=True)):
        keys = part.keys()
        for at, value in enumerate(planned.arguments):
            if not value.is_used or value.is_on_host:
                continue
            own[number] += value.local_bytes
            there = copies.setdefault(keys[at], []) if at in keys else []
            if not any(value.sharding.same_placement(other.sharding) for other in there):
                there.append(value)
                everything += value.local_bytes
    return [everything - bytes_ for bytes_ in own]


def _moves(
    parts: Sequence[_Part], share: Sequence[str], plans: Sequence[Plan]
) -> tuple[list[_Move | None], float]:
    """What brings each program what is shared, and seconds of all that are needed in a round."""
    sources: list[dict[str, int]] = [{} for _ in parts]
    needed: set[int] = set()
    for name in share:
        having = [number for number, part in enumerate(parts) if name in part.places]
        updating = [number for number in having if parts[number].updates(name)]
        for number in having:
            before = [other for other in updating if other < number]
            newest = next(reversed(before or updating), having[0])
            if not _is_there(parts, plans, name, newest, number):
                sources[number][name] = newest
                needed |= {number} if updating else set()
    moves = [
        _move(parts, plans, number, found) if found else None
        for number, found in enumerate(sources)
    ]
    seconds = sum(move.plan.step_seconds for n, move in enumerate(moves) if move and n in needed)
    return moves, seconds


def _values(part: _Part, plan_: Plan, name: str) -> list[PlannedValue]:
    return [plan_.arguments[number] for number in part.places[name]]


def _is_there(
    parts: Sequence[_Part], plans: Sequence[Plan], name: str, source: int, number: int
) -> bool:
    """Does it lie for one program as for another? What one of them does not read, does."""
    there, here = (_values(parts[n], plans[n], name) for n in (source, number))
    return all(
        not (one.is_used and other.is_used) or one.sharding.same_placement(other.sharding)
        for one, other in zip(there, here, strict=True)
    )


def _moved(*arrays: Any) -> tuple[Any, ...]:
    return arrays


def _move(
    parts: Sequence[_Part], plans: Sequence[Plan], number: int, sources: Mapping[str, int]
) -> _Move:
    """The plan of bringing a program what is shared from where others left it."""
    ends: list[tuple[PlannedValue, PlannedValue]] = []
    types: list[Any] = []
    for name, source in sources.items():
        there, here = (_values(parts[n], plans[n], name) for n in (source, number))
        ends += [
            (one, other if other.is_used else one) for one, other in zip(there, here, strict=True)
        ]
        types += [parts[number].types[at] for at in parts[number].places[name]]
    meshes = [plans[n].mesh for n in dict.fromkeys((*sources.values(), number))]
    mesh = Mesh.common_refinement(meshes)
    planned = plan(
        _moved,
        *(jax.ShapeDtypeStruct(type_.shape, type_.dtype) for type_ in types),
        cluster=parts[number].source.cluster,
        mesh=mesh,
        mode="semi_auto",
        in_shardings=tuple(there.sharding.on(mesh) for there, _ in ends),
        out_shardings=tuple(here.sharding.on(mesh) for _, here in ends),
    )
    return _Move(tuple(sources), planned)
