"""Tables of a plan show equal layers once, and every row where that is wanted."""

from __future__ import annotations

import io
import re

from explained_plans import LAYERS, layers_plan


def full_text() -> str:
    file = io.StringIO()
    layers_plan().print(full=True, file=file)
    return file.getvalue()


def arguments_of(text: str) -> str:
    """The first table."""
    return text[text.index(" argument ") : text.index(" result ")]


def test_equal_layers_are_one_row_with_their_count():
    plan = layers_plan()
    text = arguments_of(str(plan))
    shardings = {str(v.sharding) for v in plan.arguments if v.name.endswith("['up']")}
    rows = re.findall(r"^ layers\[.\]\['up'\].*", text, re.MULTILINE)
    assert len(rows) == len(shardings) < LAYERS
    counts = [int(found[1]) if (found := re.search(r" × (\d+)", row)) else 1 for row in rows]
    assert sum(counts) == LAYERS


def test_the_full_table_has_every_row():
    rows = re.findall(r"^ layers\[(\d)\]\['up'\]", arguments_of(full_text()), re.MULTILINE)
    assert rows == [str(layer) for layer in range(LAYERS)]
    assert "×" not in re.sub(r"\d×\d", "", full_text())


def test_counts_of_folded_ops_are_the_rows_of_the_full_table():
    products = re.compile(r"^ dot_general(?: × (\d+))? +explained_plans\.py:\d+ +\[", re.MULTILINE)
    counts = [int(count or 1) for count in products.findall(str(layers_plan()))]
    assert sum(counts) == len(products.findall(full_text())) == LAYERS * 2 * 3 - 1


def test_reshards_of_different_operands_are_different_rows():
    assert "dot_general operand *" not in str(layers_plan())


def test_repr_is_one_line():
    text = repr(layers_plan())
    assert re.fullmatch(
        r"<Plan of step: auto plan on mesh \S+, .* a step of v5e:4x4, .* a device>", text
    )


def test_a_notebook_shows_the_tables_as_text():
    html = layers_plan()._repr_html_()
    assert html.startswith("<pre")
    assert "layers[*][&#x27;up&#x27;] × " in html
