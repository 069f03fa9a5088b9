// The data, the filters, and the formatting of values.

const DATA = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const FILTERS = ["device", "op", "dtype", "backend"];
const ALL = "";
const FAILED = new Set(["WRONG", "BELOW_FLOOR"]);

// Build an element; text is never parsed as markup.
function make(tag, attributes = {}, ...children) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) found.setAttribute(name, value === true ? "" : value);
  }
  found.append(...children.filter((c) => c !== null && c !== undefined));
  return found;
}

const plural = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
const unique = (values) => [...new Set(values)];
// A name that may break behind its underscores.
const breaking = (name) => name.split(/(?<=_)/).flatMap((part, i) => (i ? [make("wbr"), part] : [part]));

function ratioText(value) {
  if (value === undefined || value === null) return "–";
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}
function timeText(us) {
  if (us === undefined || us === null) return "–";
  if (us >= 1e6) return `${(us / 1e6).toPrecision(3)} s`;
  if (us >= 1e3) return `${(us / 1e3).toPrecision(us >= 1e5 ? 4 : 3)} ms`;
  return `${us >= 100 ? us.toFixed(0) : us.toFixed(us >= 10 ? 1 : 2)} µs`;
}
function scaled(value, units, step = 1000) {
  let i = 0;
  while (value >= step && i < units.length - 1) {
    value /= step;
    i += 1;
  }
  return `${value >= 100 ? value.toFixed(0) : Number(value.toPrecision(3))} ${units[i]}`;
}
const bytesText = (n) => (n === undefined || n === null ? "–" : scaled(n, ["B", "kB", "MB", "GB", "TB"]));
const rateText = (n) => scaled(n, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]);
const flopsText = (n) => scaled(n, ["FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"]);
const memoryText = (n) => scaled(n, ["B", "KiB", "MiB", "GiB", "TiB"], 1024);
const shareText = (v) => (v === undefined || v === null ? "–" : `${(100 * v).toFixed(v < 0.1 ? 1 : 0)}%`);
const errorText = (v) => (v === undefined || v === null ? "–" : v === 0 ? "exact" : v.toExponential(1));
const noiseText = (v) => (v === undefined || v === null ? "–" : `±${(100 * v).toFixed(v < 0.01 ? 2 : 1)}%`);
const intervalText = (r) => (r ? `${ratioText(r[0])} [${ratioText(r[1])}, ${ratioText(r[2])}]` : "–");

// Other fields of a record, as one line.
function written(value) {
  if (typeof value !== "object" || value === null) return String(value);
  return Object.entries(value)
    .map(([k, v]) => `${k} ${typeof v === "object" ? JSON.stringify(v) : v}`)
    .join(", ");
}

const rowOf = (cell, label) => cell.rows.find((row) => row.label === label);
const nameOf = (cell) => `${cell.op}, ${cell.sample}, ${cell.dtype}`;
const ran = (row) => row.call_us !== undefined && !FAILED.has(row.verdict);

// The spread of ratios; figures.py computes the same for all cells.
function spread(ratios) {
  if (!ratios.length) return null;
  const ordered = [...ratios].sort((a, b) => a - b);
  return {
    cells: ordered.length,
    mean: Math.exp(ordered.reduce((sum, r) => sum + Math.log(r), 0) / ordered.length),
    p5: ordered[Math.ceil(ordered.length * 0.05) - 1],
    minimum: ordered[0],
    slower: ordered.filter((r) => r < 1).length,
  };
}

// The filtered data: cells, the backends that are shown, and the device.
function view() {
  const wanted = Object.fromEntries(FILTERS.map((name) => [name, $(name).value]));
  const device = DATA.devices.find((d) => d.name === wanted.device) || DATA.devices[0];
  const here = DATA.cells.filter((c) => c.device === device.name);
  const cells = here.filter((c) => (!wanted.op || c.op === wanted.op) && (!wanted.dtype || c.dtype === wanted.dtype));
  const timed = DATA.labels.filter((label) =>
    cells.some((c) => {
      const row = rowOf(c, label);
      return row && row.call_us !== undefined;
    }),
  );
  const labels = timed.filter((label) => label !== "torch" && !label.startsWith("torch-"));
  return {
    device,
    here,
    cells,
    wanted,
    all: labels, // backends timed in these cells, besides torch
    labels: wanted.backend ? labels.filter((label) => label === wanted.backend) : labels,
  };
}

// The kernels that are drawn: torch at its best first, then the filtered backends.
function* drawn(state) {
  for (const cell of state.cells) {
    for (const row of cell.rows) {
      if (row.label === cell.torch) yield { cell, row, label: "torch" };
      else if (state.labels.includes(row.label)) yield { cell, row, label: row.label };
    }
  }
}

function fill(select, values, every) {
  const before = select.value;
  select.replaceChildren(
    ...(every ? [make("option", { value: ALL }, every)] : []),
    ...values.map((v) => make("option", { value: v }, v)),
  );
  select.value = values.includes(before) ? before : every ? ALL : values[0];
}

// The filter options for the selected device.
function fillFilters() {
  fill(
    $("device"),
    DATA.devices.map((d) => d.name),
  );
  const here = DATA.cells.filter((c) => c.device === $("device").value);
  const timed = DATA.labels.filter((label) => here.some((c) => rowOf(c, label)));
  fill($("op"), unique(here.map((c) => c.op)), "All");
  fill($("dtype"), unique(here.map((c) => c.dtype)), "All");
  fill(
    $("backend"),
    timed.filter((label) => label !== "torch" && !label.startsWith("torch-")),
    "All, as nxcore chooses",
  );
}

// A table with a caption and headed rows; a cell is text, a node, or {value, text} where a number is aligned.
function table(caption, columns, rows) {
  const body = rows.map((row) =>
    make(
      "tr",
      { class: row.class },
      ...row.cells.map((value, i) => {
        const content = value instanceof Node ? value : value === undefined || value === null ? "–" : String(value);
        return make(
          i === 0 ? "th" : "td",
          { scope: i === 0 ? "row" : null, class: columns[i].num ? "num" : columns[i].class },
          content,
        );
      }),
    ),
  );
  return make(
    "table",
    {},
    make("caption", {}, make("span", {}, caption)),
    make(
      "thead",
      {},
      make("tr", {}, ...columns.map((c) => make("th", { scope: "col", class: c.num ? "num" : null }, c.name))),
    ),
    make("tbody", {}, ...body),
  );
}
const col = (name) => ({ name });
const num = (name) => ({ name, num: true });
const opener = (cell, text = nameOf(cell)) =>
  make("button", { type: "button", class: "link", "data-cell": cell.id }, text);
