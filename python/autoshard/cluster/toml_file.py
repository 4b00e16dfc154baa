"""Clusters as TOML files; docs/use/clusters.md has the format."""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from autoshard.cluster.chips import (
    CHIP_CONSTANTS,
    LINK_CONSTANTS,
    UNITS,
    Chip,
    Constant,
    Family,
    Link,
    Torus,
)
from autoshard.cluster.corrections import CORRECTION_KEYS, Corrections
from autoshard.cluster.order import read_order
from autoshard.cluster.record import RECORD_KEYS, RECORD_NUMBERS, CalibrationRecord
from autoshard.cluster.slower import SPEEDS, Slower, as_slowest
from autoshard.cluster.topology import EXAMPLES, Dim, LinkKind, family_of, read_name
from autoshard.compilers.compiler import compiler_for
from autoshard.errors import ClusterError

if TYPE_CHECKING:
    from autoshard.cluster.cluster import Cluster

log = logging.getLogger("autoshard")

_FILE_KEYS = (
    *("name", "base", "compiler", "order", "chip", "dims", "slower", "calibration"),
    "corrections",
)
_CHIP_KEYS = ("name", "compiler", "compiled_as", *CHIP_CONSTANTS)
_GONE = ("fuses_matmuls", "fuses_casts", "hides_gathers")
"""Constants of files that were written before chips named their compiler."""
_DIM_KEYS = ("name", "size", "kind", *LINK_CONSTANTS)
_CONSTANT_KEYS = ("value", "source")


@dataclass(frozen=True, slots=True)
class _Base:
    """What a file need not say itself."""

    name: str
    family: Family
    dims: tuple[Dim, ...] | None
    """None if it is only a chip."""

    def link(self, kind: LinkKind) -> Link | None:
        """Its links of a kind, None if it has none."""
        if kind is LinkKind.NETWORK:
            return self.family.network
        is_torus = isinstance(self.family.shape, Torus)
        if kind is LinkKind.SWITCHED:
            return self.family.on_chip if is_torus else self.family.link
        return self.family.link if is_torus else None


@dataclass(frozen=True, slots=True)
class _Table:
    """One table of the file; ``place`` is its name in errors, such as ``dims[1]``."""

    file: str
    place: str
    values: Mapping[str, Any]

    def check_keys(self, known: Iterable[str]) -> None:
        known = list(known)
        for key in self.values:
            if key in known:
                continue
            if key in _GONE:
                raise self.error(
                    key,
                    "is no constant of a chip any more: its compiler answers that. Write"
                    ' compiler = "xla-tpu", "xla-gpu" or "xla-cpu" instead.',
                )
            near = get_close_matches(key, known, n=1)
            hint = f' Did you mean "{near[0]}"?' if near else ""
            raise self.error(key, f"is no key here, only {', '.join(known)}.{hint}")

    def error(self, key: str, problem: str) -> ClusterError:
        return ClusterError(f"{self.path(key)} {problem}", self.file)

    def path(self, key: str) -> str:
        return f"{self.place}.{key}" if self.place else key

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is None or (isinstance(value, str) and value.strip()):
            return value
        raise self.error(key, f'= {value!r} is no name. Write a text such as {key} = "v5p".')

    def table(self, key: str) -> _Table | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"= {value!r} is no table. Write [{key}].")
        return _Table(self.file, self.path(key), cast("dict[str, Any]", value))

    def constant(self, key: str) -> Constant | None:
        """A number, or ``{ value = .., source = ".." }``."""
        from autoshard.cluster.cluster import complaint

        value = self.values.get(key)
        source: Any = f"given in {Path(self.file).name}"
        if isinstance(value, dict):
            inner = _Table(self.file, self.path(key), cast("dict[str, Any]", value))
            inner.check_keys(_CONSTANT_KEYS)
            source = inner.text("source") or source
            value = inner.values.get("value")
            if value is None:
                raise inner.error(
                    "value", f'is missing. Write {key} = {{ value = 1e9, source = "..." }}.'
                )
        elif value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, f"= {value!r} is no number. Write it in {UNITS[key]}.")
        wrong = complaint(key, float(value))
        if wrong:
            raise self.error(key, f"= {value!r}: {wrong}.")
        return Constant(float(value), source)


def read_toml(path: Path) -> Cluster:
    """The cluster in a file.

    Raises:
        ClusterError: The file cannot be read, or what it says cannot be.
    """
    file = str(path)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ClusterError(
            f"the file of the cluster cannot be read: {reason}. Give the path of a TOML file, or a"
            f" name such as {EXAMPLES}.",
            file,
        ) from None
    return parse_toml(text, file)


def parse_toml(text: str, file: str) -> Cluster:
    """The cluster of a file's text; ``file`` is its name, for errors.

    Raises:
        ClusterError: What it says cannot be.
    """
    from autoshard.cluster.cluster import Cluster

    try:
        root = _Table(file, "", tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ClusterError(f"not a TOML file: {error}.", file) from None
    except RecursionError:
        raise ClusterError(
            "lists within lists, deeper than can be read. A cluster needs none.", file
        ) from None
    root.check_keys(_FILE_KEYS)
    base = _base(root)
    chip = _chip(root.table("chip") or _Table(file, "chip", {}), base)
    dims = _dims(root, base)
    slower = _slower(root, dims)
    if slower:
        chip, dims = as_slowest(chip, dims, slower)
        log.info(
            "cluster %s: planned as its slowest part: %s",
            file,
            ", ".join(one.name for one in slower),
        )
    name = root.text("name") or Path(file).stem
    cluster = Cluster(name, chip, dims, _record(root), corrections=_corrections(root))
    spec, order = root.text("compiler"), root.values.get("order")
    try:
        if order is not None:
            cluster = cluster.in_order(read_order(order))
    except ClusterError as error:
        raise root.error("order", f"= {order!r}: {error.message}") from None
    try:
        return cluster if spec is None else cluster.with_compiler(spec)
    except ClusterError as error:
        raise root.error("compiler", f"= {spec!r}: {error.message}") from None


def write_toml(cluster: Cluster) -> str:
    """The text of a file that ``read_toml`` reads as this cluster."""
    lines = [f"name = {_quoted(cluster.name)}"]
    if cluster.compiler_spec:
        lines.append(f"compiler = {_quoted(cluster.compiler_spec)}")
    if cluster.order:
        lines.append(f"order = [{', '.join(_quoted(f'{n}={size}') for n, size in cluster.order)}]")
    if cluster.calibration is not None:
        lines += ["", "[calibration]"]
        lines += [f"{key} = {_literal(getattr(cluster.calibration, key))}" for key in RECORD_KEYS]
    if not cluster.corrections.none_needed:
        lines += ["", "[corrections]"]
        lines += [f"{key} = {getattr(cluster.corrections, key)!r}" for key in CORRECTION_KEYS]
    lines += ["", "[chip]"]
    lines.append(f"name = {_quoted(cluster.chip.name)}")
    for key in ("compiler", "compiled_as"):
        if getattr(cluster.chip, key):
            lines.append(f"{key} = {_quoted(getattr(cluster.chip, key))}")
    lines += [_assignment(key, c) for key, c in cluster.chip.constants().items()]
    if not cluster.dims:
        lines.insert(1, "dims = []")
    for dim in cluster.dims:
        lines += ["", "[[dims]]", f"name = {_quoted(dim.name)}", f"size = {dim.size}"]
        lines.append(f"kind = {_quoted(dim.kind.value)}")
        lines.append(_assignment("bandwidth", dim.bandwidth))
        lines.append(_assignment("latency", dim.latency))
    return "\n".join(lines) + "\n"


def _assignment(key: str, constant: Constant) -> str:
    value = f"{{ value = {constant.value!r}, source = {_quoted(constant.source)} }}"
    return f"{key} = {value}  # {UNITS[key]}"


def _literal(value: str | int) -> str:
    return _quoted(value) if isinstance(value, str) else str(value)


def _quoted(text: str) -> str:
    # A basic string of TOML has JSON's escapes, except that DEL must be escaped too.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _base(root: _Table) -> _Base | None:
    name = root.text("base")
    if name is None:
        return None
    if ":" not in name:
        return _Base(name, family_of(name.strip().lower(), f'base = "{name}"', root.file), None)
    try:
        family, dims = read_name(name)
    except ClusterError as error:
        raise ClusterError(f"base: {error.message}", root.file) from None
    return _Base(name, family, dims)


_STANDS_FOR = {"host_slowdown": "overlap_slowdown"}
"""For constants that files of earlier releases lack, those that stand for them."""


def _chip(table: _Table, base: _Base | None) -> Chip:
    table.check_keys(_CHIP_KEYS)
    name = table.text("name")
    if base is None and name is None:
        raise table.error(
            "name", 'is missing. Name the chip, or set base = "v5p" to start from a known one.'
        )
    inherited = {} if base is None else base.family.chip.constants()
    constants: dict[str, Constant] = {}
    for key in CHIP_CONSTANTS:
        constant = (
            table.constant(key) or inherited.get(key) or constants.get(_STANDS_FOR.get(key, ""))
        )
        if constant is None:
            raise table.error(
                key,
                f"is missing. Give it in {UNITS[key]}, or set base to the name of a known chip,"
                " whose values then stand for all that are missing.",
            )
        constants[key] = constant
    known = None if base is None else base.family.chip
    compiler = table.text("compiler") or ("" if known is None else known.compiler)
    if compiler:
        try:
            compiler_for(compiler, "", "")
        except ClusterError as error:
            raise table.error("compiler", f"= {compiler!r}: {error.message}") from None
    name = name or ("" if known is None else known.name)
    like = table.text("compiled_as") or ("" if known is None else known.name)
    return Chip(name=name, compiler=compiler, compiled_as="" if like == name else like, **constants)


def _record(root: _Table) -> CalibrationRecord | None:
    table = root.table("calibration")
    if table is None:
        return None
    table.check_keys(RECORD_KEYS)
    values: dict[str, Any] = {}
    for key in RECORD_KEYS:
        value = table.values.get(key)
        if key not in RECORD_NUMBERS:
            value = table.text(key)
        elif value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise table.error(key, f"= {value!r} is no whole number.")
        if value is None:
            raise table.error(
                key, "is missing. Give it, or leave out [calibration]: planning does not need it."
            )
        values[key] = value
    return CalibrationRecord(**values)


def _corrections(root: _Table) -> Corrections:
    table = root.table("corrections")
    if table is None:
        return Corrections()
    table.check_keys(CORRECTION_KEYS)
    for key, value in table.values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise table.error(key, f"= {value!r} is no number.")
        if key != "memory_bytes" and not (isfinite(value) and value > 0):
            raise table.error(key, f"= {value!r}: a positive number of times is needed.")
    return Corrections(**{key: float(value) for key, value in table.values.items()})


def _dims(root: _Table, base: _Base | None) -> tuple[Dim, ...]:
    if root.values.get("dims") is None:
        if base is not None and base.dims is not None:
            return base.dims
        raise root.error(
            "dims", 'is missing. Add a [[dims]] table for each, or set base = "v5p:4x4x4".'
        )
    dims = [_read_dim(table, base) for table in _tables(root, "dims")]
    _check_names(root, dims)
    return tuple(dim for dim in dims if dim.size > 1)


def _tables(root: _Table, key: str) -> Iterator[_Table]:
    """Those of ``[[key]]``."""
    value: Any = root.values.get(key, [])
    if not isinstance(value, list):
        raise root.error(key, f"= {value!r} is no list. Write [[{key}]] above each of them.")
    for index, item in enumerate(cast("list[Any]", value)):
        place = f"{key}[{index}]"
        if not isinstance(item, dict):
            raise root.error(place, f"= {item!r} is no table. Write [[{key}]] above its values.")
        yield _Table(root.file, place, cast("dict[str, Any]", item))


def _read_dim(table: _Table, base: _Base | None) -> Dim:
    table.check_keys(_DIM_KEYS)
    name = table.text("name")
    if name is None or not name.isidentifier():
        raise table.error(
            "name", f'= {name!r} cannot name axes. Give letters and digits, such as "x".'
        )
    size: Any = table.values.get("size")
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise table.error("size", f"= {size!r} is no size. Give a whole number from 1 on.")
    kind = table.text("kind")
    kinds = [one.value for one in LinkKind]
    if kind not in kinds:
        raise table.error("kind", f"= {kind!r} is no kind of link. Give one of {', '.join(kinds)}.")
    link = None if base is None else base.link(LinkKind(kind))
    constants: dict[str, Constant] = {}
    for key in LINK_CONSTANTS:
        constant = table.constant(key) or (None if link is None else getattr(link, key))
        if constant is None:
            without = "there is no base" if base is None else f'base "{base.name}" has no such link'
            raise table.error(key, f"is missing, and {without}. Give it in {UNITS[key]}.")
        constants[key] = constant
    return Dim(name, size, LinkKind(kind), **constants)


def _slower(root: _Table, dims: tuple[Dim, ...]) -> list[Slower]:
    return [_read_slower(table, dims) for table in _tables(root, "slower")]


def _read_slower(table: _Table, dims: tuple[Dim, ...]) -> Slower:
    table.check_keys(("dim", "numbers", "bandwidth", *SPEEDS))
    sizes = {dim.name: dim.size for dim in dims}
    dim = table.text("dim")
    if dim is None or dim not in sizes:
        raise table.error("dim", f"= {dim!r} is no dim. Give one of {', '.join(sizes)}.")
    numbers: Any = table.values.get("numbers")
    known = range(sizes[dim])
    if (
        not isinstance(numbers, list)
        or not numbers
        or not all(type(one) is int and one in known for one in cast("list[Any]", numbers))
    ):
        raise table.error(
            "numbers", f"= {numbers!r} does not say which. Give some of 0 to {sizes[dim] - 1}: [0]."
        )
    links = table.table("bandwidth") or _Table(table.file, table.path("bandwidth"), {})
    links.check_keys(sizes)
    shares = {key: _share(table, key) for key in SPEEDS if key in table.values}
    bandwidth = {key: _share(links, key) for key in links.values}
    if not shares and not bandwidth:
        raise table.error("dim", f"= {dim!r}: nothing is less. Give {', '.join(SPEEDS)} or links.")
    return Slower(dim, tuple(cast("list[int]", numbers)), shares, bandwidth)


def _share(table: _Table, key: str) -> float:
    value = table.values[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise table.error(
            key, f"= {value!r} is no share. Give what it has of the others', above 0, at most 1."
        )
    return float(value)


def _check_names(root: _Table, dims: list[Dim]) -> None:
    seen: set[str] = set()
    for index, dim in enumerate(dims):
        if dim.name in seen:
            raise root.error(
                f"dims[{index}].name", f'= "{dim.name}" is taken. Give every dim its own name.'
            )
        seen.add(dim.name)
