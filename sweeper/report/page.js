"use strict";
(() => {
  const { charts, palettes } = JSON.parse(document.getElementById("figures").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const boxes = [...document.querySelectorAll("[data-chart]")];

  // Colours are given by name, so that one figure serves both schemes and paper.
  const painted = (value, palette, key) => {
    if (Array.isArray(value)) return value.map((part) => painted(part, palette, key));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, painted(v, palette, k)]));
    }
    return /color$/.test(key) && value in palette ? palette[value] : value;
  };
  const draw = (box, scheme) => {
    const { data, layout } = painted(charts[box.dataset.chart], palettes[scheme || (dark.matches ? "dark" : "light")]);
    Plotly.react(box, data, layout, { displayModeBar: false, responsive: true, showTips: false });
  };
  const drawAll = (scheme) => boxes.forEach((box) => draw(box, scheme));
  // One at a time, so that the page can be read and scrolled meanwhile.
  boxes.forEach((box) => setTimeout(() => draw(box)));
  dark.addEventListener("change", () => drawAll());
  addEventListener("beforeprint", () => drawAll("light"));
  addEventListener("afterprint", () => drawAll());

  const key = (row, column) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
  };
  const compare = (a, b) => {
    if (typeof a === typeof b) return typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
    return typeof a === "number" ? -1 : 1;
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const body = table.tBodies[0];
      const keyed = [...body.rows].map((row) => [key(row, column), row]);
      // Absent values stay last in either order.
      const absent = (value) => value === "–";
      keyed.sort(([a], [b]) => absent(a) - absent(b) || (down ? compare(b, a) : compare(a, b)));
      body.append(...keyed.map(([, row]) => row));
    }));
  }
  for (const filter of document.querySelectorAll(".filter")) {
    const rows = [...document.getElementById(filter.dataset.table).tBodies[0].rows];
    const texts = rows.map((row) => row.textContent.toLowerCase());
    const count = filter.querySelector("output");
    filter.hidden = false;
    filter.querySelector("input").addEventListener("input", (event) => {
      const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      rows.forEach((row, i) => {
        row.hidden = !words.every((word) => texts[i].includes(word));
        shown += !row.hidden;
      });
      count.textContent = `${shown} of ${rows.length} trials`;
    });
  }
})();
