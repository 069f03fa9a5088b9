// The convolution study: filters, figures and the table of all rows.

const RECORD = DATA.record;
const TIMES = { total_us: "Total", host_us: "Host", device_us: "Device" };
const PADDINGS = {
  all: ["All", () => true],
  same: ["Keeps the size", (cell) => cell.same],
  one: ["1", (cell) => cell.shape[2] === 1],
};
const timed = (cell, label) => cell.rows.find((r) => r.label === label && r.total_us !== undefined);
const known = (value) => value !== undefined && value !== null;
const shapeOf = (cell) => `${cell.shape[0]}², filter ${cell.shape[1]}, padding ${cell.shape[2]}`;
const sizeText = (bytes) => (known(bytes) ? bytesText(bytes) : "–");
const firstText = (s) => (known(s) ? timeText(s * 1e6) : "–");

// An entrant keeps its colour and sign under every filter.
function look(label) {
  const i = DATA.labels.indexOf(label),
    shades = SHADES[isDark() ? "dark" : "light"];
  return { color: shades[i % shades.length], symbol: SIGNS[i % SIGNS.length] };
}

function middle(values) {
  const ordered = values.filter(known).sort((a, b) => a - b),
    half = Math.floor(ordered.length / 2);
  if (!ordered.length) return null;
  return ordered.length % 2 ? ordered[half] : (ordered[half - 1] + ordered[half]) / 2;
}

// One trace for each entrant, a point for each shape that has the value.
function byShape(cells, value, { text, interval } = {}) {
  return DATA.labels.map((label, nth) => {
    const { color, symbol } = look(label);
    const aside = (0.6 * (nth + 0.5)) / DATA.labels.length - 0.3; // beside each other, so that none hides another
    const points = cells
      .map((cell, i) => ({ cell, x: i + aside, row: timed(cell, label) }))
      .filter((p) => p.row && known(value(p.row)));
    const bars = interval && {
      type: "data",
      symmetric: false,
      array: points.map((p) => interval(p.row)[2] - interval(p.row)[0]),
      arrayminus: points.map((p) => interval(p.row)[0] - interval(p.row)[1]),
      color,
      thickness: 1.2,
      width: 3,
    };
    return {
      type: "scatter",
      mode: "markers",
      name: label,
      x: points.map((p) => p.x),
      y: points.map((p) => value(p.row)),
      error_y: bars || undefined,
      text: points.map((p) => escaped(`${label}, ${shapeOf(p.cell)}: ${text(p.row)}`)),
      hoverinfo: "text",
      marker: { color, symbol, size: 9, line: { width: 0.7, color: css("--paper") } },
    };
  });
}
function shapesLayout(cells, title, values, tick, more = {}) {
  return layout({
    height: 480,
    margin: { l: 70, r: 12, t: 12, b: 130 },
    xaxis: axis("", {
      range: [-0.5, cells.length - 0.5],
      tickvals: cells.map((_, i) => i),
      ticktext: cells.map(shapeOf),
      tickangle: -45,
      showgrid: false,
    }),
    yaxis: values.length ? log(title, values, tick) : axis(title),
    ...more,
  });
}
const all = (cells, value) =>
  cells.flatMap((cell) =>
    cell.rows
      .filter((r) => r.total_us !== undefined)
      .map(value)
      .filter(known),
  );
const tableOf = (cells, value) => ({
  columns: [col("Shape"), ...DATA.labels.map(num)],
  rows: cells.map((cell) => [
    shapeOf(cell),
    ...DATA.labels.map((label) => {
      const row = timed(cell, label);
      return row ? value(row) : "–";
    }),
  ]),
});

const FIGURES = {
  ratio({ cells }) {
    const values = cells.flatMap((c) => c.rows.flatMap((r) => r.ratio || []));
    const band = (cell, i) => ({
      type: "rect",
      x0: i - 0.5,
      x1: i + 0.5,
      y0: 1 / (1 + cell.margin),
      y1: 1 + cell.margin,
      fillcolor: css("--grid"),
      line: { width: 0 },
      layer: "below",
    });
    return {
      words: "Times as fast as im2col, for each shape and entrant.",
      traces: byShape(cells, (r) => r.ratio[0], { text: (r) => `${intervalText(r.ratio)} ×`, interval: (r) => r.ratio }),
      layout: shapesLayout(cells, "times as fast as im2col", values, plain, { shapes: cells.map(band) }),
      ...tableOf(cells, (r) => intervalText(r.ratio)),
    };
  },
  time({ cells, what }) {
    const value = (r) => r[what];
    return {
      words: `${TIMES[what]} time of a call, for each shape and entrant.`,
      traces: byShape(cells, value, { text: (r) => timeText(value(r)) }),
      layout: shapesLayout(cells, `${TIMES[what].toLowerCase()} time`, all(cells, value), timeTick),
      ...tableOf(cells, (r) => timeText(value(r))),
    };
  },
  first({ cells }) {
    const of = (label, state) => middle(cells.map((c) => timed(c, label)?.[`${state}_s`]));
    const found = DATA.labels.filter((label) => known(of(label, "cold")));
    const values = found.flatMap((label) => ["cold", "warm"].map((state) => of(label, state)).filter(known));
    const trace = (state, name, symbol) => ({
      type: "scatter",
      mode: "markers",
      name,
      y: found,
      x: found.map((label) => (known(of(label, state)) ? of(label, state) * 1e6 : null)),
      text: found.map((label) => escaped(`${label}, ${name}: ${firstText(of(label, state))}`)),
      hoverinfo: "text",
      marker: { symbol, size: 11, color: found.map((label) => look(label).color), line: { width: 1.2 } },
    });
    return {
      words: "Time of an entrant's first call on a shape, with empty and with warm disk caches.",
      traces: [trace("cold", "empty caches", "circle"), trace("warm", "warm disk cache", "circle-open")],
      layout: layout({
        height: 90 + 44 * Math.max(found.length, 2),
        margin: { l: 130, r: 12, t: 12, b: 48 },
        xaxis: values.length ? log("first call on a shape", values.map((s) => s * 1e6), timeTick) : axis("first call"),
        yaxis: axis("", { type: "category", autorange: "reversed" }),
      }),
      columns: [col("Entrant"), num("Empty caches"), num("Warm disk cache")],
      rows: found.map((label) => [label, firstText(of(label, "cold")), firstText(of(label, "warm"))]),
    };
  },
  memory({ cells }) {
    const value = (r) => r.memory_bytes;
    return {
      words: "The most memory of a call besides its arguments, for each shape and entrant.",
      traces: byShape(cells, value, { text: (r) => sizeText(value(r)) }),
      layout: shapesLayout(cells, "bytes", all(cells, value), bytesText),
      ...tableOf(cells, (r) => sizeText(value(r))),
    };
  },
  error({ cells }) {
    const value = (r) => r.error;
    return {
      words: "Relative error against float64, for each shape and entrant.",
      traces: byShape(cells, value, { text: (r) => `${errorText(value(r))}, ${r.precision}` }),
      layout: shapesLayout(cells, "relative error", all(cells, value), errorText),
      ...tableOf(cells, (r) => `${errorText(value(r))} ${r.precision}`),
    };
  },
};

// A figure's frame: the plot, and its data as a table for screen readers and copying.
function frame(name) {
  const plot = make("div", { class: "plot", id: `plot-${name}`, role: "img" });
  const behind = make(
    "details",
    { id: `table-${name}` },
    make("summary", {}, "The same data as a table"),
    make("div", { class: "wide", tabindex: 0, role: "group", "aria-label": "Table" }),
  );
  $(name).append(make("figure", {}, plot, behind));
}

function draw(name, state) {
  const found = FIGURES[name](state);
  Plotly.react($(`plot-${name}`), found.traces, found.layout, CONFIG);
  $(`plot-${name}`).setAttribute("aria-label", `${found.words} The table below has the same data.`);
  $(`table-${name}`)
    .querySelector(".wide")
    .replaceChildren(
      table(
        found.words,
        found.columns,
        found.rows.map((cells) => ({ cells })),
      ),
    );
}

function everything(cells) {
  const columns = [
    col("Shape"),
    col("Entrant"),
    num("Times as fast as im2col"),
    num("Total"),
    num("Host"),
    num("Device"),
    num("First call, cold"),
    num("Warm disk cache"),
    num("Memory"),
    num("Error"),
    col("Class"),
    { name: "Remarks", class: "remarks" },
  ];
  const rows = cells.flatMap((cell) =>
    cell.rows.map((r) => ({
      class: cell.first === r.label ? "total" : null,
      cells: [
        shapeOf(cell),
        r.label,
        intervalText(r.ratio),
        timeText(r.total_us),
        timeText(r.host_us),
        timeText(r.device_us),
        firstText(r.cold_s),
        firstText(r.warm_s),
        sizeText(r.memory_bytes),
        errorText(r.error),
        r.precision || "–",
        [r.kernel && `ran ${r.kernel}`, r.reason, ...Object.values(r.unseen || {})].filter(Boolean).join("; "),
      ],
    })),
  );
  $("rows-table").replaceChildren(table("The fastest strict entrant of each shape is bold", columns, rows));
}

function render() {
  const [, shown] = PADDINGS[$("padding").value];
  const cells = RECORD.cells.filter(shown);
  $("count").textContent = `${cells.length} of ${plural(RECORD.cells.length, "shape")}`;
  for (const name of Object.keys(FIGURES)) draw(name, { cells, what: $("what").value });
  everything(cells);
}

function mark() {
  $("theme").textContent = isDark() ? "Light" : "Dark";
  $("theme").setAttribute("aria-label", isDark() ? "Show in light colours" : "Show in dark colours");
  $("theme").setAttribute("aria-pressed", String(isDark()));
}
function options(id, entries) {
  $(id).replaceChildren(...entries.map(([value, text]) => make("option", { value }, text)));
}

options(
  "padding",
  Object.entries(PADDINGS).map(([key, [text]]) => [key, text]),
);
options("what", Object.entries(TIMES));
$("summary").replaceChildren(...DATA.sentences.map((text) => make("li", {}, text)));
$("facts").textContent = DATA.facts;
$("absent").hidden = !DATA.absent.length;
$("absent-table").replaceChildren(
  table(
    "Why",
    [col("Entrant"), col("Reason")],
    DATA.absent.map((cells) => ({ cells })),
  ),
);
Object.keys(FIGURES).forEach(frame);
mark();
render();
$("filters").addEventListener("change", render);
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  mark();
  render();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  mark();
  render();
});
document.documentElement.dataset.ready = "yes";
