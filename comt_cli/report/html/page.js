"use strict";
// The page's behaviour: links open their target, and the contents can be searched and hidden.

document.documentElement.classList.add("js");
const [search, found, tree, menu] = ["search", "found", "tree", "menu"].map((id) => document.getElementById(`comt-${id}`));

function show(isOpen) {
  document.body.classList.toggle("open", isOpen);
  menu.setAttribute("aria-expanded", String(isOpen));
}
menu.addEventListener("click", () => show(menu.getAttribute("aria-expanded") === "false"));

// Open everything around an element and go there. A row that was searched for stays marked until the next one.
function reveal(target, isHit) {
  for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  for (const parts of target.querySelectorAll(":scope > .parts")) parts.open = true;
  document.querySelector("tr.hit")?.classList.remove("hit");
  target.classList.toggle("hit", Boolean(isHit));
  show(false);
  target.scrollIntoView({ block: isHit ? "center" : "start" });
}

function follow() {
  const id = decodeURIComponent(location.hash.slice(1)), target = document.getElementById(id);
  for (const link of tree.querySelectorAll("a")) {
    const isCurrent = decodeURIComponent(link.hash.slice(1)) === id;
    link.toggleAttribute("aria-current", isCurrent);
    if (isCurrent) link.closest("details")?.setAttribute("open", "");
  }
  if (target) reveal(target);
}
addEventListener("hashchange", follow);
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#']");
  if (link && link.hash === location.hash) follow(); // the address stays, so nothing else would happen
});
if (location.hash) follow();

function entry(text, className, target) {
  const link = document.createElement("a");
  Object.assign(link, { href: `#${encodeURIComponent(target.id)}`, className, textContent: text });
  if (className) link.addEventListener("click", (event) => (event.preventDefault(), reveal(target, true)));
  return link;
}

// Sections whose titles have all words, then those with such rows, at most three rows each.
function look() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean), byTitle = [], byRow = [];
  const has = (...elements) => words.every((word) => elements.some((each) => each.textContent.toLowerCase().includes(word)));
  tree.hidden = words.length > 0;
  found.hidden = !tree.hidden;
  if (!words.length) return;
  for (const part of document.querySelectorAll(".part")) {
    const title = part.querySelector("summary"), isTitle = has(title);
    const hits = isTitle ? [] : [...part.querySelectorAll("tbody tr")].filter((row) => has(row, title)).slice(0, 3);
    if (!isTitle && !hits.length) continue;
    const name = `${part.querySelector("h3").textContent} (${part.closest(".group").querySelector("h2").textContent})`;
    const texts = hits.map((row) => [...row.cells].slice(0, 5).map((cell) => cell.textContent.trim()).join(" · "));
    (isTitle ? byTitle : byRow).push(entry(name, "", part), ...hits.map((row, at) => entry(texts[at], "hit", row)));
  }
  const every = [...byTitle, ...byRow], count = document.createElement("p");
  count.textContent = every.length > 80 ? "More than 80 places; another word narrows them." : `${every.length} places`;
  found.replaceChildren(count, ...every.slice(0, 80));
}
search.addEventListener("input", look);
search.addEventListener("keydown", (event) => {
  if (event.key === "Escape") search.value = "";
  if (event.key === "Enter") found.querySelector("a")?.click();
  look();
});
