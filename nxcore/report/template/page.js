// The dialog of a cell, and the event handlers.

// One interval of a forest plot, on the scale of the whole cell.
function forest(row, low, high) {
  const svg = (tag, attributes) => {
    const found = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
    return found;
  };
  const at = (r) => 3 + (138 * (Math.log(r) - Math.log(low))) / (Math.log(high) - Math.log(low));
  const found = svg("svg", { viewBox: "0 0 144 16", class: "forest", "aria-hidden": "true" });
  found.append(
    svg("line", {
      x1: at(1),
      x2: at(1),
      y1: 0,
      y2: 16,
      stroke: "var(--muted)",
      "stroke-width": 1,
      "stroke-dasharray": "2 2",
    }),
  );
  if (row.ratio) {
    const color = style(row.native ? "torch" : row.label).color;
    found.append(
      svg("line", { x1: at(row.ratio[1]), x2: at(row.ratio[2]), y1: 8, y2: 8, stroke: color, "stroke-width": 2 }),
      svg("circle", { cx: at(row.ratio[0]), cy: 8, r: 3.4, fill: color }),
    );
  }
  return found;
}

function openCell(id) {
  const cell = DATA.cells[id],
    run = DATA.runs[cell.run];
  const ratios = cell.rows.flatMap((r) => r.ratio || []),
    low = Math.min(1, ...ratios) / 1.15,
    high = Math.max(1, ...ratios) * 1.15;
  const facts = [
    ["Device", cell.device],
    ["Bytes moved", bytesText(cell.bytes)],
    ["Floor", timeText(cell.floor_us)],
    ["Torch at its best", `${cell.torch || "–"}, ${timeText(cell.torch_us)}`],
    ["nxcore's choice", cell.chosen ? `${cell.chosen}, ${timeText(cell.chosen_us)}` : "–"],
    ["Noise, A/A half-width", noiseText(cell.noise)],
    ["A call through nxcore", cell.called_us ? timeText(cell.called_us) : "not recorded"],
    ["Measured", run.date || "not recorded"],
    ["Record", run.file],
  ];
  const timed = cell.rows
    .filter((r) => r.call_us !== undefined)
    .sort((a, b) => FAILED.has(a.verdict) - FAILED.has(b.verdict) || a.call_us - b.call_us);
  const others = cell.rows.filter((r) => r.call_us === undefined);
  const remarks = (r) =>
    [
      r.reason,
      r.compared_only ? "for comparison only" : "",
      r.blocks && r.blocks < 12 ? `left the race after ${r.blocks} blocks` : "",
      r.break_even ? `compiled in ${r.compile_s.toPrecision(2)} s` : "",
      ...Object.entries({ ...r.more, clocks: undefined })
        .filter(([, v]) => v !== undefined)
        .map(([k, v]) => `${k}: ${written(v)}`),
    ]
      .filter(Boolean)
      .join("; ");
  const clocks = cell.rows.map((r) => r.more?.clocks).find(Boolean);
  if (clocks) facts.push(["Clocks after the race", written(clocks)]);
  const columns = [
    col("Kernel"),
    col("Verdict"),
    num("Call"),
    num("Device"),
    num("Host"),
    num("Ratio to torch"),
    col("Interval"),
    num("Of floor"),
    num("Error"),
    { name: "Remarks", class: "remarks" },
  ];
  const rows = timed.map((r) => ({
    class: r.label === cell.chosen ? "chosen" : null,
    cells: [
      r.label,
      make("span", { class: `verdict${FAILED.has(r.verdict) ? " bad" : ""}` }, r.verdict || "–"),
      timeText(r.call_us),
      timeText(r.device_us),
      timeText(r.host_us),
      intervalText(r.ratio),
      forest(r, low, high),
      shareText(r.share_of_floor),
      errorText(r.error),
      remarks(r),
    ],
  }));
  const why = others.map((r) => ({
    cells: [
      r.label,
      make("span", { class: `verdict${FAILED.has(r.verdict) ? " bad" : ""}` }, r.verdict || "not timed"),
      remarks(r) || "no reason recorded",
    ],
  }));
  const close = make("button", { type: "button", autofocus: true, "aria-label": "Close" }, "Close");
  close.addEventListener("click", () => $("cell").close());
  $("cell").replaceChildren(
    make(
      "header",
      {},
      make("h2", { id: "cell-h" }, cell.op, make("small", {}, `${cell.sample}, ${cell.dtype}`)),
      close,
    ),
    make("dl", {}, ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
    make(
      "div",
      { class: "wide" },
      table("All timed candidates, the fastest first; the dashed line is torch at its best", columns, rows),
    ),
    ...(why.length
      ? [
          make("br"),
          make("div", { class: "wide" }, table("Not timed", [col("Kernel"), col("Verdict"), col("Reason")], why)),
        ]
      : []),
  );
  if (!$("cell").open) $("cell").showModal();
}

// A figure's frame: the plot, and its data as a table for screen readers and copying.
function frame(name, section) {
  const plot = make("div", { class: "plot", id: `plot-${name}`, role: "img" });
  const empty = make("p", { class: "empty", id: `empty-${name}`, hidden: true });
  const behind = make(
    "details",
    { id: `table-${name}` },
    make("summary", {}, "The same data as a table"),
    make("div", { class: "wide", tabindex: 0, role: "group", "aria-label": "Table" }),
  );
  $(section).append(make("figure", { id: `figure-${name}` }, plot, empty, behind));
}

function draw(name, state) {
  const figure = $(`figure-${name}`),
    plot = $(`plot-${name}`),
    empty = $(`empty-${name}`),
    behind = $(`table-${name}`);
  const found = FIGURES[name](state, figure.clientWidth);
  figure.hidden = Boolean(found.skip);
  plot.hidden = behind.hidden = !found.traces;
  empty.hidden = !found.empty;
  empty.textContent = found.empty || "";
  if (!found.traces) return; // hidden, not purged: an earlier drawing may still be running
  Plotly.react(plot, found.traces, found.layout, CONFIG).then(() => {
    plot.removeAllListeners("plotly_click");
    plot.on("plotly_click", ({ points }) => {
      if (points[0].customdata !== undefined) openCell(points[0].customdata);
    });
  });
  plot.setAttribute("aria-label", `${found.words} The table below has the same data.`);
  // Built when it is opened, because thousands of hidden rows would slow every filter.
  const fillTable = () => {
    if (behind.open)
      behind.querySelector(".wide").replaceChildren(
        table(
          found.words,
          found.columns,
          found.rows.map((cells) => ({ cells })),
        ),
      );
  };
  behind.ontoggle = fillTable;
  fillTable();
}

function render() {
  const state = view();
  $("count").textContent = `${state.cells.length} of ${plural(state.here.length, "cell")}`;
  head(state);
  heat(state);
  policies(state);
  support(state);
  $("roofline-note").textContent =
    "Bandwidth by device time, over the bytes that the operator must move. The dashed line is the bandwidth of a copy from memory; the roof adds the time of an empty call. Both are from the latest run. A share of the floor uses the ceilings of its own run." +
    (state.cells.some((c) => c.rows.some((r) => r.intensity))
      ? ""
      : " These records have no operation counts, so there is no plot over operations per byte.");
  for (const name of Object.keys(FIGURES)) draw(name, state);
}

function theme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  mark();
  render();
}
function mark() {
  $("theme").textContent = isDark() ? "Light" : "Dark";
  $("theme").setAttribute("aria-label", isDark() ? "Show in light colours" : "Show in dark colours");
  $("theme").setAttribute("aria-pressed", String(isDark()));
}

const SECTIONS = {
  time: "time",
  error: "error",
  roofline: "roofline",
  intensity: "roofline",
  regret: "regret",
  host: "host",
  jit: "jit",
};
for (const [name, section] of Object.entries(SECTIONS)) frame(name, section);
fillFilters();
mark();
runs();
render();

$("filters").addEventListener("change", (event) => {
  if (event.target.id === "device") fillFilters();
  render();
});
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("filters").addEventListener("reset", (event) => {
  event.preventDefault();
  for (const name of FILTERS.slice(1)) $(name).value = ALL;
  render();
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-cell]");
  if (button) openCell(Number(button.dataset.cell));
  else if (event.target === $("cell")) $("cell").close(); // a click outside the panel
});
$("heat").addEventListener("keydown", steer);
$("theme").addEventListener("click", () => theme(!isDark()));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  mark();
  render();
});
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) {
    width = innerWidth;
    render();
  }
});
document.documentElement.dataset.ready = "yes";
