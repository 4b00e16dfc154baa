"""The page is one valid file by itself, of everything in the record, and small."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from explain.programs import once
from explained_plans import layers_plan
from small_record import FRAMES, RECORD, op

from autoshard.explain.page import page_html
from autoshard.explain.page_frontier import frontier_svg
from autoshard.explain.page_mesh import blocks_held, mesh_panels
from autoshard.explain.page_timeline import timeline_svg
from autoshard.explain.page_tree import call_tree
from autoshard.explain.record import MemoryPoint, RecordedValue
from autoshard.explain.timeline import PARTS, Timeline, TimelineBar, TimelineRepeat
from autoshard.sharding import Mesh
from autoshard.verify.schedule.schedule import Stream

_VOID = {"meta", "input", "line", "polygon"}


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
    bar = replace(bars(1)[0], name="<b>", location="<b>", phase="<b>")
    bad = replace(
        RECORD,
        name="<b>",
        arguments=(RecordedValue("</script><i>", "f", "", 1, 1, False),),
        timeline=Timeline((bar,)),
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


def svg_of(html: str, title: str) -> str:
    """The picture of a section."""
    (found,) = re.findall(rf"<h2>{re.escape(title)}</h2>\n(<svg.*?</svg>)", html, re.DOTALL)
    return found


def bars(count: int) -> tuple[TimelineBar, ...]:
    """So many bars of a step of a second, one behind the other."""
    name = "model/layers/0/self_attention/query_projection/dot_general@transformer_block.py:1041"
    return tuple(
        TimelineBar((lane,), name, "/a/b.py:1", "forward", at / count, 1 / count, 0.0, 1, 1, -1)
        for at in range(count)
        for lane in (Stream.COMPUTE.value, Stream.TORUS.value)
    )


def test_a_bar_says_name_line_and_seconds():
    svg = svg_of(page_html(layers_plan().record), "Timeline (modelled)")
    titles = re.findall(r'<rect class="run[^>]*><title>(.*?)</title>', svg)
    assert len(titles) == sum(len(bar.lanes) for bar in layers_plan().record.timeline.bars)
    said = [title for title in titles if title.startswith("dot_general@explained_plans.py:")]
    assert said
    for title in said:
        assert re.search(r": [\d.]+ [un]s, [\d.]+% of the step", title)
    assert '<g role="group" aria-label="compute: ' in svg


def test_a_timeline_is_not_larger_than_a_few_hundred_kilobytes():
    """The most bars that a record has, a 1,000th of the step each."""
    assert len(timeline_svg(Timeline(bars(PARTS), ()), 1.0)) < 700e3


def test_layers_that_are_alike_have_a_bracket_with_their_count():
    inside = [replace(bar, repeat=0) for bar in bars(4)]
    repeat = TimelineRepeat(0.0, 1.0, 32, False, 0)
    svg = timeline_svg(Timeline(tuple(inside), (repeat,)), 1.0)
    assert "× 32, 31.2 ms each: layers that are alike" in svg


@pytest.mark.parametrize(
    ("seconds", "marks"),
    [
        (1.0, ["0", "200 ms", "400 ms", "600 ms", "800 ms", "1 s"]),
        (0.0037, ["0", "500 us", "1 ms", "1.5 ms", "2 ms", "2.5 ms", "3 ms", "3.5 ms"]),
    ],
)
def test_marks_of_the_axis_are_round(seconds, marks):
    bar = replace(bars(1)[0], seconds=seconds)
    svg = timeline_svg(Timeline((bar,), ()), seconds)
    axis = re.findall(r'<line class="grid"[^>]*/><text[^>]*>([^<]*)<', svg.replace("\n", ""))
    assert axis == marks


def test_a_record_without_an_order_says_that_it_has_none():
    html = page_html(replace(layers_plan().record, timeline=Timeline()))
    assert "<h2>Timeline (modelled)</h2>\n<p>Nothing is known of it.</p>" in html


def test_what_is_not_drawn_is_said():
    record = layers_plan(overlap=0.5).record
    assert "of communication hide behind compute" in page_html(record)
    assert "of communication hide behind compute" not in page_html(layers_plan().record)


def test_the_frontier_has_a_point_for_each_plan_and_marks_the_one_that_was_asked():
    found = once("attention").frontier()
    svg = svg_of(page_html(once("attention").record, found), "Frontier")
    titles = re.findall(r'<circle class="point[^>]*><title>(.*?)</title>', svg)
    assert len(titles) == len(found.points)
    for title, point in zip(titles, found.points, strict=True):
        assert f"mem_coeff {point.mem_coeff:.3g}" in title
        assert title.endswith("the plan") == point.is_plan
    assert svg.count('<circle class="plan"') == 1


def test_a_frontier_of_one_plan_has_one_mark_each_way():
    found = once("attention").frontier()
    summary = once("attention").summary
    alone = replace(
        found.points[0],
        step_seconds=summary.step_seconds,
        peak_bytes=summary.peak_bytes_per_device,
    )
    svg = frontier_svg(replace(found, points=(alone,)), summary)
    assert svg.count('class="grid"') == 2
    assert nesting_of(svg).open == []


def test_a_frontier_is_shown_only_where_it_was_asked_for():
    assert "Frontier" not in page_html(layers_plan().record)


def run_in_browser(html: str, script: str, folder: Path) -> str:
    """What the script leaves as the title of the page."""
    page = folder / "plan.html"
    page.write_text(html.replace("</body>", f"<script>{script}</script></body>"))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    done = subprocess.run(
        [*command, "--virtual-time-budget=2000", f"--user-data-dir={folder}", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (title,) = re.findall(r"<title>(\[.*?)</title>", done.stdout)
    return title


needs_browser = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="needs chromium, Debian's package"
)


@needs_browser
def test_a_browser_searches_and_shows_blocks(tmp_path):
    title = run_in_browser(
        page_html(layers_plan().record),
        "search.value = 'up'; search.dispatchEvent(new Event('input'));"
        "const all = document.querySelectorAll('[data-name]');"
        "setTimeout(() => { document.title = JSON.stringify([found.textContent,"
        " Array.from(all).filter((row) => !row.hidden).map((row) => row.dataset.name),"
        " document.getElementById('blocks-say').textContent]); }, 400);",
        tmp_path,
    )
    said, names, blocks = json.loads(title)
    assert said == f"{len(names)} found"
    assert names
    assert all("up" in name.lower() for name in names)
    assert re.fullmatch(r"(2|4|8|16) different blocks", blocks)


@needs_browser
def test_arrow_keys_go_from_bar_to_bar_and_say_what_they_are(tmp_path):
    title = run_in_browser(
        page_html(layers_plan().record),
        """
        const said = document.querySelector(".said");
        const tabs = () => document.querySelectorAll('.timeline [tabindex="0"]').length;
        const heard = [tabs()];
        document.querySelector('.timeline [tabindex="0"]').focus();
        for (const key of ["ArrowRight", "ArrowDown", "ArrowUp", "End", "Home", "ArrowLeft"]) {
          const event = new KeyboardEvent("keydown", {key, bubbles: true});
          document.activeElement.dispatchEvent(event);
          const lane = document.activeElement.parentElement.getAttribute("aria-label");
          heard.push([lane.split(":")[0], document.activeElement.textContent, said.textContent]);
        }
        document.title = JSON.stringify([...heard, tabs()]);
        """,
        tmp_path,
    )
    first, *heard, last = json.loads(title)
    assert first == last == 1
    compute, links = Stream.COMPUTE.value, Stream.TORUS.value
    assert [lane for lane, *_ in heard] == [compute, links, compute, compute, compute, compute]
    for _, focused, said in heard:
        assert focused == said
    assert heard[4] == heard[5]
    assert len({said for _, _, said in heard}) >= 4


@needs_browser
def test_a_search_dims_bars_of_other_names(tmp_path):
    title = run_in_browser(
        page_html(layers_plan().record),
        "search.value = 'all-reduce'; show(search.value);"
        "document.title = JSON.stringify(Array.from(document.querySelectorAll('.run:not(.dim)'),"
        " (bar) => bar.textContent));",
        tmp_path,
    )
    names = json.loads(title)
    assert names
    assert all(name.startswith("all-reduce") for name in names)
