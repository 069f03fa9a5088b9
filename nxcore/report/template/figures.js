// The plots: each returns traces, a layout, words for a reader, and the table behind it; or why there is none.

const SHADES = {
  light: ["#0069b4", "#2f9fd0", "#c8500a", "#b98a00", "#00805e", "#b0568c", "#77706a", "#5b3fa0", "#7c2d12"],
  dark: ["#4da6f0", "#9bd6ff", "#ff8d52", "#f2c14a", "#38cfa0", "#e79fcb", "#b9b3ab", "#b39cff", "#e8a07c"],
};
const SIGNS = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star", "hexagon"];
const CONFIG = { displaylogo: false, responsive: true, displayModeBar: false };
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const isDark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

// A backend keeps its colour and sign whatever the filters leave.
const BACKENDS = DATA.labels.filter((l) => l !== "torch" && !l.startsWith("torch-"));
function style(label) {
  if (label === "torch") return { color: css("--ink"), symbol: "circle-open" };
  if (label === "nxcore") return { color: css("--ink"), symbol: "star" };
  const i = Math.max(BACKENDS.indexOf(label), 0);
  const shades = SHADES[isDark() ? "dark" : "light"];
  return { color: shades[i % shades.length], symbol: SIGNS[i % SIGNS.length] };
}
const shown = (label) => (label === "torch" ? "torch at its best" : label);

function axis(title, more = {}) {
  return { title: { text: title, font: { size: 13, color: css("--muted") }, standoff: 8 }, gridcolor: css("--grid"), linecolor: css("--rule"), zeroline: false, ticks: "",
    tickfont: { size: 12, color: css("--muted") }, automargin: true, ...more };
}
const log = (title, more = {}) => axis(title, { type: "log", dtick: 1, exponentformat: "power", ...more });
function layout(more) {
  return { font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: css("--ink") }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 56, r: 12, t: 12, b: 48 }, height: 460, hovermode: "closest", showlegend: true,
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 13 }, itemsizing: "constant" },
    hoverlabel: { bgcolor: css("--raised"), bordercolor: css("--rule"), font: { color: css("--ink"), size: 13 }, align: "left" }, ...more };
}
const escaped = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
function hover({ cell, row }) {
  return [`<b>${escaped(row.label)}</b>  ${escaped(row.verdict || "")}`, escaped(`${cell.op} ${cell.sample} ${cell.dtype}`),
    `${timeText(row.call_us)}, ${intervalText(row.ratio)} × torch`, `${shareText(row.share_of_floor)} of floor, error ${errorText(row.error)}`].join("<br>");
}
function scatter(points, label, x, y, more = {}) {
  const { color, symbol } = style(label);
  return { type: "scatter", mode: "markers", name: shown(label), legendgroup: label, x: points.map(x), y: points.map(y), customdata: points.map((p) => p.cell.id),
    text: points.map(hover), hoverinfo: "text", marker: { color, symbol, size: 8, line: { width: label === "torch" ? 1.6 : 0.6, color: label === "torch" ? color : css("--paper") } }, ...more };
}
function byLabel(points) {
  const found = new Map();
  for (const point of points) found.set(point.label, [...(found.get(point.label) || []), point]);
  return found;
}
// A grid of panels, one an operator: axes and a title each.
function panels(names, width, height, more) {
  const columns = Math.min(names.length, width > 980 ? 3 : width > 600 ? 2 : 1), lines = Math.ceil(names.length / columns);
  const gap = columns > 1 ? 0.055 : 0, tall = names.length === 1 ? 420 : height, total = lines * tall + 60, rise = 52 / total;
  const found = layout({ height: total, annotations: [], margin: { l: 50, r: 10, t: 26, b: 34 } });
  found.legend = { ...found.legend, y: 1 + 12 / total };
  names.forEach((name, i) => {
    const column = i % columns, line = Math.floor(i / columns), id = i === 0 ? "" : i + 1;
    const wide = (1 - gap * (columns - 1)) / columns, high = 1 / lines;
    const x = [column * (wide + gap), column * (wide + gap) + wide], y = [1 - (line + 1) * high + (line < lines - 1 ? rise * 0.55 : 0.02), 1 - line * high - rise * 0.75];
    const [across, up] = more(name);
    found[`xaxis${id}`] = { ...across, domain: x, anchor: `y${id}` };
    found[`yaxis${id}`] = { ...up, domain: y, anchor: `x${id}` };
    found.annotations.push({ text: `<b>${escaped(name)}</b>`, x: x[0], y: y[1], xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: 13 } });
  });
  return found;
}
const place = (i) => ({ xaxis: i === 0 ? "x" : `x${i + 1}`, yaxis: i === 0 ? "y" : `y${i + 1}` });
// Torch's row is named as the idiom it is; the rest by the backend.
const measured = (state, needs) => [...drawn(state)].filter(({ row }) => ran(row) && needs(row));

const FIGURES = {
  time(state, width) {
    const points = measured(state, () => true).filter(({ cell }) => cell.bytes);
    if (!points.length) return { empty: "No cell that is left has a time and a size." };
    const ops = unique(points.map((p) => p.cell.op)), seen = new Set(), traces = [];
    ops.forEach((op, i) => {
      const own = points.filter((p) => p.cell.op === op);
      const floor = unique(own.map((p) => p.cell)).filter((c) => c.floor_us).sort((a, b) => a.bytes - b.bytes);
      traces.push({ type: "scatter", mode: "lines", name: "floor", legendgroup: "floor", showlegend: !seen.has("floor"), x: floor.map((c) => c.bytes), y: floor.map((c) => c.floor_us),
        line: { color: css("--muted"), width: 1.4, dash: "dot" }, hoverinfo: "skip", ...place(i) });
      seen.add("floor");
      for (const [label, group] of byLabel(own)) {
        const bars = group.map((p) => p.row.interval_us || [p.row.call_us, p.row.call_us]);
        traces.push(scatter(group, label, (p) => p.cell.bytes, (p) => p.row.call_us, { showlegend: !seen.has(label), ...place(i),
          error_y: { type: "data", symmetric: false, array: bars.map((b, k) => Math.max(b[1] - group[k].row.call_us, 0)), arrayminus: bars.map((b, k) => Math.max(group[k].row.call_us - b[0], 0)),
            thickness: 1, width: 0, color: style(label).color } }));
        seen.add(label);
      }
      const rings = own.filter((p) => p.row.label === p.cell.chosen);
      traces.push({ type: "scatter", mode: "markers", name: "nxcore's choice", legendgroup: "choice", showlegend: !seen.has("choice"), x: rings.map((p) => p.cell.bytes), y: rings.map((p) => p.row.call_us),
        customdata: rings.map((p) => p.cell.id), hoverinfo: "skip", marker: { symbol: "circle-open", size: 15, color: css("--ink"), line: { width: 1.3 } }, ...place(i) });
      seen.add("choice");
    });
    return {
      traces, layout: panels(ops, width, 290, () => [log("", { tickformat: "~s", ticksuffix: "B" }), log("", { ticksuffix: " µs", exponentformat: "none" })]),
      words: `Time of a call over bytes moved, logarithmic, ${plural(ops.length, "operator")}, ${plural(points.length, "measurement")}.`,
      columns: [col("Cell"), col("Kernel"), num("Bytes"), num("Floor"), num("Call"), num("Interval"), num("Device"), num("Host"), num("Of floor")],
      rows: points.map(({ cell, row }) => [opener(cell), row.label, bytesText(cell.bytes), timeText(cell.floor_us), timeText(row.call_us),
        row.interval_us ? row.interval_us.map(timeText).join(" to ") : "–", timeText(row.device_us), timeText(row.host_us), shareText(row.share_of_floor)]),
    };
  },

  error(state) {
    const points = measured(state, (row) => row.error !== undefined && row.ratio);
    if (!points.length) return { empty: "No row that is left has both an error and a ratio to torch." };
    const least = Math.min(...points.map((p) => p.row.error).filter((e) => e > 0), 1e-3);
    const edge = 10 ** (Math.floor(Math.log10(least)) - 0.5), exact = points.some((p) => p.row.error === 0);
    const traces = [...byLabel(points)].map(([label, group]) => scatter(group, label, (p) => p.row.error || edge, (p) => p.row.ratio[0]));
    const most = Math.max(...points.map((p) => p.row.error), least);
    const ticks = [];
    for (let e = Math.ceil(Math.log10(least)); e <= Math.ceil(Math.log10(most)); e += 1) ticks.push(e);
    return {
      traces, words: `Ratio to torch over relative error, ${plural(points.length, "measurement")}.`,
      layout: layout({ shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { color: css("--muted"), width: 1 } }],
        xaxis: log("relative error against float64", { tickvals: [...(exact ? [edge] : []), ...ticks.map((e) => 10 ** e)], ticktext: [...(exact ? ["exact"] : []), ...ticks.map((e) => `10<sup>${e}</sup>`)] }),
        yaxis: log("times as fast as torch", { dtick: "D2", exponentformat: "none" }) }),
      columns: [col("Cell"), col("Kernel"), num("Error"), num("Ratio to torch"), col("Verdict")],
      rows: points.map(({ cell, row }) => [opener(cell), row.label, errorText(row.error), intervalText(row.ratio), row.verdict]),
    };
  },

  roofline(state) {
    const points = measured(state, (row) => row.gb_per_s && row.device_us).filter(({ cell }) => cell.bytes);
    const cold = coldOf(state.device), start = state.device.ceilings.t0_us;
    if (!points.length) return { empty: "No row that is left has a bandwidth." };
    const sizes = points.map((p) => p.cell.bytes), low = Math.log10(Math.min(...sizes)) - 0.2, high = Math.log10(Math.max(...sizes)) + 0.2;
    const line = Array.from({ length: 60 }, (_, i) => 10 ** (low + ((high - low) * i) / 59));
    const traces = [...byLabel(points)].map(([label, group]) => scatter(group, label, (p) => p.cell.bytes, (p) => p.row.gb_per_s));
    if (cold && start) traces.unshift({ type: "scatter", mode: "lines", name: "roof: an empty call, then copying", x: line, y: line.map((b) => (b / (start + (1e6 * b) / cold)) * 1e-3), line: { color: css("--ink"), width: 1.5 }, hoverinfo: "skip" });
    if (cold) traces.unshift({ type: "scatter", mode: "lines", name: "copying, from memory", x: [line[0], line.at(-1)], y: [cold * 1e-9, cold * 1e-9], line: { color: css("--muted"), width: 1.2, dash: "dash" }, hoverinfo: "skip" });
    return {
      traces, words: `Bytes a second over bytes moved, with the roof that was measured, ${plural(points.length, "measurement")}.`,
      layout: layout({ xaxis: log("bytes that the operator must move", { tickformat: "~s", ticksuffix: "B" }), yaxis: log("GB/s, by device time", { exponentformat: "none" }) }),
      columns: [col("Cell"), col("Kernel"), num("Bytes"), num("GB/s"), num("Of floor"), num("TFLOP/s"), num("FLOP a byte")],
      rows: points.map(({ cell, row }) => [opener(cell), row.label, bytesText(cell.bytes), row.gb_per_s, shareText(row.share_of_floor), row.tflops ? row.tflops.toPrecision(3) : null, row.intensity ? row.intensity.toPrecision(3) : null]),
    };
  },

  intensity(state) {
    const points = measured(state, (row) => row.intensity && row.tflops);
    if (!points.length) return { skip: true };
    const cold = coldOf(state.device), peak = state.device.ceilings.flops;
    const all = points.map((p) => p.row.intensity), low = Math.log10(Math.min(...all)) - 0.3, high = Math.log10(Math.max(...all, peak && cold ? peak / cold : 0)) + 0.5;
    const line = Array.from({ length: 60 }, (_, i) => 10 ** (low + ((high - low) * i) / 59));
    const traces = [...byLabel(points)].map(([label, group]) => scatter(group, label, (p) => p.row.intensity, (p) => p.row.tflops));
    if (cold && peak) traces.unshift({ type: "scatter", mode: "lines", name: "roof", x: line, y: line.map((i) => Math.min(peak, i * cold) * 1e-12), line: { color: css("--ink"), width: 1.5 }, hoverinfo: "skip" });
    return {
      traces, words: `Operations a second over operations a byte, with the roof, ${plural(points.length, "measurement")}.`,
      layout: layout({ xaxis: log("operations a byte", { exponentformat: "none" }), yaxis: log("TFLOP/s, by device time", { exponentformat: "none" }) }),
      columns: [col("Cell"), col("Kernel"), num("FLOP a byte"), num("TFLOP/s")],
      rows: points.map(({ cell, row }) => [opener(cell), row.label, row.intensity.toPrecision(3), row.tflops.toPrecision(3)]),
    };
  },

  regret(state) {
    const cells = state.cells.filter((c) => c.regret.nxcore);
    if (!cells.length) return { empty: "No cell that is left has a choice and a best time." };
    const curves = ["nxcore", "torch", ...state.labels].map((policy) => ({ policy, factors: cells.map((c) => c.regret[policy] ?? c.regret.torch).sort((a, b) => a - b) }));
    const end = Math.min(Math.max(...curves.map((c) => c.factors.at(-1))), 64);
    const traces = curves.map(({ policy, factors }) => ({
      type: "scatter", mode: "lines", name: policy === "nxcore" ? "nxcore's choice" : policy === "torch" ? "always torch at its best" : `always ${policy}`, x: [1, ...factors, end * 1.1], y: [0, ...factors.map((_, i) => (i + 1) / factors.length), 1],
      line: { shape: "hv", color: style(policy).color, width: policy === "nxcore" ? 3.2 : 1.8, dash: policy === "torch" ? "dash" : ["solid", "dot", "dashdot", "longdash"][Math.max(BACKENDS.indexOf(policy), 0) % 4] },
      hovertemplate: "%{y:.0%} of cells within %{x:.2f} × the best<extra>%{fullData.name}</extra>" }));
    const share = (factors, limit) => shareText(factors.filter((f) => f <= limit).length / factors.length);
    const at = (factors, q) => ratioText(factors[Math.min(factors.length - 1, Math.ceil(q * factors.length) - 1)]);
    return {
      traces: [...traces.slice(1), traces[0]], words: `Share of cells within a factor of the best time, ${plural(curves.length, "policy", "policies")} over ${plural(cells.length, "cell")}.`,
      layout: layout({ xaxis: axis("times the best time", { type: "log", range: [-0.01, Math.log10(end)], tickvals: [1, 1.1, 1.5, 2, 4, 8, 16, 32, 64], ticktext: ["1", "1.1", "1.5", "2", "4", "8", "16", "32", "64"] }), yaxis: axis("share of cells", { tickformat: ".0%", range: [0, 1.02] }) }),
      columns: [col("Policy"), num("Median"), num("95th percentile"), num("Worst"), num("Within 2%"), num("Within 10%"), num("Within 2 ×")],
      rows: curves.map(({ policy, factors }, i) => [traces[i].name, at(factors, 0.5), at(factors, 0.95), ratioText(factors.at(-1)), share(factors, 1.02), share(factors, 1.1), share(factors, 2)]),
    };
  },

  host(state, width) {
    if ((state.device.facts.type || "") === "cpu") return { empty: "On a CPU the host is the device: the two times are one, so there is nothing to set apart." };
    const smallest = unique(state.cells.map((c) => c.op)).map((op) => state.cells.find((c) => c.op === op && c.bytes));
    const points = measured({ ...state, cells: smallest.filter(Boolean) }, (row) => row.host_us && row.device_us);
    if (!points.length) return { empty: "No row that is left has both a host and a device time." };
    const ops = unique(points.map((p) => p.cell.op)), traces = [];
    const name = (op) => { const cell = points.find((p) => p.cell.op === op).cell; return `${op}: ${cell.sample}, ${short(cell.dtype)}`; };
    ops.forEach((op, i) => {
      const own = points.filter((p) => p.cell.op === op).reverse();
      for (const [field, title, color, shape] of [["device_us", "device", css("--fast"), ""], ["host_us", "host", css("--slow"), "/"]]) {
        traces.push({ type: "bar", orientation: "h", name: title, legendgroup: title, showlegend: i === 0, y: own.map((p) => p.label), x: own.map((p) => p.row[field]), customdata: own.map((p) => p.cell.id), text: own.map(hover), textposition: "none", hoverinfo: "text",
          marker: { color, pattern: { shape, size: 6, solidity: 0.35, fgcolor: css("--paper") }, line: { width: 0 } }, ...place(i) });
      }
    });
    return {
      traces, words: `Host and device time of the smallest cell of ${plural(ops.length, "operator")}.`,
      layout: { ...panels(ops.map(name), width, 250, () => [axis("", { ticksuffix: " µs", rangemode: "tozero", nticks: 5 }), axis("", { gridcolor: "rgba(0,0,0,0)" })]), barmode: "group", bargap: 0.28 },
      columns: [col("Cell"), col("Kernel"), num("Host"), num("Device"), num("Call")],
      rows: points.map(({ cell, row }) => [opener(cell), row.label, timeText(row.host_us), timeText(row.device_us), timeText(row.call_us)]),
    };
  },

  jit(state) {
    const points = [...drawn(state)].filter(({ row }) => row.compile_s && row.break_even);
    if (!points.length) return { empty: "Times to compile were not recorded (field compile_s), so this can't be told." };
    const paid = points.filter((p) => p.row.break_even !== "never");
    return {
      traces: [...byLabel(paid)].map(([label, group]) => scatter(group, label, (p) => p.cell.bytes, (p) => p.row.break_even)),
      words: `Calls until compiling has paid, over size; in ${plural(points.length - paid.length, "row")} it never does.`,
      layout: layout({ xaxis: log("bytes that the operator must move", { tickformat: "~s", ticksuffix: "B" }), yaxis: log("calls", { exponentformat: "none" }) }),
      columns: [col("Cell"), col("Kernel"), num("Compiling"), num("Ratio to torch"), num("Calls to break even")],
      rows: points.map(({ cell, row }) => [opener(cell), row.label, `${row.compile_s.toPrecision(3)} s`, intervalText(row.ratio), row.break_even.toLocaleString("en")]),
    };
  },
};
