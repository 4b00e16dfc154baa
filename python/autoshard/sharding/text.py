"""Our own text of shardings: ``[{dp}, {sp, tp}, {}]``.

An open dim ends in ``?`` (``{dp, ?}``), a sub-axis is ``tp:(1)2``, a Shardy priority ``{dp}p1``.
Behind the dims may come ``replicated={..}``, ``unreduced={..}``, ``manual={..}`` and
``shard_as 1`` or ``shard_like 1``. A mesh may come before: ``mesh[dp=2,sp=2,mp=2] [{mp}, {}]``,
with another device order as ``mesh[dp=2,tp=2; 0,2,1,3] ..``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from autoshard.errors import ParseError
from autoshard.sharding.mesh import Mesh, read_mesh
from autoshard.sharding.scanner import Scanner
from autoshard.sharding.sharding import AxisRef, ShardGroup, Sharding

_EXAMPLE = "[{dp}, {sp, tp}, {}]"


def format_sharding(sharding: Sharding, with_mesh: bool = False) -> str:
    """The text; ``with_mesh`` puts ``mesh[..]`` before it."""
    dims = ", ".join(
        _dim_text(refs, is_open, priority)
        for refs, is_open, priority in zip(
            sharding.dims, sharding.open_dims, sharding.priorities, strict=True
        )
    )
    parts = [f"[{dims}]"]
    for name in ("replicated", "unreduced", "manual"):
        refs: tuple[AxisRef, ...] = getattr(sharding, name)
        if refs:
            parts.append(f"{name}={_dim_text(refs, False, None)}")
    if sharding.shard_group is not None:
        parts.append(str(sharding.shard_group))
    if with_mesh:
        parts.insert(0, format_mesh_prefix(sharding.mesh))
    return " ".join(parts)


def format_mesh_prefix(mesh: Mesh) -> str:
    """``mesh[dp=2,tp=2]``, or ``mesh[dp=2,tp=2; 0,2,1,3]`` for another device order."""
    axes = ",".join(map(str, mesh.axes))
    if mesh.device_ids is None:
        return f"mesh[{axes}]"
    return f"mesh[{axes}; {','.join(map(str, mesh.device_ids))}]"


def _dim_text(refs: Sequence[AxisRef], is_open: bool, priority: int | None) -> str:
    entries = [str(ref) for ref in refs] + (["?"] if is_open else [])
    return f"{{{', '.join(entries)}}}" + ("" if priority is None else f"p{priority}")


def parse_sharding(text: str, mesh: Mesh | None = None) -> Sharding:
    """Read one sharding.

    Args:
        text: With or without a mesh prefix.
        mesh: The mesh when the text names none.

    Raises:
        ParseError: The text has another form, or no mesh is known.
        ShardingError: The text says what no sharding can be.
    """
    scanner = Scanner(text, "sharding", _EXAMPLE)
    sharding = _read_sharding(scanner, mesh)
    scanner.expect_end()
    return sharding


@dataclass(frozen=True, slots=True)
class OpStrategy:
    """What an op needs of its operands and gives as results, in one text.

    ``[{dp}, {}], [{}, {tp}] -> [{dp}, {tp}]``
    """

    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]

    def __str__(self) -> str:
        """The text, without the mesh."""
        sides = (", ".join(map(str, side)) for side in (self.operands, self.results))
        return " -> ".join(sides).strip()

    @classmethod
    def parse(cls, text: str, mesh: Mesh) -> OpStrategy:
        """Read the text; ParseError if it has another form."""
        scanner = Scanner(text, "op strategy", "[{dp}, {}], [{}, {tp}] -> [{dp}, {tp}]")
        operands = _read_shardings(scanner, mesh)
        scanner.expect("->")
        results = _read_shardings(scanner, mesh)
        scanner.expect_end()
        return cls(operands, results)


@lru_cache(maxsize=1 << 14)
def parsed_strategy(text: str, mesh: Mesh) -> OpStrategy:
    """As ``OpStrategy.parse``; a module that is rewritten step by step says the same again."""
    return OpStrategy.parse(text, mesh)


def _read_shardings(scanner: Scanner, mesh: Mesh) -> tuple[Sharding, ...]:
    if scanner.at_end or scanner.peek() == "->":
        return ()
    shardings = [_read_sharding(scanner, mesh)]
    while scanner.accept(","):
        shardings.append(_read_sharding(scanner, mesh))
    return tuple(shardings)


def _read_sharding(scanner: Scanner, mesh: Mesh | None) -> Sharding:
    if scanner.accept("mesh"):
        scanner.expect("[")
        if scanner.accept("]"):
            mesh = Mesh(())
        else:
            mesh = read_mesh(scanner)
            scanner.expect("]")
    if mesh is None:
        raise ParseError(
            f"sharding {scanner.text!r} names no mesh, and none is known here."
            f" Write it as 'mesh[dp=2,tp=4] {scanner.text}'."
        )
    scanner.expect("[")
    dims: list[tuple[AxisRef, ...]] = []
    open_dims: list[bool] = []
    priorities: list[int | None] = []
    while scanner.peek() != "]":
        if dims:
            scanner.expect(",")
        refs, is_open = read_axes(scanner)
        dims.append(refs)
        open_dims.append(is_open)
        priorities.append(read_priority(scanner))
    scanner.expect("]")
    extra: dict[str, tuple[AxisRef, ...]] = {"replicated": (), "unreduced": (), "manual": ()}
    while scanner.peek() in extra:
        name = scanner.word()
        scanner.expect("=")
        extra[name] = read_axes(scanner)[0]
    return Sharding(
        mesh,
        tuple(dims),
        tuple(open_dims),
        extra["replicated"],
        extra["unreduced"],
        extra["manual"],
        tuple(priorities),
        read_shard_group(scanner),
    )


def read_axes(scanner: Scanner) -> tuple[tuple[AxisRef, ...], bool]:
    """Read ``{dp, "tp":(1)2, ?}``: the axes, and whether ``?`` is there."""
    scanner.expect("{")
    refs: list[AxisRef] = []
    is_open = False
    while not scanner.accept("}"):
        if refs:
            scanner.expect(",")
        if scanner.accept("?"):
            is_open = True
            scanner.expect("}")
            break
        refs.append(_read_axis_ref(scanner))
    return tuple(refs), is_open


def _read_axis_ref(scanner: Scanner) -> AxisRef:
    name = scanner.name()
    if not scanner.accept(":"):
        return AxisRef(name)
    scanner.expect("(")
    pre_size = scanner.integer()
    scanner.expect(")")
    return AxisRef(name, pre_size, scanner.integer())


def read_priority(scanner: Scanner) -> int | None:
    """Read ``p1`` if it comes next."""
    word = scanner.peek()
    if word[:1] == "p" and word[1:].isdigit():
        return int(scanner.word()[1:])
    return None


def read_shard_group(scanner: Scanner) -> ShardGroup | None:
    """Read ``shard_as 1`` or ``shard_like 1`` if it comes next."""
    if scanner.accept("shard_as"):
        return ShardGroup("as", scanner.integer())
    if scanner.accept("shard_like"):
        return ShardGroup("like", scanner.integer())
    return None
