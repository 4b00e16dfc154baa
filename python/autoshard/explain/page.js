"use strict";
// Without this script the page shows everything; the search and the choice of a tensor need it.
const search = document.getElementById("search");
const found = document.getElementById("found");
const named = Array.from(document.querySelectorAll("[data-name]"));
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
