"""Plans as experts write them: a mesh, and rules that say how each argument is cut.

The rules read paths and shapes only, as rules in a training framework do, and know nothing of the
program's ops. A hand plan fixes parameters, optimizer state and batch; what lies between is
completed by whoever evaluates it (bench/quality/plan_quality.py: by autoshard's own search, which
is the best that could happen to the plan).

The kinds, with n devices:

  data            batch over n, everything else whole
  zero1           the same, and optimizer state cut over n on its largest dim that divides
  fsdp            ZeRO-3 (Rajbhandari et al. 2020): parameters and optimizer state cut so
  tensor          Megatron (Shoeybi et al. 2019): the inner dim of every column/row pair of
                  matrices over t, vocabularies over t, batch over n / t
  tensor+seq      the same with the tokens cut over t as well (Korthikanti et al. 2022)
  fsdp+tensor     both: inner dims over t, another dim over n / t
  expert          experts over e, what is not an expert over n, batch over n
  published       the specs that came with the model (corpus, .expert modules)
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

LARGEST_TENSOR = 16
"""Devices that share one matrix; nobody uses more within one host or one slice's torus dim."""

_NORM = re.compile(r"norm\w*(\[|'\]|\.|/)|\bln_?\w*'|_bn/", re.I)
_WHOLE = re.compile(
    r"position|pos_embed|\bwpe|cls_?token|token_type|ada_layer_norm/|sparse_feedforward_gate"
    r"|Block_\d+'\]\['gate'",
    re.I,
)
"""Small or read everywhere: tensor parallel plans leave them whole, as norms."""
_BIAS = re.compile(r"bias|'b'\]|\bb\b", re.I)
_VOCABULARY = re.compile(
    r"embedder'\]\['|embed_tokens|word_embeddings|token_embedding|\bwte|lm_head|logits_dense"
    r"|\['(embedding|head)'\]|classifier|input_embedding",
    re.I,
)
_ROW = re.compile(
    r"o_proj|out_proj|\['out'\]|'wo'|\['output'\]\['dense'\]|attn_vec_einsum|attention_output"
    r"|attention_proj|attn\.proj|proj_final|linear_out|down_proj|output_dense|ffw_down|w_down"
    r"|fc2|fc_out|c_proj|dense2|linear_1\b|mlp'\]\['linear'|hidden_\d*[13579]'",
    re.I,
)
_COLUMN = re.compile(
    r"[qkv]_proj|\['(query|key|value)'\]|/(query|key|value)/|qkv|c_attn|proj_[qkv]|[qk]v?_einsum"
    r"|in_proj|linear_[xy0]\b|rg_lru|conv_?1d|A_log|dt_bias|gate_proj|up_proj|gate_dense|gate_up"
    r"|intermediate|gating_einsum|ffw_up|\bw[qkv]\b|w_gate|w_up|'wi|fc1|fc_in|c_fc|dense1"
    r"|hidden_\d*[02468]'",
    re.I,
)
_EXPERT = re.compile(r"/experts/|MoeBlock_\d+'\]\['w|'experts'", re.I)


_STATE = ("params", "opt_state")

Cut = tuple[tuple[str, ...], ...]
"""For each dim the axes that cut it."""


@dataclass(frozen=True)
class HandPlan:
    """One plan: how the arguments are cut over a mesh."""

    name: str
    axes: tuple[tuple[str, int], ...]
    """Name and size, slowest first."""
    cuts: dict[int, Cut]
    """By index of the argument; what is missing is left to the search."""

    @property
    def mesh(self) -> str:
        """As ``autoshard.mesh`` is written."""
        return ",".join(f"{name}={size}" for name, size in self.axes)

    @property
    def sdy_axes(self) -> str:
        """As Shardy writes the axes of a mesh."""
        return ", ".join(f'"{name}"={size}' for name, size in self.axes)

    def sdy_cuts(self) -> dict[int, str]:
        """As Shardy writes the dims of a sharding."""

        def dim(axes: Sequence[str]) -> str:
            return "{" + ", ".join(f'"{axis}"' for axis in axes) + "}"

        return {index: ", ".join(dim(axes) for axes in cut) for index, cut in self.cuts.items()}

    def sdy_results(self, arguments: list[dict[str, Any]]) -> dict[int, str]:
        """The same for results that replace an argument: a step leaves them as it found them."""
        cuts = self.sdy_cuts()
        return {
            argument["aliases_result"]: cuts[argument["index"]]
            for argument in arguments
            if argument.get("aliases_result") is not None and argument["index"] in cuts
        }


@dataclass(frozen=True)
class Structure:
    """What the arguments of a train step say about its model."""

    arguments: list[dict[str, Any]]
    features: int
    """Width of what flows from layer to layer; 0 if there is no norm to tell."""
    stacked_dim: int | None
    """Dim that counts layers, of parameters of scanned layers."""
    layers: int
    """Size of that dim; 0 without."""
    output_is_first: bool
    """Matrices are (output, input), not (input, output)."""
    batch: int
    """What divides the first dim of every batch argument."""
    tokens: int
    """Length of sequences; 0 if the batch has none."""


def structure(arguments: list[dict[str, Any]]) -> Structure:
    """Read paths and shapes; see ``Structure``."""
    parameters = [a for a in arguments if a["role"] == "params"]
    norms = [
        a
        for a in parameters
        if _NORM.search(a["path"]) and not _WHOLE.search(a["path"]) and len(a["shape"]) in (1, 2)
    ]
    widths = Counter(a["shape"][0] for a in norms if len(a["shape"]) == 1)
    features = widths.most_common(1)[0][0] if widths else 0
    stacked_dim, layers = None, 0
    for norm in norms:
        shape = norm["shape"]
        if len(shape) == 2 and shape.count(features) == 1:
            other = 1 - shape.index(features)
            if 1 < shape[other] < features:
                stacked_dim, layers = other, shape[other]
    first = [
        a["shape"].index(features) == 1
        for a in parameters
        if _COLUMN.search(a["path"])
        and len(a["shape"]) == 2
        and a["shape"].count(features) == 1
        and min(a["shape"]) > 4
        and "/~/" not in a["path"]
    ]
    data = [a for a in arguments if _is_data(a)] or [
        a for a in arguments if a["role"] == "state" and len(a["shape"]) > 1
    ]
    batch = math.gcd(*(a["shape"][0] for a in data)) if data else 1
    lengths = {a["shape"][1] for a in data if len(a["shape"]) == 2 and "int" in a["dtype"]}
    return Structure(
        arguments,
        features,
        stacked_dim,
        layers,
        sum(first) * 2 > len(first),
        batch,
        lengths.pop() if len(lengths) == 1 else 0,
    )


def hand_plans(
    arguments: list[dict[str, Any]],
    devices: int,
    published: tuple[dict[str, int], list[Any]] | None = None,
) -> list[HandPlan]:
    """Every kind of plan that the program and the number of devices allow.

    Args:
        arguments: Of the train step, as in the corpus.
        devices: All of them are used.
        published: Mesh and the spec of each argument, for as many devices.
    """
    model = structure(arguments)
    plans = [
        _plan(model, "data", devices, 1),
        _plan(model, "zero1", devices, 1, spread_roles=("opt_state",)),
        _plan(model, "fsdp", devices, 1, spread_roles=_STATE),
    ]
    pairs = any(_inner_dim(model, a, 1) is not None for a in arguments if a["role"] == "params")
    for tensor in _divisors(devices, LARGEST_TENSOR) if pairs else ():
        plans.append(_plan(model, f"tensor {tensor}", devices, tensor))
        if model.tokens and model.tokens % tensor == 0:
            name = f"tensor+seq {tensor}"
            plans.append(_plan(model, name, devices, tensor, sequence=True))
        if tensor < devices:
            name = f"fsdp+tensor {tensor}"
            plans.append(_plan(model, name, devices, tensor, spread_roles=_STATE))
    experts = [a["shape"][0] for a in arguments if _is_expert(a)]
    for size in _divisors(math.gcd(devices, *experts), devices) if experts else ():
        plans.append(_expert_plan(model, devices, size))
    if published is not None:
        plans.append(_published_plan(arguments, *published))
    return plans


def semi_automatic(
    arguments: list[dict[str, Any]],
    data: int,
    fsdp: int,
    tensor: int,
    *,
    optimizer_level: int,
    sequence: bool = False,
) -> HandPlan:
    """One configuration of MindFormers: data x fsdp x tensor devices, parallel optimizer.

    Args:
        arguments: Of the train step, as in the corpus.
        data: Groups of devices that hold the same parameters, before the optimizer is parallel.
        fsdp: Devices of a group over which parameters are cut beside the tensor dims.
        tensor: Devices that share a column or row of Megatron.
        optimizer_level: 1: optimizer state is cut over data as well; 3: and parameters, which are
            gathered where they are read.
        sequence: Tokens are cut over the devices of ``tensor`` between the matrices.
    """
    model = structure(arguments)
    axes = _axes(data=data, fsdp=fsdp, model=tensor)
    names = [axis for axis, _ in axes]
    batch = tuple(axis for axis in ("data", "fsdp") if axis in names)
    cuts: dict[int, Cut] = {}
    for argument in arguments:
        if argument["role"] in _STATE:
            spread = batch
            if optimizer_level == 1 and argument["role"] == "params":
                spread = tuple(axis for axis in batch if axis == "fsdp")
            cut: list[tuple[str, ...]] = [()] * len(argument["shape"])
            inner = _inner_dim(model, argument, tensor) if tensor > 1 else None
            if inner is not None:
                cut[inner] = ("model",)
            _spread(model, argument, cut, spread, axes)
            cuts[argument["index"]] = tuple(cut)
        elif _is_data(argument):
            cuts[argument["index"]] = _batch_cut(model, argument, batch, False)
    name = f"dp={data}" + (f" fsdp={fsdp}" if fsdp > 1 else "") + f" mp={tensor}"
    name += f", optimizer level {optimizer_level}" + (", sequence parallel" if sequence else "")
    return HandPlan(name, axes, cuts)


def _plan(
    model: Structure,
    name: str,
    devices: int,
    tensor: int,
    *,
    spread_roles: tuple[str, ...] = (),
    sequence: bool = False,
) -> HandPlan:
    data = math.gcd(model.batch, devices // tensor)
    rest = devices // tensor // data
    axes = _axes(data=data, rest=rest, model=tensor)
    names = {axis for axis, _ in axes}
    spread = tuple(axis for axis in ("data", "rest") if axis in names)
    cuts: dict[int, Cut] = {}
    for argument in model.arguments:
        if argument["role"] in _STATE:
            cut: list[tuple[str, ...]] = [()] * len(argument["shape"])
            inner = _inner_dim(model, argument, tensor) if tensor > 1 else None
            if inner is not None:
                cut[inner] = ("model",)
            if argument["role"] in spread_roles:
                _spread(model, argument, cut, spread, axes)
            cuts[argument["index"]] = tuple(cut)
        elif _is_data(argument):
            cuts[argument["index"]] = _batch_cut(
                model, argument, ("data",) if "data" in names else (), sequence
            )
    return HandPlan(
        name + (f" ({rest} left over)" if rest > 1 and not spread_roles else ""), axes, cuts
    )


def _expert_plan(model: Structure, devices: int, experts: int) -> HandPlan:
    data = math.gcd(model.batch // math.gcd(model.batch, experts), devices // experts)
    axes = _axes(data=data, rest=devices // experts // data, expert=experts)
    names = [axis for axis, _ in axes]
    cuts: dict[int, Cut] = {}
    for argument in model.arguments:
        if argument["role"] in _STATE:
            cut: list[tuple[str, ...]] = [()] * len(argument["shape"])
            spread = names
            if _is_expert(argument):
                cut[0] = ("expert",)
                spread = [name for name in names if name != "expert"]
            _spread(model, argument, cut, spread, axes)
            cuts[argument["index"]] = tuple(cut)
        elif _is_data(argument):
            wanted = tuple(name for name in ("data", "expert") if name in names)
            total = math.prod(size for name, size in axes if name in wanted)
            if model.batch % total:
                wanted = tuple(name for name in ("data",) if name in names)
            cuts[argument["index"]] = _batch_cut(model, argument, wanted, False)
    return HandPlan(f"expert {experts}", axes, cuts)


def _published_plan(
    arguments: list[dict[str, Any]], mesh: dict[str, int], specs: list[Any]
) -> HandPlan:
    cuts: dict[int, Cut] = {}
    for argument, spec in zip(arguments, specs, strict=True):
        if spec is None or argument["role"] not in ("params", "opt_state", "batch"):
            continue
        dims = [() if d is None else (d,) if isinstance(d, str) else tuple(d) for d in spec]
        dims += [()] * (len(argument["shape"]) - len(dims))
        cuts[argument["index"]] = tuple(dims)
    return HandPlan("published", tuple(mesh.items()), cuts)


def _axes(**sizes: int) -> tuple[tuple[str, int], ...]:
    return tuple((name, size) for name, size in sizes.items() if size > 1)


def _batch_cut(
    model: Structure, argument: dict[str, Any], axes: tuple[str, ...], sequence: bool
) -> Cut:
    cut: list[tuple[str, ...]] = [()] * len(argument["shape"])
    cut[0] = axes
    if sequence and len(cut) > 1 and argument["shape"][1] == model.tokens:
        cut[1] = ("model",)
    return tuple(cut)


def _spread(
    model: Structure,
    argument: dict[str, Any],
    cut: list[tuple[str, ...]],
    names: Iterable[str],
    axes: tuple[tuple[str, int], ...],
) -> None:
    """Cut the largest dim that divides over ``names``, one not cut yet before one that is."""
    sizes = dict(axes)
    names = tuple(names)
    shape = argument["shape"]

    def fits(dim: int) -> bool:
        return shape[dim] % math.prod(sizes[axis] for axis in (*names, *cut[dim])) == 0

    stacked = _stacked_dim(model, argument)
    dims = [d for d in range(len(shape)) if d != stacked and fits(d)]
    if names and dims:
        best = max(dims, key=lambda d: (not cut[d], shape[d]))
        cut[best] = (*names, *cut[best])


def _inner_dim(model: Structure, argument: dict[str, Any], size: int) -> int | None:
    """The dim that Megatron cuts into ``size``, or None: the argument stays whole."""
    path, shape = argument["path"], argument["shape"]
    if not shape or _NORM.search(path) or _WHOLE.search(path):
        return None
    if "lora_a" in path or "lora_b" in path:  # The rank, their last and first dim, stays whole.
        cut = 0 if _ROW.search(path) else 1
        dim = len(shape) - 2 + cut
        return dim if ("lora_a" in path) == (cut == 0) and shape[dim] % size == 0 else None
    stacked = _stacked_dim(model, argument)
    dims = [d for d in range(len(shape)) if d != stacked and not (d == 0 and _is_expert(argument))]
    is_row, is_column = bool(_ROW.search(path)), bool(_COLUMN.search(path))
    if not (is_row or is_column):
        words = [d for d in dims if shape[d] != model.features]
        if not (words and _VOCABULARY.search(path)):
            return None
        inner = max(words, key=lambda d: shape[d])
        return inner if shape[inner] % size == 0 and shape[inner] >= 1000 else None
    if is_row and len(dims) == 1:
        return None  # the bias of a row-parallel matrix is added once
    # Two or three matrices in one, and the taps of a convolution, are no dims to cut.
    smallest = 5 if "conv" in path else 4
    others = [d for d in dims if shape[d] != model.features and shape[d] >= smallest]
    says_nothing = len(others) == len(dims) == 2 and not _BIAS.search(path)
    if says_nothing or not others or "/~/" in path:
        # Square, or the model's width tells nothing: by position.
        outputs_first = model.output_is_first != is_row
        others = dims[:1] if outputs_first else dims[-1:]
    inner = others[0]
    return inner if shape[inner] % size == 0 else None


def _stacked_dim(model: Structure, argument: dict[str, Any]) -> int | None:
    dim, shape = model.stacked_dim, argument["shape"]
    if dim is None or not re.search(r"\['(layers|blocks)'\]", argument["path"]):
        return None
    return dim if len(shape) > dim and shape[dim] == model.layers else None


def _is_expert(argument: dict[str, Any]) -> bool:
    return (
        argument["role"] in _STATE
        and len(argument["shape"]) >= 3
        and bool(_EXPERT.search(argument["path"]))
    )


def _is_data(argument: dict[str, Any]) -> bool:
    """An argument with a batch dim in front."""
    is_key = argument["dtype"] == "uint32" and argument["shape"] == [2]
    return argument["role"] == "batch" and bool(argument["shape"]) and not is_key


def _divisors(number: int, most: int) -> list[int]:
    """Divisors of ``number``, from 2 to ``most``, increasing."""
    return [d for d in range(2, min(number, most) + 1) if number % d == 0]
