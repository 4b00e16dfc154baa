"""Who shares a resharded copy of a value in an exported module."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.ir import new_context, parse_bytes, print_module
from autoshard.passes.pipeline import run_passes
from autoshard.verify.shardy_collectives import shardy_collectives

ROWS = "{devices=[8,1]<=[8]}"
ON_DP = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"
ON_TP = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"
BOTH = "{devices=[2,4]<=[8]}"
WHOLE = "{replicated}"
TYPE = "tensor<16x16xf32>"


def reader(name: str, operand: str, sharding: str, strategy: str) -> str:
    """``%name = tanh %operand``."""
    attributes = f'{{mhlo.sharding = "{sharding}", autoshard.strategy = "{strategy}"}}'
    return f"%{name} = stablehlo.tanh %{operand} {attributes} : {TYPE}"


def module(*lines: str, result: str, more: str = "") -> str:
    body = "\n".join(lines)
    return f"""
      module attributes {{autoshard.mesh = "dp=2,tp=4"}} {{
        func.func @main(%x: {TYPE} {{mhlo.sharding = "{ROWS}"}})
            -> ({TYPE} {{mhlo.sharding = "{result}"}}) {{
          {body}
        }}
        {more}
      }}"""


def exported(text: str):
    found = parse_bytes(text.encode(), new_context())
    run_passes(found, ["autoshard-export-shardy"])
    return found


def gathers(text: str) -> list[float]:
    return [found.moved_bytes for found in shardy_collectives(exported(text))]


def test_a_reader_of_a_part_cuts_it_from_the_copy_of_a_later_reader() -> None:
    text = module(
        reader("a", "x", BOTH, "[{dp}, {tp}] -> [{dp}, {tp}]"),
        reader("b", "x", ON_DP, "[{dp}, {}] -> [{dp}, {}]"),
        f'%c = stablehlo.add %a, %b {{mhlo.sharding = "{BOTH}", autoshard.strategy = '
        f'"[{{dp}}, {{tp}}], [{{dp}}, {{tp}}] -> [{{dp}}, {{tp}}]"}} : {TYPE}',
        f"return %c : {TYPE}",
        result=BOTH,
    )
    # One gather of two rows each from three others; no all-to-all beside it.
    assert gathers(text) == [3 * 2 * 16 * 4]


def test_a_callee_gets_the_copy_that_its_caller_has() -> None:
    callee = f"""
        func.func private @f(%y: {TYPE} {{mhlo.sharding = "{ROWS}"}})
            -> ({TYPE} {{mhlo.sharding = "{WHOLE}"}}) {{
          {reader("z", "y", WHOLE, "[{}, {}] -> [{}, {}]")}
          return %z : {TYPE}
        }}"""
    text = module(
        reader("a", "x", WHOLE, "[{}, {}] -> [{}, {}]"),
        f'%b = func.call @f(%x) {{mhlo.sharding = "{WHOLE}"}} : ({TYPE}) -> {TYPE}',
        f'%c = stablehlo.add %a, %b {{mhlo.sharding = "{WHOLE}", autoshard.strategy = '
        f'"[{{}}, {{}}], [{{}}, {{}}] -> [{{}}, {{}}]"}} : {TYPE}',
        f"return %c : {TYPE}",
        result=WHOLE,
        more=callee,
    )
    assert gathers(text) == [7 * 2 * 16 * 4]


def between(count: int, middle: str = "") -> str:
    """Two readers that want the whole of ``%x``, and ``count`` ops between them."""
    whole = "[{}, {}] -> [{}, {}]"
    names = [f"v{number}" for number in range(count + 1)]
    lines = [reader(b, a, WHOLE, whole) for a, b in pairwise(names)]
    lines.insert(count // 2, middle)
    return module(
        reader("v0", "x", WHOLE, whole),
        *lines,
        reader("far", "x", WHOLE, whole),
        f'%sum = stablehlo.add %far, %v{count} {{mhlo.sharding = "{WHOLE}", autoshard.strategy = '
        f'"[{{}}, {{}}], [{{}}, {{}}] -> [{{}}, {{}}]"}} : {TYPE}',
        f"return %sum : {TYPE}",
        result=WHOLE,
    )


def test_close_readers_share_a_copy() -> None:
    assert len(gathers(between(20))) == 1


def test_a_far_reader_has_a_copy_of_its_own_behind_a_barrier() -> None:
    text = between(100)
    assert len(gathers(text)) == 2
    printed = print_module(exported(text), "text").decode()
    assert len(re.findall("stablehlo.optimization_barrier", printed)) == 1


def test_readers_between_keep_a_copy_whatever_they_want() -> None:
    middle = reader("middle", "x", ROWS, "[{dp, tp}, {}] -> [{dp, tp}, {}]")
    assert len(gathers(between(100, middle))) == 1


@pytest.mark.parametrize(("cluster", "is_joined"), [("v5p:2x2x2", True), ("h100:8", False)])
def test_reshapes_behind_matmuls_are_joined_for_tpus(cluster: str, is_joined: bool) -> None:
    def heads(x: Any, w: Any) -> Any:
        return jnp.tanh((x @ w).reshape(-1, 16, 128))

    x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((65_536, 1024), (1024, 2048)))
    plan = autoshard.plan(heads, x, w, cluster=cluster)
    text = print_module(plan.exported("autoshard-export-shardy"), "text").decode()
    (result,) = re.findall(r"dot_general .* -> tensor<([\dx]*)xbf16>", text)
    assert result == ("65536x16x128" if is_joined else "65536x2048")


@pytest.mark.parametrize(
    ("cluster", "done", "product", "barriers"),
    [
        ("v5p:2x2x2", lambda q: q, "bskd,btkd->bkst", 2),
        ("v5p:2x2x2", jnp.tanh, "bskd,btkd->bkst", 1),
        ("v5p:2x2x2", lambda q: q, "bskd,bskt->bkdt", 0),
        ("h100:8", lambda q: q, "bskd,btkd->bkst", 0),
    ],
)
def test_a_matmul_is_kept_apart_from_a_batch_over_its_columns_for_tpus(
    cluster: str, done: Any, product: str, barriers: int
) -> None:
    def scores(x: Any, wq: Any, wk: Any) -> Any:
        q, k = ((x @ w).reshape(*x.shape[:2], -1, 128) for w in (wq, wk))
        return jnp.einsum(product, done(q), k if product == "bskd,btkd->bkst" else jnp.tanh(k))

    shapes = ((64, 1024, 1024), (1024, 2048), (1024, 2048))
    arguments = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    plan = autoshard.plan(scores, *arguments, cluster=cluster)
    text = print_module(plan.exported("autoshard-export-shardy"), "text").decode()
    assert text.count("optimization_barrier") == barriers
