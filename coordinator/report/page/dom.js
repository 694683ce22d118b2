// Building the page's elements. Text always goes in as text, never as markup,
// so nothing that a run's files contain can become part of the page's code.

const kSvgNamespace = "http://www.w3.org/2000/svg";

function append(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    element.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

function el(tag, attributes, ...children) {
  return append(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return append(document.createElementNS(kSvgNamespace, tag), attributes, children);
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// entries: [{label, color}], colours by the names of style.css.
function legend(entries) {
  return el("ul", {class: "legend"}, entries.map((entry) => el("li", {},
      el("span", {class: "swatch", style: `background: var(--${entry.color})`}),
      entry.label)));
}

// columns: [{title, number}]; rows: {cells, className}.
function table(caption, columns, rows) {
  const classOf = (column) => column.number ? {class: "number"} : {};
  return el("div", {class: "scroll"}, el("table", {"aria-label": caption},
      el("thead", {}, el("tr", {}, columns.map(
          (column) => el("th", {scope: "col", ...classOf(column)}, column.title)))),
      el("tbody", {}, rows.map((row) => el("tr", row.className ? {class: row.className} : {},
          row.cells.map((cell, i) => el("td", classOf(columns[i]), cell)))))));
}

// What stands in a section whose files could not be read.
function missingNotice(data, keys) {
  return data.missing.filter((item) => keys.includes(item.key)).map(
      (item) => el("p", {class: "missing"},
          `Nothing to show from ${item.file}: ${item.reason}`));
}

function showTooltip(text, x, y) {
  const tooltip = document.getElementById("tooltip");
  tooltip.textContent = text;
  tooltip.hidden = false;
  const box = tooltip.getBoundingClientRect();
  const left = x + 14 + box.width > innerWidth ? x - 14 - box.width : x + 14;
  const top = y + 14 + box.height > innerHeight ? y - 14 - box.height : y + 14;
  tooltip.style.left = `${Math.max(4, left)}px`;
  tooltip.style.top = `${Math.max(4, top)}px`;
}

function hideTooltip() {
  document.getElementById("tooltip").hidden = true;
}
