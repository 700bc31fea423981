"use strict";
// What a page does: headings sort, links open what they lead to, and the contents can be searched and hidden.

document.documentElement.classList.add("js");
const search = document.getElementById("comt-search"), found = document.getElementById("comt-found");
const tree = document.getElementById("comt-tree"), menu = document.getElementById("comt-menu");

// Each heading becomes a button when a table is first seen: ascending, descending, and back to the written order.
function makeSortable(table) {
  const [body] = table.tBodies;
  if (!table.tHead || !body || body.rows.length < 2 || table.querySelector("thead button")) return;
  const written = [...body.rows];
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const next = { ascending: "descending", descending: null }[heading.getAttribute("aria-sort") ?? ""];
      const direction = next === undefined ? "ascending" : next;
      for (const other of headings) other.removeAttribute("aria-sort");
      if (direction) heading.setAttribute("aria-sort", direction);
      const texts = written.map((row) => row.cells[column].textContent);
      const order = direction ? orderOf(texts, direction === "descending") : written.keys();
      body.append(...[...order].map((position) => written[position]));
    });
  });
}
for (const table of document.querySelectorAll("table")) makeSortable(table);

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

function show(isOpen) {
  document.body.classList.toggle("open", isOpen);
  menu.setAttribute("aria-expanded", String(isOpen));
}
menu.addEventListener("click", () => show(menu.getAttribute("aria-expanded") === "false"));

// Every part with its rows, lower case, made when somebody first searches.
let index = null;
function makeIndex() {
  const textOf = (element) => element.textContent.replace(/\s+/g, " ").trim().toLowerCase();
  return [...document.querySelectorAll(".part")].map((part) => ({
    part, title: textOf(part.querySelector("summary")),
    rows: [...part.querySelectorAll("tbody tr")].map((row) => ({ row, text: textOf(row) })),
  }));
}

function entry(text, className, go) {
  const link = document.createElement("a");
  link.href = "#";
  link.className = className;
  link.textContent = text;
  link.addEventListener("click", (event) => {
    event.preventDefault();
    go();
  });
  return link;
}

function look() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  tree.hidden = words.length > 0;
  found.hidden = !tree.hidden;
  if (!words.length) return;
  index ??= makeIndex();
  const lists = { titles: [], rows: [] };
  for (const { part, title, rows } of index) {
    const isTitle = words.every((word) => title.includes(word)), name = part.querySelector("h3").textContent;
    const group = part.closest(".group").querySelector("h2").textContent;
    const hits = rows.filter(({ text }) => words.every((word) => text.includes(word) || title.includes(word)));
    const list = isTitle ? lists.titles : lists.rows;
    if (isTitle || hits.length) list.push(entry(`${name} (${group})`, "", () => (location.hash = encodeURIComponent(part.id))));
    const shown = isTitle ? [] : hits.slice(0, 3);
    list.push(...shown.map(({ row }) => {
      const cells = [...row.cells].slice(0, 5).map((cell) => cell.textContent.trim());
      return entry(cells.join(" · "), "hit", () => reveal(row, true));
    }));
  }
  const every = [...lists.titles, ...lists.rows];
  const count = document.createElement("p");
  count.textContent = every.length > 80 ? "More than 80 places; another word narrows them." : `${every.length} places`;
  found.replaceChildren(count, ...every.slice(0, 80));
}
search.addEventListener("input", look);
search.addEventListener("keydown", (event) => {
  if (event.key === "Escape") search.value = "";
  if (event.key === "Enter") found.querySelector("a")?.click();
  look();
});
