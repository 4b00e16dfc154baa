"""The error where no plan of a search fits."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.errors import DoesNotFitError
from autoshard.importer.imported_program import ImportedProgram
from autoshard.planned.summarize import peak_values
from autoshard.planned.summary import bytes_text, tensors_text


def does_not_fit(
    imported: ImportedProgram, peak: float, limit: float, live: Sequence[tuple[int, float]]
) -> DoesNotFitError:
    """The error with the tensors that make the peak, and what would help."""
    largest = peak_values(imported, live, {})
    arguments = sum(value.bytes for value in largest if value.location is None)
    help_text = (
        "Most of it enters the step: use more chips, or keep parameters or optimizer state in "
        "bfloat16, and donate them."
        if arguments > peak / 2
        else "Most of it is made in the step: use more chips, a smaller batch, jax.checkpoint "
        "around a layer, or bfloat16 activations."
    )
    error = DoesNotFitError(
        f"no plan fits: the one that needs least needs {bytes_text(peak)} on each of "
        f"{imported.mesh.size} devices, {bytes_text(peak - limit)} more than the "
        f"{bytes_text(limit)} allowed. Largest tensors at that moment, on one device: "
        f"{tensors_text(largest)}.",
        None,
        peak,
        limit,
        advice=help_text,
    )
    error.largest = tensors_text(largest)
    error.within = lambda smaller: does_not_fit(imported, peak, smaller, live)
    return error
