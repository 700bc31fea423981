"use strict";
// How a table is sorted: no page needed, so that it can be tested by itself.

const BEGINS_WITH_NUMBER = /^[<>~]?\s*([+\-\u2212]?(?:\d[\d,]*)?\.?\d+(?:e[+-]?\d+)?)(?=$|[\s%x\/\[(])/i;
const COLLATOR = new Intl.Collator("en", { numeric: true });

// The number that a cell begins with ("+229 [+163, +310]", "4,018", "<1 %"), or null.
function numberOf(text) {
  const found = BEGINS_WITH_NUMBER.exec(text.trim());
  return found ? Number(found[1].replace(/,/g, "").replace("\u2212", "-")) : null;
}

// The order of a column's cells, as a list of their positions. A column whose cells all begin with numbers is sorted by
// these, another by its words; empty cells ("-") come last both ways; equal ones stay in their order.
function orderOf(texts, descending) {
  const isEmpty = (text) => ["", "-"].includes(text.trim());
  const numeric = texts.every((text) => isEmpty(text) || numberOf(text) !== null);
  const compare = numeric ? (a, b) => numberOf(a) - numberOf(b) : (a, b) => COLLATOR.compare(a.trim(), b.trim());
  return texts
    .map((_, position) => position)
    .sort((i, j) => {
      const empty = isEmpty(texts[i]) - isEmpty(texts[j]);
      return empty || (descending ? -1 : 1) * compare(texts[i], texts[j]) || i - j;
    });
}
