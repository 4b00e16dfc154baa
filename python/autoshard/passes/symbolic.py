"""The search of ``autoshard-recursive-programming`` with ``cost-model=symbolic``."""

from __future__ import annotations

from autoshard import _core
from autoshard.errors import PassOptionError
from autoshard.importer.imported_program import ImportedProgram
from autoshard.ir import place
from autoshard.planned.symbolic_costs import LOGGER, SymbolicCosts, symbolic_costs

DEFAULT_MEM_COEFF = 0.1


def search_symbolic(
    imported: ImportedProgram,
    mem_coeff: float = DEFAULT_MEM_COEFF,
    *,
    sweeps: int = 2,
    seed: int = 0,
) -> tuple[_core.CorePlan, SymbolicCosts]:
    """The plan of least symbolic cost, and what it weighed, which is logged as well.

    Args:
        imported: The program. Memory does not matter: a larger ``mem_coeff`` is how a plan gets
            smaller.
        mem_coeff: See docs/design/symbolic_cost.md.
        sweeps: Rounds over the mesh axes after the first one.
        seed: Of the search's random choices.

    Raises:
        PassOptionError: ``mem_coeff`` is not positive.
        _core.Contradiction: Pins that no plan keeps.
    """
    if not 0 < mem_coeff < float("inf"):
        raise PassOptionError(
            f"mem-coeff={mem_coeff}: the symbolic cost needs a positive number. The default is "
            f"{DEFAULT_MEM_COEFF}; larger values cut weights, smaller ones cut the batch."
        )
    plan, choices = _core.symbolic_programming(
        imported.program, mem_coeff, sweeps=sweeps, seed=seed
    )
    ops = imported.core_ops
    chosen_by = {choice.op for choice in choices}
    costs = symbolic_costs(
        plan,
        choices,
        mem_coeff,
        [op.name.removeprefix("stablehlo.") for op in ops],
        [place(op.location) if n in chosen_by else None for n, op in enumerate(ops)],
        imported.mesh.axis_names,
    )
    costs.log()
    LOGGER.info("Partition Success With %d devices.", imported.mesh.size)
    return plan, costs
