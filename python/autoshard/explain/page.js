"use strict";
// Without this script the page shows everything; the search and the choice of a tensor need it.
const search = document.getElementById("search");
const found = document.getElementById("found");
const named = Array.from(document.querySelectorAll("[data-name]"));
const bars = Array.from(document.querySelectorAll(".run"));
const opened = new Set();

function show(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  for (const folded of opened) folded.open = false;
  opened.clear();
  let hits = 0;
  for (const row of named) {
    const name = row.dataset.name.toLowerCase();
    const hit = words.every((word) => name.includes(word));
    row.hidden = !hit;
    if (!hit || !words.length) continue;
    hits += 1;
    for (let outer = row.parentElement; outer; outer = outer.parentElement) {
      if (outer.tagName === "DETAILS" && !outer.open) {
        outer.open = true;
        opened.add(outer);
      }
    }
  }
  for (const folded of document.querySelectorAll("#program details")) {
    folded.hidden = words.length > 0 && !folded.querySelector("[data-name]:not([hidden])");
  }
  for (const bar of bars) {
    const name = bar.textContent.toLowerCase();
    bar.classList.toggle("dim", !words.every((word) => name.includes(word)));
  }
  found.textContent = words.length ? hits + " found" : "";
}

let waiting = 0;
search.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => show(search.value), 120);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|SELECT)$/.test(document.activeElement.tagName)) {
    event.preventDefault();
    search.focus();
  }
  if (event.key === "Escape" && document.activeElement === search) {
    search.value = "";
    show("");
  }
});

// Of each timeline one bar can be reached by Tab; arrows go on from there.
for (const timeline of document.querySelectorAll(".timeline")) {
  const lanes = Array.from(timeline.querySelectorAll("g[role]"), (lane) =>
    Array.from(lane.querySelectorAll(".run")));
  const said = timeline.parentElement.querySelector(".said");
  const center = (bar) => bar.x.baseVal.value + bar.width.baseVal.value / 2;
  let current = lanes[0][0];
  current.setAttribute("tabindex", 0);

  function nearest(lane, from) {
    const apart = (bar) => Math.abs(center(bar) - center(from));
    return lane.reduce((best, bar) => (apart(bar) < apart(best) ? bar : best));
  }

  function take(bar) {
    current.setAttribute("tabindex", -1);
    current = bar;
    current.setAttribute("tabindex", 0);
    said.textContent = current.textContent;
  }

  timeline.addEventListener("focusin", (event) => take(event.target));
  timeline.addEventListener("pointerover", (event) => {
    if (event.target.matches(".run")) said.textContent = event.target.textContent;
  });
  timeline.addEventListener("keydown", (event) => {
    const row = lanes.findIndex((lane) => lane.includes(current));
    const lane = lanes[row];
    const at = lane.indexOf(current);
    const other = lanes[row + { ArrowUp: -1, ArrowDown: 1 }[event.key]];
    const next = {
      ArrowLeft: lane[at - 1],
      ArrowRight: lane[at + 1],
      ArrowUp: other && nearest(other, current),
      ArrowDown: other && nearest(other, current),
      Home: lane[0],
      End: lane[lane.length - 1],
    }[event.key];
    if (!next) return;
    event.preventDefault();
    take(next);  // a window without focus tells of it later
    next.focus();
  });
}

const blocks = JSON.parse(document.getElementById("blocks").textContent);
const tensor = document.getElementById("tensor");
function place() {
  const held = blocks[tensor.value];
  const all = Array.from(new Set(held));
  document.querySelectorAll("[data-device]").forEach((cell) => {
    const block = held[cell.dataset.device];
    cell.textContent = block;
    cell.style.setProperty("--hue", (all.indexOf(block) * 360) / all.length);
  });
  document.getElementById("blocks-say").textContent =
    all.length + (all.length === 1 ? " block, whole on every device" : " different blocks");
}
if (tensor) {
  tensor.addEventListener("change", place);
  place();
}
