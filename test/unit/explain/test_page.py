"""The page is one valid file by itself, of everything in the record, and small."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from explained_plans import layers_plan
from small_record import FRAMES, RECORD, op

from autoshard.explain.page import page_html
from autoshard.explain.page_mesh import blocks_held, mesh_panels
from autoshard.explain.page_tree import call_tree
from autoshard.explain.record import MemoryPoint, RecordedValue
from autoshard.sharding import Mesh

_VOID = {"meta", "input", "line", "rect", "polygon"}


class Nesting(HTMLParser):
    """Raises where an element is closed that is not the innermost one."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found[name] for name in ("href", "src") if name in found]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert tag in _VOID or self.open.pop() == tag, tag


def nesting_of(html: str) -> Nesting:
    found = Nesting()
    found.feed(html)
    return found


def test_elements_are_nested_and_ids_are_unique():
    found = nesting_of(page_html(layers_plan().record))
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))


def test_all_links_are_within_the_page():
    found = nesting_of(page_html(layers_plan().record))
    assert {link[1:] for link in found.links} <= set(found.ids)
    assert "http" not in page_html(layers_plan().record)


def test_every_row_of_the_record_can_be_found_by_its_name():
    record = layers_plan().record
    html = page_html(record)
    rows = len(record.ops) + len(record.arguments) + len(record.results)
    assert html.count("<tr data-name=") >= rows + len(record.collectives)
    assert "layers[*][&#x27;up&#x27;]" in html


def test_names_of_the_user_are_no_markup():
    bad = replace(
        RECORD, name="<b>", arguments=(RecordedValue("</script><i>", "f", "", 1, 1, False),)
    )
    html = page_html(bad)
    assert "<b>" not in html
    assert "<i>" not in html


def test_a_program_of_60000_ops_is_below_five_megabytes():
    """Unlike any model, hardly anything of it folds: 3,000 different ops of 20 layers each."""
    rows = [
        op(f"blocks/*/part_{number}/dot_general@mlp.py:41", "forward", 2, 1e-3, "HBM")
        for number in range(3000)
    ]
    points = tuple(
        MemoryPoint(at, "dot_general", "/a/mlp.py:41", "forward", at) for at in range(240)
    )
    record = replace(RECORD, ops=tuple(replace(row, count=20) for row in rows), memory=points)
    assert len(page_html(record)) < 5e6


def test_calls_that_do_nothing_else_are_one_node():
    (mlp, adam) = call_tree(RECORD)
    assert mlp.label == "mlp (mlp.py:41) › Dense.call (linear.py:7)"
    assert (mlp.seconds, mlp.count) == (7.0, 4)
    assert adam.label == "adam (adam.py:3)"


def test_ops_without_a_location_are_a_node_of_their_own():
    lost = replace(RECORD.ops[0], frame=-1)
    nodes = call_tree(replace(RECORD, ops=(*RECORD.ops, lost), frames=FRAMES))
    assert [node.count for node in nodes] == [6, 2]
    assert nodes[1].label == ""


def test_devices_hold_the_blocks_of_their_coordinates():
    held = blocks_held(["[{a}, {b}]", "[{b, a}]", "[{}]"], Mesh.parse("a=2,b=2"))
    assert held["[{a}, {b}]"] == ["0,0", "0,1", "1,0", "1,1"]
    assert held["[{b, a}]"] == ["0", "2", "1", "3"]
    assert held["[{}]"] == ["0"] * 4


def test_devices_stand_as_they_are_wired():
    """v5p:4x4x4 has four panels, one for each x, of y rows and z columns."""
    summary = replace(layers_plan().record.summary, cluster="v5p:4x4x4", mesh="a=64")
    html = mesh_panels(replace(RECORD, mesh="a=64", summary=summary))
    assert re.findall(r"<caption>(.*?)</caption>", html) == ["x = 0", "x = 1", "x = 2", "x = 3"]
    assert html.count("<tr>") == 16
    assert re.findall(r"<tr><td data-device=\"(\d+)\"", html)[:5] == ["0", "4", "8", "12", "16"]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium, Debian's package")
def test_a_browser_searches_and_shows_blocks(tmp_path):
    typed = (
        "<script>search.value = 'up'; search.dispatchEvent(new Event('input'));"
        "const all = document.querySelectorAll('[data-name]');"
        "setTimeout(() => { document.title = JSON.stringify([found.textContent,"
        " Array.from(all).filter((row) => !row.hidden).map((row) => row.dataset.name),"
        " document.getElementById('blocks-say').textContent]); }, 400);</script></body>"
    )
    page = tmp_path / "plan.html"
    page.write_text(page_html(layers_plan().record).replace("</body>", typed))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    done = subprocess.run(
        [*command, "--virtual-time-budget=2000", f"--user-data-dir={tmp_path}", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (title,) = re.findall(r"<title>(\[.*?)</title>", done.stdout)
    said, names, blocks = json.loads(title)
    assert said == f"{len(names)} found"
    assert names
    assert all("up" in name.lower() for name in names)
    assert re.fullmatch(r"(2|4|8|16) different blocks", blocks)
