"""The table of libraries has rows of all programs, or the bench says of which it has none."""

from __future__ import annotations

from bench.quality.libraries import without_rows

LISTED = [("nuts", "numpyro", "sampling"), ("svi", "numpyro", "inference"), ("ant", "brax", "64")]
BEFORE = {("numpyro", "sampling"): [("numpyro", "sampling", "auto")]}


def test_programs_that_are_neither_run_nor_in_the_file_are_named():
    assert without_rows(LISTED, ["ant"], BEFORE) == ["svi"]
    assert without_rows(LISTED, ["ant", "svi"], BEFORE) == []
    assert without_rows(LISTED, None, {}) == []
