"""Shardy's texts: `#sdy.mesh<..>`, `#sdy.sharding<..>` and `#sdy.sharding_per_value<..>`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from autoshard.errors import ShardingError
from autoshard.sharding.mesh import Axis, Mesh
from autoshard.sharding.scanner import Scanner
from autoshard.sharding.sharding import AxisRef, Sharding
from autoshard.sharding.text import read_axes, read_priority

_EXAMPLE = '#sdy.sharding<@mesh, [{"dp"}, {"tp", ?}]>'
_SYMBOL = re.compile(r"[A-Za-z_][\w$.]*", re.ASCII)
_ESCAPE = re.compile(rb"\\([0-9A-Fa-f]{2})")


def mesh_to_sdy(mesh: Mesh) -> str:
    """``#sdy.mesh<["dp"=2, "tp"=4]>``, with ``device_ids=[..]`` for another device order."""
    return f"#sdy.mesh<{_mesh_body(mesh)}>"


def factor_symbol(index: int) -> str:
    """Shardy's name of factor ``index`` of a rule: i, j, .., z, z_1, z_2, .."""
    letters = "ijklmnopqrstuvwxyz"
    return letters[index] if index < len(letters) else f"z_{index - len(letters) + 1}"


def mesh_from_sdy(text: str) -> Mesh:
    """Read what :func:`mesh_to_sdy` writes.

    Raises:
        ParseError: The text has another form.
        ShardingError: A mesh that cannot be, or one that stands for a single other device.
    """
    scanner = Scanner(text, "sdy.mesh", '#sdy.mesh<["dp"=2, "tp"=4]>')
    _expect_head(scanner, "sdy.mesh")
    mesh = _read_mesh_body(scanner)
    scanner.expect_end()
    return mesh


def to_sdy(sharding: Sharding, mesh_name: str | None = "mesh") -> str:
    """``#sdy.sharding<@mesh, [{"dp"}, {"tp", ?}]>``.

    Args:
        sharding: What to write.
        mesh_name: Symbol of the module's `sdy.mesh`; None writes the mesh into the text.

    Raises:
        ShardingError: Manual axes or a shard group, which are ops of their own in Shardy.
    """
    return f"#sdy.sharding<{_sharding_body(sharding, mesh_name)}>"


def to_sdy_per_value(shardings: Sequence[Sharding], mesh_name: str | None = "mesh") -> str:
    """``#sdy.sharding_per_value<[<@mesh, [{"dp"}]>, ..]>``: one for each result of an op.

    Raises:
        ShardingError: As for :func:`to_sdy`.
    """
    elements = ", ".join(f"<{_sharding_body(sharding, mesh_name)}>" for sharding in shardings)
    return f"#sdy.sharding_per_value<[{elements}]>"


def from_sdy(text: str, meshes: Mapping[str, Mesh] | Mesh) -> Sharding:
    """Read one `#sdy.sharding<..>`.

    Args:
        text: As MLIR prints the attribute.
        meshes: The module's meshes by symbol, or the one that every symbol means.

    Raises:
        ParseError: The text has another form.
        ShardingError: An unknown mesh or axis, or an axis used twice.
    """
    scanner = Scanner(text, "sdy.sharding", _EXAMPLE)
    _expect_head(scanner, "sdy.sharding")
    sharding = _read_sharding_body(scanner, meshes)
    scanner.expect_end()
    return sharding


def per_value_from_sdy(text: str, meshes: Mapping[str, Mesh] | Mesh) -> tuple[Sharding, ...]:
    """Read `#sdy.sharding_per_value<[..]>`; arguments and errors as for :func:`from_sdy`."""
    scanner = Scanner(
        text, "sdy.sharding_per_value", '#sdy.sharding_per_value<[<@mesh, [{"dp"}]>]>'
    )
    _expect_head(scanner, "sdy.sharding_per_value")
    scanner.expect("<")
    scanner.expect("[")
    shardings: list[Sharding] = []
    while not scanner.accept("]"):
        if shardings:
            scanner.expect(",")
        shardings.append(_read_sharding_body(scanner, meshes))
    scanner.expect(">")
    scanner.expect_end()
    return tuple(shardings)


def _mesh_body(mesh: Mesh) -> str:
    axes = ", ".join(f'"{axis.name}"={axis.size}' for axis in mesh.axes)
    if mesh.device_ids is None:
        return f"[{axes}]"
    return f"[{axes}], device_ids=[{', '.join(map(str, mesh.device_ids))}]"


def _sharding_body(sharding: Sharding, mesh_name: str | None) -> str:
    if sharding.manual or sharding.shard_group is not None:
        raise ShardingError(
            f"sharding {sharding} cannot be written as sdy.sharding: manual axes are those of a"
            " surrounding sdy.manual_computation, a group is an op sdy.sharding_group."
            " Write these ops instead."
        )
    dims = ", ".join(
        _axes_text(refs, is_open) + ("" if priority is None else f"p{priority}")
        for refs, is_open, priority in zip(
            sharding.dims, sharding.open_dims, sharding.priorities, strict=True
        )
    )
    mesh = f"mesh<{_mesh_body(sharding.mesh)}>" if mesh_name is None else _symbol(mesh_name)
    text = f"{mesh}, [{dims}]"
    if sharding.replicated:
        text += f", replicated={_axes_text(sharding.replicated)}"
    if sharding.unreduced:
        text += f", unreduced={_axes_text(sharding.unreduced)}"
    return text


def _symbol(name: str) -> str:
    return f"@{name}" if _SYMBOL.fullmatch(name) else f'@"{name}"'


def _axes_text(refs: Sequence[AxisRef], is_open: bool = False) -> str:
    entries = [
        f'"{ref.name}"' if ref.size is None else f'"{ref.name}":({ref.pre_size}){ref.size}'
        for ref in refs
    ]
    return f"{{{', '.join([*entries, *(['?'] if is_open else [])])}}}"


def _expect_head(scanner: Scanner, word: str) -> None:
    scanner.expect("#")
    scanner.expect(word)


def _read_mesh_body(scanner: Scanner) -> Mesh:
    scanner.expect("<")
    scanner.expect("[")
    axes: list[Axis] = []
    while not scanner.accept("]"):
        if axes:
            scanner.expect(",")
        name = _unescaped(scanner.name())
        scanner.expect("=")
        axes.append(Axis(name, scanner.integer()))
    device_ids: tuple[int, ...] | None = None
    if scanner.accept(","):
        scanner.expect("device_ids")
        scanner.expect("=")
        scanner.expect("[")
        device_ids = scanner.integers("]")
    scanner.expect(">")
    return Mesh(tuple(axes), device_ids)


def _read_sharding_body(scanner: Scanner, meshes: Mapping[str, Mesh] | Mesh) -> Sharding:
    scanner.expect("<")
    mesh = _read_mesh(scanner, meshes)
    scanner.expect(",")
    scanner.expect("[")
    dims: list[tuple[AxisRef, ...]] = []
    open_dims: list[bool] = []
    priorities: list[int | None] = []
    while not scanner.accept("]"):
        if dims:
            scanner.expect(",")
        refs, is_open = _read_axes(scanner)
        dims.append(refs)
        open_dims.append(is_open)
        priorities.append(read_priority(scanner))
    extra: dict[str, tuple[AxisRef, ...]] = {"replicated": (), "unreduced": ()}
    while scanner.accept(","):
        if scanner.peek() not in extra:
            scanner.fail("expected replicated or unreduced")
        name = scanner.word()
        scanner.expect("=")
        extra[name] = _read_axes(scanner)[0]
    scanner.expect(">")
    return Sharding(
        mesh,
        tuple(dims),
        tuple(open_dims),
        extra["replicated"],
        extra["unreduced"],
        priorities=tuple(priorities),
    )


def _read_mesh(scanner: Scanner, meshes: Mapping[str, Mesh] | Mesh) -> Mesh:
    if scanner.accept("mesh"):
        return _read_mesh_body(scanner)
    scanner.expect("@")
    symbol = _unescaped(scanner.name())
    if isinstance(meshes, Mesh):
        return meshes
    if symbol not in meshes:
        known = ", ".join(f"@{name}" for name in meshes) or "none"
        raise ShardingError(
            f"{scanner.text} names mesh @{symbol}, but the module's meshes are: {known}."
            f' Add sdy.mesh @{symbol} = <["dp"=2]> with the right axes to the module.'
        )
    return meshes[symbol]


def _read_axes(scanner: Scanner) -> tuple[tuple[AxisRef, ...], bool]:
    refs, is_open = read_axes(scanner)
    return tuple(AxisRef(_unescaped(ref.name), ref.pre_size, ref.size) for ref in refs), is_open


def _unescaped(name: str) -> str:
    r"""MLIR prints other than ASCII letters as ``\C3\A9``."""
    if "\\" not in name:
        return name
    return _ESCAPE.sub(lambda m: bytes([int(m.group(1), 16)]), name.encode()).decode()
