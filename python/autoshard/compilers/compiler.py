"""The compiler that a program is planned for: what it answers to every question of the analyses.

The questions are in ``rules.toml``, the answers in one file a compiler, ``xla-tpu.toml``; each row
has the release that it was first seen in. docs/design/compilers.md is the table of all of them.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from autoshard._core import Expense
from autoshard.errors import AutoshardWarning, ClusterError

UNKNOWN = "unknown"
"""The compiler of which nothing is known."""

COMPILERS = ("xla-cpu", "xla-gpu", "xla-tpu")
"""Those of which something is known, each in a file of its own."""

_FOLDER = Path(__file__).parent
_WITHOUT = ":without="

Value = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Rule:
    """A question, and what is taken of a compiler of which nothing is known."""

    name: str
    """``fusion.casts``."""
    rule: str
    reason: str
    unit: str
    """``yes or no``, ``expense``, ``bytes``, ``devices``, .."""
    unknown: Value
    in_core: bool = True
    """False: Python alone asks."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A row: what a compiler does, since when, and where that was seen."""

    value: Value
    release: str
    """The first one that was seen to do so."""
    date: str
    seen: str
    """The program or command that showed it."""
    chips: Mapping[str, Value] = field(default_factory=dict[str, Value], hash=False)
    """Chips for which it does something else."""

    def on(self, chip: str) -> Value:
        """The value for a chip."""
        return self.chips.get(chip, self.value)


@dataclass(frozen=True, slots=True)
class Unchanged:
    """A release that was seen to do what the rows before it say."""

    release: str
    date: str
    seen: str


@dataclass(frozen=True, slots=True)
class CompilerFile:
    """What is known of a compiler in all of its releases."""

    name: str
    title: str
    platform: str
    """What JAX calls devices that it compiles for: ``tpu``."""
    packages: tuple[str, ...]
    """Packages that bring it; the version of the first one that is installed is its release."""
    rows: Mapping[str, tuple[Answer, ...]]
    """Answers to each rule that has any, by release, oldest first."""
    unchanged: tuple[Unchanged, ...]

    @property
    def releases(self) -> tuple[str, ...]:
        """Those that are known, oldest first."""
        found = {answer.release for answers in self.rows.values() for answer in answers}
        found.update(each.release for each in self.unchanged)
        return tuple(sorted(found, key=_number))

    def installed(self) -> str | None:
        """The release that is installed here."""
        return _installed(self.packages)

    def answers(self, release: str, chip: str) -> dict[str, Value]:
        """What a release that is known does for a chip, by rule."""
        found: dict[str, Value] = {}
        for name, answers in self.rows.items():
            until = [answer for answer in answers if _number(answer.release) <= _number(release)]
            if until:
                found[name] = until[-1].on(chip)
        return found


@dataclass(frozen=True)
class Compiler:
    """One compiler in one release, for one chip."""

    name: str
    """``xla-tpu``, or ``UNKNOWN``."""
    release: str
    """Whose answers these are; empty where nothing is known."""
    answers: Mapping[str, Value] = field(hash=False)
    """To every rule, by its name."""
    without: tuple[str, ...] = ()
    """Rules that were switched off: answered as if nothing was known."""

    def __str__(self) -> str:
        """As ``compiler_for`` reads it."""
        name = f"{self.name}-{self.release}" if self.release else self.name
        return name + (_WITHOUT + ",".join(self.without) if self.without else "")

    def does(self, rule: str) -> bool:
        """The answer to a rule that is answered by yes or no."""
        return self.answers[rule] is True

    def to_core(self) -> dict[str, float]:
        """The same for the core, which knows numbers only."""
        rules = read_rules()
        return {
            name: float(Expense[value.upper()]) if isinstance(value, str) else float(value)
            for name, value in self.answers.items()
            if rules[name].in_core
        }

    def switched_off(self, names: tuple[str, ...]) -> Compiler:
        """The same without some rules.

        Raises:
            ClusterError: No rule has such a name.
        """
        rules = read_rules()
        for name in names:
            if name not in rules:
                raise ClusterError(
                    f'compiler: no rule is called "{name}".{_near(name, rules)}'
                    " docs/design/compilers.md lists them."
                )
        values = {name: rules[name].unknown for name in names}
        kept = tuple(dict.fromkeys((*self.without, *names)))
        answers = MappingProxyType({**self.answers, **values})
        return replace(self, answers=answers, without=kept)


def compiler_for(spec: str, kind: str, chip: str) -> Compiler:
    """The compiler that a user names, or else that of a chip.

    Args:
        spec: ``NAME``, ``NAME-RELEASE``, either with ``:without=RULE,RULE`` behind; an empty name
            is that of the chip. Without a release it is the one that is installed here, or else
            the newest known.
        kind: The name of the chip's compiler; empty: nothing is known.
        chip: For which it compiles.

    Raises:
        ClusterError: No compiler or rule has such a name.

    Warns:
        AutoshardWarning: The release is not known; once for each.
    """
    name_and_release, _, without = spec.strip().partition(_WITHOUT)
    name, release = _split(name_and_release or kind or UNKNOWN)
    if name == UNKNOWN:
        found = Compiler(UNKNOWN, "", _complete({}))
    else:
        file = read_compiler(name)
        known = _known_release(file, release or file.installed())
        found = Compiler(name, known, _complete(file.answers(known, chip)))
    names = tuple(part.strip() for part in without.split(",") if part.strip())
    return found.switched_off(names) if names else found


@functools.cache
def read_rules() -> Mapping[str, Rule]:
    """All questions by name, in the order of the file."""
    return MappingProxyType(
        {name: Rule(name=name, **row) for name, row in _rows(_FOLDER / "rules.toml")}
    )


@functools.cache
def read_compiler(name: str) -> CompilerFile:
    """What is known of a compiler.

    Raises:
        ClusterError: No compiler has this name.
    """
    path = _FOLDER / f"{name}.toml"
    if name not in COMPILERS:
        known = (*COMPILERS, UNKNOWN)
        raise ClusterError(
            f'no compiler "{name}" is known, only {", ".join(known)}.{_near(name, known)} Give one'
            ' of them, with a release or without: compiler="xla-tpu-0.0.42".'
        )
    read = _read(path)
    rows: dict[str, tuple[Answer, ...]] = {}
    for key, row in _rows(path):
        listed = cast("list[dict[str, Any]]", row if isinstance(row, list) else [row])
        answers = map(_answer, listed)
        rows[key] = tuple(sorted(answers, key=lambda answer: _number(answer.release)))
    unchanged = (Unchanged(**_with_text_date(row)) for row in read.get("unchanged", ()))
    packages = tuple(read["packages"])
    return CompilerFile(
        name,
        read["title"],
        read["platform"],
        packages,
        MappingProxyType(rows),
        tuple(unchanged),
    )


def _answer(row: dict[str, Any]) -> Answer:
    return Answer(**_with_text_date(row))


def _with_text_date(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "date": str(row["date"])}


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(path.read_text())


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    for group, rows in _read(path).items():
        if isinstance(rows, dict):
            for name, row in rows.items():  # pyright: ignore[reportUnknownVariableType]
                yield f"{group}.{name}", row


def _complete(answers: Mapping[str, Value]) -> Mapping[str, Value]:
    unknown = {name: rule.unknown for name, rule in read_rules().items()}
    return MappingProxyType({**unknown, **answers})


def _split(text: str) -> tuple[str, str]:
    """Name and release; the release is empty where there is none."""
    for name in (*COMPILERS, UNKNOWN):
        if text == name:
            return name, ""
        if text.startswith(f"{name}-"):
            return name, text.removeprefix(f"{name}-")
    return text, ""


@functools.cache
def _installed(packages: tuple[str, ...]) -> str | None:
    """The version of the first one that is there."""
    from importlib import metadata  # here, so that to import autoshard stays quick

    for package in packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return None


def _known_release(file: CompilerFile, wanted: str | None) -> str:
    """The newest one that is known and that is not newer than ``wanted``, else the oldest."""
    known = file.releases
    if wanted is None:
        return known[-1]
    older = [release for release in known if _number(release) <= _number(wanted)]
    found = older[-1] if older else known[0]
    # 0.0.42.1 is 0.0.42 with mended bugs.
    if _number(wanted)[: len(_number(found))] != _number(found):
        _warn_of_release(file.name, wanted, found)
    return found


@functools.cache
def _warn_of_release(name: str, wanted: str, found: str) -> None:
    warnings.warn(
        AutoshardWarning(
            f"nothing is known of release {wanted} of {name}: it is taken to do what {found} does."
            f' Give compiler="{name}-{found}" to say so.'
        ),
        stacklevel=2,
    )


def _number(release: str) -> tuple[int, ...]:
    """``0.0.42.1`` as numbers; what is none of a part counts as 0."""
    parts = release.split(".")
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in parts)


def _near(name: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    near = get_close_matches(name, known, n=1, cutoff=0.4)
    return f' Did you mean "{near[0]}"?' if near else ""
