"""A patch edits what is plain Python, and lists everything else."""

from __future__ import annotations

import pytest

from autoshard.explain.annotation import Annotation
from autoshard.explain.annotation_patch import patch_text
from autoshard.explain.annotations import Annotations
from autoshard.explain.reproduced import Reproduced
from autoshard.sharding import Mesh

SAID = "jax.lax.with_sharding_constraint(h, jax.sharding.PartitionSpec('data'))"


def patch_of(*locations: str) -> str:
    lines = tuple(
        Annotation("tanh", location, "8x4xf32", (("data",), ()), 1, is_whole=True)
        for location in locations
    )
    mesh = Mesh.parse("data=4")
    nothing = Reproduced(
        planned_bytes=1.0,
        reproduced=1.0,
        missing=(),
        other=(),
        step_seconds=1.0,
        planned_seconds=1.0,
        lacking_bytes=0.0,
    )
    return patch_text(Annotations("step", mesh, lines, **vars(nothing)))


@pytest.mark.parametrize(
    "text",
    [
        "%load_ext x\nimport jax\nh = f(x)\n",
        "import jax\nh = f(x\nh = f(x)\n",
        "import jax\n\0\nh = f(x)\n",
        "import jax\n",
        "import jax\n\nf = jax.jit(lambda x: x @ x)\n",
        "import jax\n\nh = (f(x), g(x))\n",
        "import jax\nif f: pass\nelse: h = f(x)\n",
        "",
    ],
    ids=["a notebook", "syntax", "a null byte", "short", "a function", "a tuple", "else", "empty"],
)
def test_a_file_that_cannot_be_edited_does_not_lose_the_others(tmp_path, text):
    (tmp_path / "other.py").write_text(text)
    (tmp_path / "model.py").write_text("import jax\nh = f(x)\n")
    found = patch_of(f"{tmp_path}/other.py:3", f"{tmp_path}/model.py:2")
    diff, _, by_hand = found.partition("# by hand:\n")
    assert f"+h = {SAID}" in diff
    assert "other.py" not in diff
    assert by_hand == f"#   {tmp_path}/other.py:3: tanh 8x4xf32 as P('data')\n"


def test_text_of_no_encoding_and_places_without_a_line_are_listed(tmp_path):
    (tmp_path / "latin.py").write_bytes(b"import jax\nh = '\xe9'\n")
    places = (f"{tmp_path}/latin.py:2", f"{tmp_path}/missing.py:2", "")
    assert patch_of(*places).splitlines()[1:] == [
        f"#   {place}: tanh 8x4xf32 as P('data')" for place in ("", *places[:2])
    ]


def test_a_last_line_that_does_not_end_is_ended(tmp_path):
    path = tmp_path / "model.py"
    path.write_text("import jax\nh = f(x)")
    assert patch_of(f"{path}:2").splitlines()[3:] == [
        " import jax",
        "-h = f(x)",
        "\\ No newline at end of file",
        "+h = f(x)",
        f"+h = {SAID}",
    ]


def test_an_added_line_is_indented_and_ends_as_the_one_before_it(tmp_path):
    path = tmp_path / "model.py"
    path.write_bytes(b"import jax\r\ndef f(x):\r\n\th = g(x)\r\n\treturn h\r\n")
    assert f"\n+\th = {SAID}\r\n \treturn h\r\n" in patch_of(f"{path}:3")
