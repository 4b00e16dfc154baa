"""docs/design/compilers.md: what every compiler does, with reasons and sources, from
compilers/*.toml.

    python bench/truth/compiler_table.py [--check]

--check: says whether the page is what the files say, and exits 1 if it is not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from autoshard.compilers.compiler import COMPILERS, Answer, Rule, Value, read_compiler, read_rules

PAGE = Path(__file__).resolve().parents[2] / "docs" / "design" / "compilers.md"

_HEAD = """\
# Compilers

<!-- Written by bench/truth/compiler_table.py from autoshard/compilers/*.toml. Do not edit. -->

What a plan costs depends on what the compiler does with it: what it fuses, in which order values
lie in memory, which of them share storage, when collectives run, and how it writes them. Every
such behaviour that autoshard knows is a row here. Analyses ask for the row, never for the
compiler, the chip, or the kind of links: `passes/compilers/compiler.h` has a field of the same
name, and `test/unit/compilers/test_compiler.py` a program whose answer changes with it.

The chip says which compiler it has, and what is installed which release: the version of the first
of these packages that is there, else the newest known release. A release that is not here is taken
to do what the newest known one before it does; an `AutoshardWarning` says so once.

| compiler | packages | releases | chips |
|---|---|---|---|
{compilers}

{unchanged}

Of any other compiler nothing is known (`unknown`). `autoshard.plan(step, .., cluster="v5p:4x4x4",
compiler="xla-tpu-0.0.42")` names one, so do the option `compiler=` of passes and the key
`compiler` of a cluster's file; `compiler="xla-tpu:without=fusion.casts"` answers a rule as if
nothing was known. What that is worth to a plan:

```sh
autoshard-opt planned.mlir --autoshard-print-costs='compiler=xla-tpu:without=fusion.casts'
```

To add a release: compile, and add what differs as a second row, `[[fusion.casts]]` in place of
`[fusion.casts]`, with its own `release`, `date` and `seen`; if nothing does, an `[[unchanged]]`. To
add a compiler: a file, and its name in `compilers/compiler.py`.
"""

_GROUPS = {
    "fusion": "What is computed in one kernel, and so takes no memory.",
    "layout": "In which order values lie in memory.",
    "buffers": "Which values share storage.",
    "schedule": "In which order ops and collectives run.",
    "functions": "How many operations functions of elements are made of.",
    "collectives": "How collectives are written, and what they cost beside the links.",
}


def page() -> str:
    """The whole text."""
    files = {name: read_compiler(name) for name in COMPILERS}
    rows = [
        f"| `{name}`: {file.title} | {', '.join(f'`{p}`' for p in file.packages)} |"
        f" {', '.join(file.releases)} | {', '.join(_chips_of(name))} |"
        for name, file in files.items()
    ]
    unchanged = [
        f"- `{name}` {each.release} was seen to do what the rows before it say, {each.date}:"
        f" {each.seen}."
        for name, file in files.items()
        for each in file.unchanged
    ]
    parts = [_HEAD.format(compilers="\n".join(rows), unchanged="\n".join(unchanged))]
    for group, about in _GROUPS.items():
        rules = [rule for name, rule in read_rules().items() if name.startswith(f"{group}.")]
        parts.append(f"## {group}\n\n{about}\n\n{_values(rules)}\n")
        parts.extend(_about(rule) for rule in rules)
    return "\n".join(parts)


def _chips_of(compiler: str) -> list[str]:
    from autoshard.cluster import CHIPS

    return [f"`{name}`" for name, chip in CHIPS.items() if chip.compiler == compiler]


def _values(rules: list[Rule]) -> str:
    heads = ["row", "unit", *(f"`{name}`" for name in COMPILERS), "unknown"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for rule in rules:
        cells = [f"`{rule.name}`", rule.unit]
        for name in COMPILERS:
            answers = read_compiler(name).rows.get(rule.name)
            cells.append("" if answers is None else _shown_answers(answers, rule.unit))
        lines.append(f"| {' | '.join([*cells, shown(rule.unknown, rule.unit)])} |")
    return "\n".join(lines)


def _shown_answers(answers: tuple[Answer, ...], unit: str) -> str:
    texts: list[str] = []
    for answer in answers:
        text = shown(answer.value, unit)
        others = [f"{chip}: {shown(value, unit)}" for chip, value in answer.chips.items()]
        text += f" ({', '.join(others)})" if others else ""
        texts.append(text if len(answers) == 1 else f"{answer.release}: {text}")
    return "; ".join(texts)


def shown(value: Value, unit: str) -> str:
    """``yes``, ``30 MiB``, ``1.25``."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if unit == "bytes" and isinstance(value, float) and value >= 2**20:
        return f"{value / 2**20:g} MiB"
    return value if isinstance(value, str) else f"{value:g}"


def _about(rule: Rule) -> str:
    lines = [f"**`{rule.name}`** {rule.rule} *{rule.reason}*"]
    if not rule.in_core:
        lines[0] += " (Asked when a plan is made or exported, not by the core.)"
    for name in COMPILERS:
        for answer in read_compiler(name).rows.get(rule.name, ()):
            lines.append(f"- `{name}` {answer.release}, {answer.date}: {answer.seen}.")
    return "\n".join([lines[0], "", *lines[1:], ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="is the page what the files say?")
    given = parser.parse_args()
    if not given.check:
        PAGE.write_text(page())
        print(f"wrote {PAGE}")
    elif not PAGE.exists() or PAGE.read_text() != page():
        print(f"{PAGE} is not what the files say. Run python bench/truth/compiler_table.py.")
        sys.exit(1)


if __name__ == "__main__":
    main()
