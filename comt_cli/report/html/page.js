"use strict";
// What every page does: headings sort, and links into closed parts open them.

for (const table of document.querySelectorAll("table")) makeSortable(table);

// Each heading becomes a button: ascending, descending, and back to the order that the table was written in.
function makeSortable(table) {
  const [body] = table.tBodies;
  if (!table.tHead || !body || body.rows.length < 2) return;
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

function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", openTarget);
openTarget();
