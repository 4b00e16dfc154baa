"""Every technique of test/system/techniques.py and every pair of them, in all forms.

    python bench/truth/techniques.py [PART ..]

Over a scan and with layers one after the other, with Shardy and with GSPMD, on 8 virtual CPU
devices: equal to the unsharded step bit for bit or not, and whether XLA moves what is planned.
PARTs are parts of the technique's names; a row must have all of them. The exit status is 1 if a
row differs or fails.
"""

from __future__ import annotations

import platform
import sys
import warnings
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp

jax.config.update("jax_num_cpu_devices", 8)

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "test" / part) for part in ("system", "")]

from equivalence import assert_equal, shardy, unsharded  # noqa: E402
from models import unmarked  # noqa: E402
from techniques import TECHNIQUES, Case, all_pairs  # noqa: E402

import autoshard  # noqa: E402


def outcome(case: Case) -> str:
    """``equal``, what differs, or the error; and what XLA does otherwise than planned."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", autoshard.PlanMismatchWarning)
        try:
            step, args = case.planned()
            found = jax.device_get(step(*jax.tree.map(jnp.array, args)))
            assert_equal(found, unsharded(case.step(unmarked), args), 0.0)
        except (autoshard.AutoshardError, AssertionError) as error:
            return f"{type(error).__name__}: {error}"
    said = [str(one.message) for one in caught if one.category is autoshard.PlanMismatchWarning]
    return f"equal; {len(said)} not as planned, the first: {said[0]}" if said else "equal"


def main(parts: list[str]) -> int:
    """Print one row a case."""
    print(f"jax {jax.__version__}, {platform.machine()}, 8 virtual CPU devices")
    failed = rows = 0
    sets = [*(frozenset((name,)) for name in TECHNIQUES), *all_pairs()]
    for techniques, scans, active in product(sets, (True, False), (True, False)):
        case = Case(techniques, scans)
        if not all(part in str(case) for part in parts):
            continue
        with shardy(active):
            found = outcome(case)
        rows += 1
        failed += not found.startswith("equal")
        print(f"{'shardy' if active else 'gspmd'}  {case!s:45}  {found}", flush=True)
    print(f"{rows - failed} of {rows} equal")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
