"""An explanation says the same on a terminal, in a notebook and in Markdown."""

from __future__ import annotations

from explained_plans import layers_plan


def test_every_face_has_the_headline():
    found = layers_plan().explain()
    for text in (str(found), found._repr_html_()):
        assert "bottleneck: " in text
        assert "By function" in text
    assert "- bottleneck: " in found.to_markdown()


def test_markdown_has_tables_of_as_many_cells_as_columns():
    lines = layers_plan().explain().to_markdown().splitlines()
    assert lines[0].startswith("### step on mesh ")
    start = lines.index("**By phase**") + 2
    table = lines[start : lines.index("", start)]
    assert {line.count("|") for line in table} == {10}
    assert [line.split()[1] for line in table[2:]] == ["forward", "backward", "update"]


def test_markdown_shows_names_as_they_are():
    """A ``*`` of a folded name is no emphasis."""
    text = layers_plan().explain().to_markdown()
    assert "explained\\_plans.py" in text
    assert "layers[*]" not in text


def test_a_frontier_is_in_every_face_where_it_was_asked_for():
    said = "that no other beats in time and memory"
    found = layers_plan().explain(frontier=True)
    faces = (str(found), found._repr_html_(), found.to_markdown(), found.to_html())
    assert all(said in face for face in faces)
    assert said not in layers_plan().explain().to_html()
