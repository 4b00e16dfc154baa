"""Names stand where they belong: those of compilers, of links, of attributes, and of tests.

    python tools/check_names.py [FOLDER]

Reads sources below FOLDER (the repository). No compiler, library or proxy for one is named where
analyses are: they ask for rows. Names may stand where compilers are described or run: compilers/,
verify/, calibration/, chips and cli/doctor.py; a library's also where its calls are read. What
links there are is asked where links are costed. Attributes are spelled in ir/attributes.py alone.
No two files of tests have one name: pytest imports the first one for both.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

_NAMES = re.compile(
    r"XLA:(TPU|GPU|CPU)|xla-(tpu|gpu|cpu)|libtpu|cuDNN|cuBLAS|NCCL|Triton"
    r"|\b(is|for)_(tpu|gpu|cpu)s?\b|chip\.name\s*(==|in\b)|fuses_(matmuls|casts)"
)
_LINKS = re.compile(r"\bhas_torus\b|\bLinkKind(::|\.)(ring|line|RING|LINE)\b")

_MAY_NAME = (
    "passes/compilers/",
    "python/autoshard/calibration/",
    "python/autoshard/cli/doctor.py",
    "python/autoshard/cluster/",
    "python/autoshard/compilers/",
    "python/autoshard/frontend/triton_kernels.py",
    "python/autoshard/ir/cudnn.py",
    "python/autoshard/kernels/cudnn_attention.py",
    "python/autoshard/verify/",
)
_MAY_ASK_FOR_LINKS = (
    "passes/bindings/enums.",
    "passes/cost/collectives.",
    "passes/model/cluster.",
    "python/autoshard/calibration/",
    "python/autoshard/cluster/",
    "python/autoshard/report/cluster_table.py",
    "python/autoshard/verify/",
)
_ATTRIBUTES = "python/autoshard/ir/attributes.py"
_ATTRIBUTE = re.compile(r'^[A-Z_]+ = ("(?:autoshard|mhlo|sdy|jax|tf)\.\w+")$', re.MULTILINE)
_SHARDY_TEXTS = "python/autoshard/sharding/sdy_text.py"
"""Reads texts that begin like attributes' names."""

_EXAMPLE = re.compile(r"xla-tpu-0\.0\.42")
"""What help texts show of how a compiler is written."""


def complaints(root: Path) -> Iterator[str]:
    """``file:line: what is wrong``, in order."""
    files = [
        path
        for folder, kinds in (("passes", (".h", ".cpp")), ("python/autoshard", (".py",)))
        for path in (root / folder).rglob("*")
        if path.suffix in kinds
    ]
    attributes = _ATTRIBUTE.findall((root / _ATTRIBUTES).read_text())
    for path in sorted(files):
        place = path.relative_to(root).as_posix()
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            named = _NAMES.search(_EXAMPLE.sub("", line))
            if named and not place.startswith(_MAY_NAME):
                yield (
                    f"{place}:{number}: {named[0]} is named here. Ask the compiler for a row"
                    " (docs/design/compilers.md), or say what the compiler does."
                )
            asked = _LINKS.search(line)
            if asked and not place.startswith(_MAY_ASK_FOR_LINKS):
                yield (
                    f"{place}:{number}: {asked[0]} asks what links there are. If it means a"
                    " compiler, ask that for a row (docs/design/compilers.md)."
                )
            spelled = [text for text in attributes if text in line]
            if spelled and path.suffix == ".py" and place not in (_ATTRIBUTES, _SHARDY_TEXTS):
                yield f"{place}:{number}: {spelled[0]} is spelled here. Take {_ATTRIBUTES}'s name."


def equal_tests(root: Path) -> Iterator[str]:
    """``file: what is wrong`` of tests whose file has the name of another one."""
    known: dict[str, Path] = {}
    for path in sorted((root / "test").rglob("test_*.py")):
        first = known.setdefault(path.name, path)
        if first is not path:
            yield f"{path.relative_to(root)}: {first.relative_to(root)} has that name, too."


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]
    found = [*complaints(root), *equal_tests(root)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
