"""``autoshard.Planner``: plan one function again and again, with other pins each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from autoshard.compilers.options import CompilerOptions
from autoshard.errors import PlanError
from autoshard.frontend.device_order import in_chosen_order
from autoshard.frontend.lower import Source, traced_for
from autoshard.frontend.pins import pins_of
from autoshard.frontend.plan import Plan
from autoshard.frontend.planning import (
    job_of,
    read_planned,
)
from autoshard.frontend.request import (
    ClusterLike,
    Constraints,
    HostMemory,
    Indivisible,
    MicroBatches,
    OptimizerParallelLike,
    Policy,
    RecomputeLike,
    Request,
)
from autoshard.importer.imported_program import NO_VALUE
from autoshard.importer.pins import Pinned, pin_of_sharding
from autoshard.ir import new_context, parse_bytes, print_module
from autoshard.ir.boundary import tied_arguments
from autoshard.passes.recursive_programming import Coefficient, PlannedProgram, replan_module
from autoshard.search.automatic import Planned
from autoshard.search.inputs import with_inputs_alike
from autoshard.sharding import Sharding


class Planner:
    """A function that is lowered, imported and searched once, and can be planned again quickly.

    Example:
        planner = autoshard.Planner(train_step, params, batch, cluster="v5p:4x4x4")
        print(planner.plan)
        print(planner.replan(in_shardings=({"w": P(None, "model"), "b": None}, None)))

    The mesh, and the order of devices under it, are those of the first plan: pins name its axes.
    """

    plan: Plan
    """Without other pins than those given at first."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *args: Any,
        cluster: ClusterLike,
        compiler: str | None = None,
        mesh: Any = None,
        in_shardings: Any = None,
        out_shardings: Any = None,
        mem_coeff: Coefficient = "auto",
        memory_limit: int | float | str | None = None,
        overlap: float = 0.0,
        enable_alltoall: bool = True,
        indivisible: Indivisible = "refuse",
        optimizer_parallel: OptimizerParallelLike | None = None,
        host_offload: HostMemory = "marks",
        recompute: RecomputeLike = "marks",
        policy: Policy = "keep",
        constraints: Constraints = "keep",
        compiler_options: CompilerOptions | None = None,
        batch_argnums: int | Sequence[int] | None = None,
        micro_batches: MicroBatches = 1,
        per_micro_batch: Sequence[str] = (),
        static_argnums: Any = None,
        static_argnames: Any = None,
        donate_argnums: Any = None,
        donate_argnames: Any = None,
        **kwargs: Any,
    ) -> None:
        """Lower ``fn`` and plan it in the automatic mode.

        Args and errors are those of ``autoshard.plan``; what is spread, and what marks compute
        again, is so in every plan.

        Raises:
            PlanError: ``host_offload``, ``recompute`` or ``micro_batches`` is ``"auto"``: each
                plan of these takes several searches.
        """
        request = Request(
            mesh=mesh,
            cluster=cluster,
            compiler=compiler,
            mode="auto",
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            mem_coeff=mem_coeff,
            memory_limit=memory_limit,
            overlap=overlap,
            enable_alltoall=enable_alltoall,
            indivisible=indivisible,
            optimizer_parallel=optimizer_parallel,
            host_offload=host_offload,
            recompute=recompute,
            policy=policy,
            constraints=constraints,
            compiler_options=compiler_options,
            batch_argnums=batch_argnums,
            micro_batches=micro_batches,
            per_micro_batch=per_micro_batch,
        )
        _check_plans_at_once(request)
        self._request = request
        source = traced_for(
            fn,
            (args, kwargs),
            static=(static_argnums, static_argnames),
            donate=(donate_argnums, donate_argnames),
        ).source(request)
        self._is_rewritten = False
        tried: list[tuple[Plan, Source, PlannedProgram]] = []

        def planned_in(source: Source, request: Request) -> Plan:
            planned = job_of(source, request).search()
            self._is_rewritten = job_of(source, request).changes(planned.module)
            tried.append((self._read(source, planned), source, planned))
            return tried[-1][0]

        self.plan = in_chosen_order(source, request, planned_in)
        _, self._source, self._planned = next(one for one in tried if one[0] is self.plan)
        self._written = self._planned.plan
        self._donated = tied_arguments(self._planned.module)

    def replan(self, *, in_shardings: Any = None, out_shardings: Any = None) -> Plan:
        """The plan with these pins besides those given at first.

        A result that replaces an argument is split as the argument. Pins that split it otherwise,
        or a pin of it alone where the argument is not donated, take a search anew on this mesh.

        Args:
            in_shardings: Of the positional arguments, as pytree prefixes: ``PartitionSpec``s over
                the axes of ``self.plan.mesh``, ``NamedSharding``s, layouts, or None for "choose".
            out_shardings: Of the result, likewise.

        Raises:
            StrategyError: Pins that no plan keeps.
            DoesNotFitError: No plan with them fits the memory of a device.
            PlanError: No pin is given.
        """
        if in_shardings is None and out_shardings is None:
            raise PlanError("replan without pins: give in_shardings or out_shardings.")
        machine = self._source.machine.with_mesh(self._planned.mesh)
        source = replace(self._source, machine=machine, has_mesh=True)
        arguments, results = pins_of(source, in_shardings, out_shardings)
        main = self._planned.imported.functions[-1]
        pins = [
            *self._pins(arguments, main.arguments, "in_shardings"),
            *self._pins(results, main.results, "out_shardings"),
        ]
        if self._splits_a_pair(source, arguments, results):
            anew = job_of(source, self._request, (arguments, results)).search()
            return self._read(source, anew)
        changed = with_inputs_alike(replan_module(self._planned, pins, self._written))
        self._written = changed.plan
        return self._read(source, changed)

    def _splits_a_pair(
        self, source: Source, arguments: dict[int, Sharding], results: dict[int, Sharding]
    ) -> bool:
        """Is a result, one value with an argument in the search, another one with these pins?"""
        request, main = self._request, self._planned.imported.functions[-1]
        first = pins_of(source, request.in_shardings, request.out_shardings)
        if any(
            number in known and known[number] != pinned
            for known, more in zip(first, (arguments, results), strict=True)
            for number, pinned in more.items()
        ):
            return False  # an error
        held = {**first[0], **arguments}
        number_of = {value: number for number, value in enumerate(main.arguments)}
        for result, pinned in {**first[1], **results}.items():
            value = main.results[result]
            if value == NO_VALUE or value not in number_of:
                continue
            argument = number_of[value]
            is_donated = self._donated.get(result) == argument
            if held[argument] != pinned if argument in held else not is_donated:
                return True
        return False

    def _read(self, source: Source, planned: PlannedProgram) -> Plan:
        job, found = job_of(source, self._request), Planned(planned.module, planned.summary)
        if self._is_rewritten:
            # a copy: the module that is kept must stay as the search left it
            bytecode = print_module(planned.module, "bytecode")
            module = parse_bytes(bytecode, new_context(), source.name)
            found = Planned(module, job.finish(module, planned.summary))
        return read_planned(source, job.reduced_once(found), self._request)

    def _pins(self, shardings: dict[int, Sharding], values: list[int], place: str) -> list[Pinned]:
        mesh = self._planned.mesh.without_unit_axes()
        found: list[Pinned] = []
        for number, sharding in shardings.items():
            value = values[number]
            if value == NO_VALUE:
                continue
            shape = self._planned.imported.value_shapes[value]
            pin = pin_of_sharding(sharding, mesh, shape, place)
            found.append(Pinned(value, pin, place, str(sharding)))
        return found


def _check_plans_at_once(request: Request) -> None:
    recomputing = request.recomputing()
    for said, instead, is_chosen in (
        ("host_offload='auto'", "host_offload='marks'", request.host_offload == "auto"),
        (
            "recompute='auto'",
            "recompute='marks'",
            recomputing is not None and recomputing.choose == "auto",
        ),
        ("micro_batches='auto'", "micro_batches=4", request.micro_batches == "auto"),
        ("constraints='prefer'", "constraints='keep'", request.constraints == "prefer"),
    ):
        if is_chosen:
            raise PlanError(
                f"autoshard.Planner: {said} takes several searches for one plan, and a Planner does"
                f" one. Give the pins to autoshard.plan, or {instead}."
            )
