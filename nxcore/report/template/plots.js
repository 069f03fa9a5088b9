// Shared by the plots: colours and signs, axes, hover texts, a grid of panels.

const SHADES = {
  light: ["#0069b4", "#2f9fd0", "#c8500a", "#b98a00", "#00805e", "#b0568c", "#77706a", "#5b3fa0", "#7c2d12"],
  dark: ["#4da6f0", "#9bd6ff", "#ff8d52", "#f2c14a", "#38cfa0", "#e79fcb", "#b9b3ab", "#b39cff", "#e8a07c"],
};
const SIGNS = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star", "hexagon"];
const CONFIG = { displaylogo: false, responsive: true, displayModeBar: false };
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const isDark = () =>
  (document.documentElement.dataset.theme ||
    (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

// A backend keeps its colour and sign under every filter.
const BACKENDS = DATA.labels.filter((l) => l !== "torch" && !l.startsWith("torch-"));
function style(label) {
  if (label === "torch" || label === "nxcore") return { color: css("--ink"), symbol: "line-ew-open" };
  const i = Math.max(BACKENDS.indexOf(label), 0);
  const shades = SHADES[isDark() ? "dark" : "light"];
  return { color: shades[i % shades.length], symbol: SIGNS[i % SIGNS.length] };
}
const rank = (label) => 10 + (label === "torch" ? 0 : 1 + BACKENDS.indexOf(label));
const shown = (label) => (label === "torch" ? "torch at its best" : label);

function axis(title, more = {}) {
  return {
    title: { text: title, font: { size: 13, color: css("--muted") }, standoff: 8 },
    gridcolor: css("--grid"),
    linecolor: css("--rule"),
    zeroline: false,
    ticks: "",
    tickfont: { size: 12, color: css("--muted") },
    ...more,
  };
}
// A logarithmic axis with one tick per decade, or three if there are few, written as in the tables.
function log(title, values, text) {
  const known = values.filter((v) => v > 0),
    low = Math.log10(Math.min(...known)),
    high = Math.log10(Math.max(...known));
  const ticks = [];
  for (let e = Math.floor(low) - 1; e <= Math.ceil(high) + 1; e += 1)
    for (const k of high - low < 1.8 ? [1, 2, 5] : [1]) ticks.push(k * 10 ** e);
  const pad = Math.max(0.06 * (high - low), 0.12);
  return axis(title, { type: "log", range: [low - pad, high + pad], tickvals: ticks, ticktext: ticks.map(text) });
}
const plain = (v) => (v >= 1 ? v.toLocaleString("en") : String(Number(v.toPrecision(3))));
const timeTick = (us) =>
  us >= 1e6 ? `${us / 1e6} s` : us >= 1e3 ? `${us / 1e3} ms` : `${Number(us.toPrecision(3))} µs`;
function layout(more) {
  return {
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: css("--ink") },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 62, r: 12, t: 12, b: 48 },
    height: 460,
    hovermode: "closest",
    showlegend: true,
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 13 }, itemsizing: "constant" },
    hoverlabel: {
      bgcolor: css("--raised"),
      bordercolor: css("--rule"),
      font: { color: css("--ink"), size: 13 },
      align: "left",
    },
    ...more,
  };
}
const escaped = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
function hover({ cell, row }) {
  return [
    `<b>${escaped(row.label)}</b>  ${escaped(row.verdict || "")}`,
    escaped(`${cell.op} ${cell.sample} ${cell.dtype}`),
    `${timeText(row.call_us)}, ${intervalText(row.ratio)} × torch`,
    `${shareText(row.share_of_floor)} of floor, error ${errorText(row.error)}`,
  ].join("<br>");
}
function scatter(points, label, x, y, more = {}) {
  const { color, symbol } = style(label);
  return {
    type: "scatter",
    mode: "markers",
    name: shown(label),
    legendgroup: label,
    x: points.map(x),
    y: points.map(y),
    customdata: points.map((p) => p.cell.id),
    text: points.map(hover),
    hoverinfo: "text",
    legendrank: rank(label),
    marker: {
      color,
      symbol,
      size: label === "torch" ? 11 : 8,
      line: { width: label === "torch" ? 2.4 : 0.7, color: label === "torch" ? color : css("--paper") },
    },
    ...more,
  };
}
function byLabel(points) {
  const found = new Map();
  for (const point of points) found.set(point.label, [...(found.get(point.label) || []), point]);
  return found;
}
// A grid of panels, one for each operator, with axes and a title each.
function panels(names, width, { height, gutter, titled = 1 }, more) {
  const columns = Math.min(names.length, width > 980 ? 3 : width > 600 ? 2 : 1),
    lines = Math.ceil(names.length / columns);
  const gap = columns > 1 ? gutter / width : 0,
    tall = names.length === 1 ? 420 : height,
    total = lines * tall + 60,
    head = (10 + 17 * titled) / total,
    foot = 32 / total;
  const found = layout({ height: total + 36, annotations: [], margin: { l: gutter - 8, r: 8, t: 30, b: 6 } });
  found.legend = { ...found.legend, y: 1 + 12 / total };
  names.forEach((name, i) => {
    const column = i % columns,
      line = Math.floor(i / columns),
      id = i === 0 ? "" : i + 1;
    const wide = (1 - gap * (columns - 1)) / columns,
      high = 1 / lines;
    const x = [column * (wide + gap), column * (wide + gap) + wide],
      y = [1 - (line + 1) * high + foot, 1 - line * high - head];
    const [across, up] = more(i);
    found[`xaxis${id}`] = { ...across, domain: x, anchor: `y${id}` };
    found[`yaxis${id}`] = { ...up, domain: y, anchor: `x${id}` };
    found.annotations.push({
      text: name,
      align: "left",
      x: x[0],
      y: y[1],
      xref: "paper",
      yref: "paper",
      xanchor: "left",
      yanchor: "bottom",
      showarrow: false,
      font: { size: 13 },
    });
  });
  return found;
}
const place = (i) => ({ xaxis: i === 0 ? "x" : `x${i + 1}`, yaxis: i === 0 ? "y" : `y${i + 1}` });
// Torch's row is named by its idiom, the others by their backend.
const measured = (state, needs) => [...drawn(state)].filter(({ row }) => ran(row) && needs(row));
