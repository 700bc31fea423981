"use strict";
// Learning curves, drawn as SVG when a reader reaches them: pointed at, they say their numbers.

const dark = matchMedia("(prefers-color-scheme: dark)");
const reached = new IntersectionObserver(
  (entries) => {
    for (const entry of entries.filter((entry) => entry.isIntersecting)) {
      reached.unobserve(entry.target);
      showCurves(entry.target);
    }
  },
  { rootMargin: "400px" },
);
for (const place of document.querySelectorAll(".curves")) reached.observe(place);

// The charts of one table: a choice of quantity and column, the curves of its rows, and a legend.
function showCurves(place) {
  const charts = JSON.parse(place.querySelector("script").textContent);
  const choice = element("select", { "aria-label": "Quantity and column" });
  for (const chart of charts) choice.add(new Option(`${chart.quantity}, ${chart.column}`));
  const field = element("div", { class: "field" });
  place.append(...(charts.length > 1 ? [choice] : []), field);
  const draw = () => drawChart(charts[Math.max(0, choice.selectedIndex)], field);
  choice.addEventListener("change", draw);
  dark.addEventListener("change", draw);
  let width = 0;
  new ResizeObserver(() => {
    if (width !== field.clientWidth) draw();
    width = field.clientWidth;
  }).observe(field);
  draw();
}

function drawChart(chart, field) {
  const legend = element("table", { class: "legend" });
  const heading = legend.createTHead().insertRow();
  heading.append(element("th", { scope: "col" }), element("th", { scope: "col", class: "n" }));
  const body = legend.createTBody();
  const hidden = new Set();
  let at = chart.steps.length - 1;
  let plot = null;

  const say = () => {
    heading.cells[1].textContent = `step ${chart.steps[at].toLocaleString("en")}`;
    chart.series.forEach((curve, index) => (body.rows[index].cells[1].textContent = textAt(curve, at)));
    plot.point(at);
  };
  const redraw = () => {
    const next = plotOf(chart, hidden, field.clientWidth, (index) => {
      at = index;
      say();
    });
    plot?.image.remove();
    plot = next;
    field.prepend(plot.image);
    say();
  };
  chart.series.forEach((curve, index) => {
    const button = element("button", { type: "button", "aria-pressed": "true" });
    const sample = shape("svg", { width: 28, height: 10, "aria-hidden": "true" });
    shape("path", { d: "M0 5H28", ...strokeOf(index, chart.series.length) }, sample);
    button.append(sample, curve.n > 1 ? `${curve.row} (${curve.n})` : curve.row);
    button.addEventListener("click", () => {
      hidden.delete(index) || hidden.add(index);
      button.setAttribute("aria-pressed", String(!hidden.has(index)));
      redraw();
    });
    const row = body.insertRow();
    row.append(element("th", { scope: "row" }), element("td", { class: "n" }));
    row.cells[0].append(button);
  });
  field.replaceChildren(legend);
  redraw();
}

function textAt(curve, at) {
  if (curve.mean[at] === null) return "-";
  return curve.low ? `${curve.mean[at]} (${curve.low[at]} to ${curve.high[at]})` : String(curve.mean[at]);
}

// The image of the curves that are not hidden; `onPoint` hears the position of the step that a reader points at.
function plotOf(chart, hidden, available, onPoint) {
  const width = Math.max(280, available), height = Math.min(420, Math.max(260, innerHeight / 2));
  const left = 56, right = width - 16, top = 10, bottom = height - 40;
  const curves = chart.series.map((curve, index) => ({ ...curve, index })).filter(({ index }) => !hidden.has(index));
  const values = curves.flatMap(({ mean, low, high }) => [...mean, ...(low ?? []), ...(high ?? [])]);
  const [x] = scaleOf(chart.steps, left, right, false);
  const [y, ticks, logarithmic] = scaleOf(values, bottom, top, true);
  const quantity = logarithmic ? `${chart.quantity} (logarithmic)` : chart.quantity;
  const image = shape("svg", {
    class: "plot", viewBox: `0 0 ${width} ${height}`, width, height, tabindex: 0, role: "img",
    "aria-label": `${quantity} against step, ${chart.column}. The arrow keys move from step to step.`,
  });
  for (const tick of ticks) {
    shape("path", { class: "grid", d: `M${left} ${y(tick)}H${right}` }, image);
    word(image, left - 6, y(tick) + 4, tick.toLocaleString("en", { maximumSignificantDigits: 4 }), "end");
  }
  const steps = [chart.steps[0], chart.steps.at(-1)];
  for (const tick of linearTicks(...steps, Math.max(2, Math.floor(width / 120)))) {
    shape("path", { class: "grid", d: `M${x(tick)} ${bottom}v4` }, image);
    word(image, x(tick), bottom + 18, tick.toLocaleString("en"), "middle");
  }
  word(image, (left + right) / 2, height - 4, "step", "middle");
  word(image, 14, (top + bottom) / 2, quantity, "middle", `rotate(-90 14 ${(top + bottom) / 2})`);
  const points = (numbers) => numbers.map((value, at) => value !== null && [x(chart.steps[at]), y(value)]).filter(Boolean);
  for (const { mean, low, high, index } of curves) {
    if (low) {
      const outline = [...points(high), ...points(low).reverse()];
      shape("path", { d: `M${outline.join("L")}Z`, fill: colour(index, chart.series.length, 0.14) }, image);
    }
    if (points(mean).length) {
      shape("path", { d: `M${points(mean).join("L")}`, ...strokeOf(index, chart.series.length) }, image);
    }
  }
  const mark = shape("path", { class: "pointer", d: `M0 ${top}V${bottom}` }, image);
  let now = chart.steps.length - 1;
  image.addEventListener("pointermove", (event) => {
    const place = ((event.clientX - image.getBoundingClientRect().left) * width) / image.getBoundingClientRect().width;
    const distances = chart.steps.map((step) => Math.abs(x(step) - place));
    onPoint(distances.indexOf(Math.min(...distances)));
  });
  image.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    onPoint(Math.min(chart.steps.length - 1, Math.max(0, now + move)));
  });
  const point = (at) => {
    now = at;
    mark.setAttribute("transform", `translate(${x(chart.steps[at])} 0)`);
  };
  return { image, point };
}

// From numbers (null: none) to places between `begin` and `end`, and ticks; logarithmic beyond a factor of ten if it may.
function scaleOf(values, begin, end, mayBeLogarithmic) {
  const there = values.filter((value) => value !== null);
  let low = Math.min(...there), high = Math.max(...there);
  if (!there.length) [low, high] = [0, 1];
  if (low === high) [low, high] = [low - 1, high + 1];
  const logarithmic = mayBeLogarithmic && low > 0 && high / low > 10;
  const of = logarithmic ? Math.log : (value) => value;
  const place = (value) => Number((begin + ((of(value) - of(low)) / (of(high) - of(low))) * (end - begin)).toFixed(1));
  return [place, logarithmic ? decades(low, high) : linearTicks(low, high, 8), logarithmic];
}

// Round numbers from `low` to `high`, some `count` of them.
function linearTicks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const width = power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
  const found = [];
  for (let n = Math.ceil(low / width); n * width <= high; n++) found.push(Number((n * width).toPrecision(12)));
  return found;
}

// 1, 2 and 5 times powers of ten from `low` to `high`.
function decades(low, high) {
  const found = [];
  for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10) {
    found.push(...[1, 2, 5].map((factor) => Number((factor * power).toPrecision(12))));
  }
  return found.filter((tick) => tick >= low && tick <= high);
}

function strokeOf(index, count) {
  const dashes = index % 2 ? { "stroke-dasharray": "6 3" } : {};
  return { fill: "none", stroke: colour(index, count), "stroke-width": 2, "stroke-linejoin": "round", ...dashes };
}

// Hues around the circle; neighbours also differ by their dashes. Light enough on dark, dark enough on light.
function colour(index, count, opacity = 1) {
  const hue = (210 + (360 * index) / count) % 360;
  return `hsl(${hue} ${dark.matches ? "75% 70%" : "80% 35%"} / ${opacity})`;
}

function element(name, attributes) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function shape(name, attributes, parent) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent?.append(made);
  return made;
}

function word(image, x, y, text, anchor, transform = "") {
  const made = shape("text", { x, y, "text-anchor": anchor, ...(transform && { transform }) }, image);
  made.textContent = text;
}
