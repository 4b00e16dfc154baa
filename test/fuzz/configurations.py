"""What a program is planned with, as data: the options of ``autoshard.jit`` as Python text.

Configuration("pins", {"mesh": "'a=2,b=4'", "mode": "'semi_auto'"}, ("P('a', None)", "None"))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, prod
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import autoshard
from fuzz.programs import KEY, Kind, Mark, Program, random_values
from fuzz.styles import Roles, arguments_of, styled

HERE = Path(__file__).resolve().parent
SLOW_CHIPS = str(HERE / "slow_chips.toml")
SLOW_LINKS = str(HERE / "slow_links.toml")
_MESHES = ({"a": 2, "b": 4}, {"a": 4, "b": 2}, {"a": 2, "b": 2, "c": 2}, {"d": 8})
_CLUSTERS = ("SLOW_CHIPS", "SLOW_LINKS", "'cpu:8'")
_CUTTING = _CLUSTERS[:2]

IN_MICRO_BATCHES = 0.06
"""The share of plans that work through the batch in parts; many are refused."""

Axes = Mapping[str, int]
Cut = tuple[tuple[str, ...], ...]
"""The axes that cut each dim."""


@dataclass(frozen=True)
class Configuration:
    """One way to plan a program."""

    family: str
    options: Mapping[str, str] = field(default_factory=dict)
    argument_pins: tuple[str, ...] = ()
    """One for each array among the arguments, or none at all; likewise for results."""
    result_pins: tuple[str, ...] = ()
    marks: Mapping[str, Mark] = field(default_factory=dict)
    """By the first result of the instruction."""
    limit_share: float | None = None
    """The limit of memory, as a share of what the plan without one needs."""
    is_shardy: bool = True

    def texts(self, program: Program) -> dict[str, str]:
        """All options, those with pins too."""
        texts = dict(self.options)
        if not any(it != "None" for it in (*self.argument_pins, *self.result_pins)):
            return texts
        arguments = arguments_of(program, random_values(program, 0))
        if self.argument_pins:
            texts["in_shardings"] = _tree_text(arguments, self.argument_pins)
        if self.result_pins:
            results = jax.eval_shape(styled(program), *arguments)
            texts["out_shardings"] = _tree_text(results, self.result_pins)
        return texts

    def keywords(self, program: Program) -> dict[str, Any]:
        """The options themselves."""
        return {key: eval(text, _names()) for key, text in self.texts(program).items()}


def _names() -> dict[str, Any]:
    return {
        "autoshard": autoshard,
        "jax": jax,
        "np": np,
        "P": PartitionSpec,
        "NamedSharding": NamedSharding,
        "SLOW_CHIPS": SLOW_CHIPS,
        "SLOW_LINKS": SLOW_LINKS,
        "mesh_of": mesh_of,
    }


def mesh_of(axes: Axes, order: Sequence[int]) -> Any:
    """A mesh of JAX over the devices in this order."""
    devices = np.array(jax.devices())[list(order)].reshape(tuple(axes.values()))
    return jax.sharding.Mesh(devices, tuple(axes))


class _Raw:
    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _tree_text(tree: Any, leaves: Sequence[str]) -> str:
    structure = jax.tree.structure(tree)
    return repr(jax.tree.unflatten(structure, [_Raw(it) for it in leaves]))


# Random ones


def random_configuration(program: Program, seed: int, number: int) -> Configuration:
    """The ``number``-th configuration for the program of this seed."""
    random = np.random.default_rng([seed, number, 5])
    weights = dict(_FAMILIES)
    if program.style == "function":
        # There is nothing to spread without a train step.
        weights = {name: it / 4 if "optimizer" in name else it for name, it in weights.items()}
    if program.name == "network":
        # Their gradients are where the search cuts images by itself.
        weights |= {name: 2.5 * weights[name] for name in ("automatic", "on_mesh")}
    shares = np.array(list(weights.values()))
    family = list(weights)[int(random.choice(len(weights), p=shares / shares.sum()))]
    axes = _MESHES[int(random.integers(len(_MESHES)))]
    configuration = _MAKERS[family](_Draw(program, random, axes, family))
    options = dict(configuration.options)
    if random.random() < 0.2:
        options["enable_alltoall"] = "False"
    if random.random() < 0.2:
        options["indivisible"] = "'pad'"
    if program.style == "train_step" and random.random() < 0.6:
        options["donate_argnums"] = "0"
    if "recompute" not in options and random.random() < 0.07:
        options["recompute"] = "'none'"
    is_shardy = bool(random.random() < 0.75)
    if random.random() < IN_MICRO_BATCHES:
        options |= _micro_batches(_Draw(program, random, axes, family), options)
    return replace(configuration, options=options, is_shardy=is_shardy)


@dataclass(frozen=True)
class _Draw:
    """What random choices need."""

    program: Program
    random: np.random.Generator
    axes: Axes
    family: str

    def choice(self, options: Sequence[Any]) -> Any:
        return options[int(self.random.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    @property
    def mesh(self) -> str:
        return repr(",".join(f"{name}={size}" for name, size in self.axes.items()))

    def made(self, **options: str) -> Configuration:
        return Configuration(self.family, options)

    def cut(self, shape: Sequence[int], probability: float = 0.7) -> Cut:
        """Random axes for each dim, so that all parts are equal."""
        free = [list(self.axes)[int(it)] for it in self.random.permutation(len(self.axes))]
        dims: list[tuple[str, ...]] = [() for _ in shape]
        for dim in self.random.permutation(len(shape)):
            while free and shape[dim] and self.chance(probability / (2 if dims[dim] else 1)):
                mine = (*dims[dim], free[-1])
                if shape[dim] % prod(self.axes[name] for name in mine):
                    break
                dims[dim] = mine
                free.pop()
        return tuple(dims)


def _automatic(draw: _Draw) -> Configuration:
    return draw.made(cluster=draw.choice(_CLUSTERS))


def _on_mesh(draw: _Draw) -> Configuration:
    return draw.made(cluster=draw.choice(_CUTTING), mesh=draw.mesh)


def _symbolic(draw: _Draw) -> Configuration:
    if draw.chance(0.5):
        return draw.made(cluster="'cpu:8'", cost_model="'symbolic'")
    return draw.made(cluster="SLOW_CHIPS", cost_model="'symbolic'", mesh=draw.mesh)


def _tight(draw: _Draw) -> Configuration:
    made = draw.made(cluster=draw.choice(_CUTTING))
    return replace(made, limit_share=draw.choice([0.99, 0.95, 0.9, 0.8]))


def _recomputing(draw: _Draw) -> Configuration:
    made = draw.made(cluster=draw.choice(_CUTTING), recompute="'auto'")
    return replace(made, limit_share=draw.choice([0.99, 0.95, 0.9, 0.8]))


def _on_host(draw: _Draw) -> Configuration:
    made = draw.made(cluster="SLOW_CHIPS", host_offload="'auto'")
    return replace(made, limit_share=draw.choice([0.9, 0.7, 0.5]))


def _optimizer(draw: _Draw) -> str:
    size = f", shard_size={draw.choice([2, 4, 8])}" if draw.chance(0.3) else ""
    return f"autoshard.OptimizerParallel(level={draw.choice([1, 2, 3])}, threshold_kb=0{size})"


def _automatic_optimizer(draw: _Draw) -> Configuration:
    return draw.made(cluster=draw.choice(_CUTTING), optimizer_parallel=_optimizer(draw))


def _pinned_optimizer(draw: _Draw) -> Configuration:
    made = _pinned(draw)
    options = {**made.options, "cluster": "'cpu:8'", "optimizer_parallel": _optimizer(draw)}
    if draw.chance(0.3):
        options["recompute"] = "'auto'"
    return replace(made, options=options)


def _data_parallel(draw: _Draw) -> Configuration:
    """Over as many devices as divide the batch, or at times over all."""
    numbers = _batch(draw)
    kinds = [draw.program.arguments[number].kind for number in numbers]
    devices = gcd(8, *(kind.shape[0] if kind.shape else 1 for kind in kinds))
    options = {"mode": "'data_parallel'", "mesh": f"'data={devices}'"}
    if devices == 8 or not kinds or draw.chance(0.1):
        options = {"mode": "'data_parallel'", **_everywhere(draw)}
    if draw.program.style != "train_step":
        options["batch_argnums"] = repr(numbers)
    elif numbers and draw.chance(0.7):
        options["batch_argnums"] = repr(tuple(range(1, len(numbers) + 1)))
    return draw.made(**options)


def _micro_batches(draw: _Draw, options: Mapping[str, str]) -> dict[str, str]:
    """Nothing where no number of micro-batches divides the batch."""
    numbers = _batch(draw)
    kinds = [draw.program.arguments[number].kind for number in numbers]
    size = gcd(*(kind.shape[0] if kind.shape else 1 for kind in kinds))
    counts = [count for count in range(2, size + 1) if size % count == 0]
    if not numbers or not counts:
        return {}
    found = {"micro_batches": str(draw.choice(counts))}
    if "batch_argnums" in options:  # the mode's batch, which may be another one
        return found
    is_step = draw.program.style == "train_step"
    places = tuple(range(1, len(numbers) + 1)) if is_step else numbers
    return {**found, "batch_argnums": repr(places)}


def _everywhere(draw: _Draw) -> dict[str, str]:
    return {"mesh": draw.mesh} if draw.chance(0.5) else {"cluster": "'cpu:8'"}


def _data_parallel_optimizer(draw: _Draw) -> Configuration:
    made = _data_parallel(draw)
    return replace(made, options={**made.options, "optimizer_parallel": _optimizer(draw)})


def _batch(draw: _Draw) -> tuple[int, ...]:
    """Numbers of the arguments that are the batch, or may be: those with the same first dim."""
    program = draw.program
    if program.style != "function":
        return Roles.of(program).data
    kinds = [argument.kind for argument in program.arguments]
    rows = [kind.shape[0] for kind in kinds if kind.shape and kind.shape[0] % 2 == 0]
    if not rows:
        return tuple(range(len(kinds)))[:1]
    first = draw.choice(rows)
    fitting = [number for number, kind in enumerate(kinds) if kind.shape[:1] == (first,)]
    return tuple(number for number in fitting if draw.chance(0.7)) or tuple(fitting[:1])


def _pinned(draw: _Draw) -> Configuration:
    made = draw.made(mode="'semi_auto'", mesh=draw.mesh)
    write: Callable[[Cut], str] = _spec_text
    if draw.chance(0.5):
        order = list(range(8))
        if draw.chance(0.3):
            order = [int(it) for it in draw.random.permutation(8)]
        mesh = f"mesh_of({dict(draw.axes)}, {order})"
        made = replace(made, options={**made.options, "mesh": mesh})
        write = lambda cut: f"NamedSharding({mesh}, {_spec_text(cut)})"  # noqa: E731
    arguments = arguments_of(draw.program, random_values(draw.program, 0))
    pins = _pins(draw, jax.tree.leaves(arguments), write, 0.6)
    if all(pin == "None" for pin in pins):
        pins = _pins(draw, jax.tree.leaves(arguments), write, 1.0)
    made = replace(made, argument_pins=pins)
    if draw.chance(0.4):
        results = jax.tree.leaves(jax.eval_shape(styled(draw.program), *arguments))
        made = replace(made, result_pins=_pins(draw, results, write, 0.6))
    return made


def _pins(
    draw: _Draw, leaves: Sequence[Any], write: Callable[[Cut], str], probability: float
) -> tuple[str, ...]:
    return tuple(
        write(draw.cut(leaf.shape)) if draw.chance(probability) else "None" for leaf in leaves
    )


def _spec_text(cut: Cut) -> str:
    dims = [repr(it[0]) if len(it) == 1 else repr(it) if it else "None" for it in cut]
    return f"P({', '.join(dims)})"


def _marked(draw: _Draw) -> Configuration:
    made = draw.made(mode="'semi_auto'", mesh=draw.mesh)
    if draw.chance(0.3):
        made = replace(_pinned(draw), options=made.options)
        made = replace(made, argument_pins=tuple(_without_mesh(it) for it in made.argument_pins))
        made = replace(made, result_pins=tuple(_without_mesh(it) for it in made.result_pins))
    found = [(owner, it) for owner, it in draw.program.walk() if it.operands]
    if not found:
        return made
    as_layout = draw.chance(0.6)
    marks: dict[str, Mark] = {}
    for place in draw.random.permutation(len(found))[: int(draw.random.integers(1, 5))]:
        owner, instruction = found[int(place)]
        names = list(dict.fromkeys(instruction.operands))
        share = 0.55 if draw.chance(0.3) else 1 / len(names)
        operands = [_strategy(draw, owner.kinds[name], as_layout, share) for name in names]
        likely = 0.35 if draw.chance(0.4) else 0.0
        results = [
            _strategy(draw, owner.kinds[it], as_layout, likely) for it in instruction.results
        ]
        if all(it == "None" for it in (*operands, *results)):
            continue
        result = _tuple_text(results) if instruction.unpacks else results[0]
        result = "None" if all(it == "None" for it in results) else result
        marks[instruction.results[0]] = Mark(_tuple_text(operands), result)
    return replace(made, marks=marks)


def _without_mesh(pin: str) -> str:
    return pin[pin.index("P(") : -1] if pin.startswith("NamedSharding") else pin


def _tuple_text(texts: Sequence[str]) -> str:
    return f"({''.join(f'{text}, ' for text in texts)})"


def _strategy(draw: _Draw, kind: Kind, as_layout: bool, probability: float) -> str:
    if kind.dtype == KEY or not draw.chance(probability):
        return "None"
    cut = draw.cut(kind.shape)
    if not as_layout:
        return repr(tuple(prod(draw.axes[name] for name in dim) for dim in cut))
    dims = [repr(it[0]) if len(it) == 1 else repr(it) if it else "'None'" for it in cut]
    layout = f"autoshard.Layout({tuple(draw.axes.values())}, {tuple(draw.axes)})"
    return f"{layout}({', '.join(dims)})"


_MAKERS: dict[str, Callable[[_Draw], Configuration]] = {
    "automatic": _automatic,
    "on_mesh": _on_mesh,
    "tight": _tight,
    "recomputing": _recomputing,
    "on_host": _on_host,
    "symbolic": _symbolic,
    "pinned": _pinned,
    "marked": _marked,
    "data_parallel": _data_parallel,
    "automatic_optimizer": _automatic_optimizer,
    "pinned_optimizer": _pinned_optimizer,
    "data_parallel_optimizer": _data_parallel_optimizer,
}
_FAMILIES = {
    "automatic": 5.0,
    "on_mesh": 2.0,
    "tight": 1.5,
    "recomputing": 1.5,
    "on_host": 0.6,
    "symbolic": 1.0,
    "pinned": 4.0,
    "marked": 6.0,
    "data_parallel": 2.0,
    "automatic_optimizer": 1.2,
    "pinned_optimizer": 2.0,
    "data_parallel_optimizer": 2.0,
}
