// The page's text about the record itself: head, ceilings, versions, backends that did not run, the runs.

function runs() {
  const known = new Set(["file", "device", "cells", "date", "versions", "ceilings", "method", "cuda", "sources"]);
  const rows = DATA.runs.map((r) => ({
    cells: [
      r.file,
      r.device,
      r.date || "not recorded",
      r.cells,
      written(r.versions || "not recorded"),
      Object.entries(r)
        .filter(([k]) => !known.has(k))
        .map(([k, v]) => `${k}: ${written(v)}`)
        .join("; "),
    ],
  }));
  const more = rows.some((r) => r.cells[5]);
  for (const row of rows) if (!more) row.cells.pop();
  $("runs-table").replaceChildren(
    table(
      "In the order of reading",
      [col("File"), col("Device"), col("Began"), num("Cells shown"), col("Versions"), ...(more ? [col("More")] : [])],
      rows,
    ),
  );
  $("runs-note").textContent =
    "Ratios are paired within a run, so all rows of a cell are from its latest run." +
    (DATA.replaced ? ` ${plural(DATA.replaced, "earlier measurement is", "earlier measurements are")} replaced.` : "") +
    ` Method: ${unique(DATA.runs.map((r) => r.method).filter(Boolean)).join("; ") || "not recorded"}.`;
  $("notes").replaceChildren(
    ...(DATA.notes.length
      ? [make("h3", {}, "Lines that could not be read"), make("ul", {}, ...DATA.notes.map((n) => make("li", {}, n)))]
      : []),
  );
}

function head(state) {
  const { device, cells } = state,
    found = spread(cells.filter((c) => c.ratio).map((c) => c.ratio[0]));
  const slower = cells.filter((c) => c.ratio && c.ratio[0] < 1);
  const called = spread(cells.filter((c) => c.ratio_called).map((c) => c.ratio_called[0]));
  $("lede").replaceChildren(
    ...(found
      ? [
          `In ${plural(found.cells, "cell")} (operator, size and element type) on ${device.name}, nxcore's choice is ${ratioText(found.mean)} times as fast as torch at its best (geometric mean). ` +
            (found.slower
              ? `${plural(found.slower, "cell is", "cells are")} slower than torch.`
              : "No cell is slower than torch."),
          make(
            "small",
            {},
            "The choice is the winner by nxcore's rule on these timings. " +
              (found.slower
                ? `${plural(slower.filter((c) => c.left_to_torch).length, "slower cell is", "slower cells are")} left to torch, where another of torch's idioms was faster: not significantly, or it returns another result than the operator. `
                : "") +
              (called
                ? `Including the time of a call through nxcore, it is ${ratioText(called.mean)} times as fast, and ${plural(called.slower, "cell is", "cells are")} slower than torch.`
                : "The time of a call through nxcore was not recorded, and is not included."),
          ),
        ]
      : ["No cell passes the filters and has a ratio to torch."]),
  );
  const kept = cells.filter((c) => c.left_to_torch).length;
  const stats = found
    ? [
        ["Geometric mean", ratioText(found.mean), "×"],
        ["Fifth percentile", ratioText(found.p5), "×"],
        ["Worst cell", ratioText(found.minimum), "×"],
        ["Slower than torch", found.slower, `of ${found.cells}`],
        ["Left to torch", kept, `of ${cells.length}`],
      ]
    : [];
  $("tiles").replaceChildren(
    ...stats.map(([name, value, unit]) =>
      make("div", {}, make("dt", {}, name), make("dd", {}, String(value), make("small", {}, unit))),
    ),
  );
  $("failures").replaceChildren(
    ...(device.failures.length
      ? [
          make(
            "div",
            { class: "failed" },
            `${plural(device.failures.length, "row")} of this record ${device.failures.length === 1 ? "is" : "are"} invalid and excluded from all figures:`,
            make(
              "ul",
              {},
              ...device.failures.map((f) =>
                make(
                  "li",
                  {},
                  make("b", {}, `${f.label} ${f.verdict} `),
                  opener(DATA.cells[f.cell]),
                  f.reason ? `: ${f.reason}` : "",
                ),
              ),
            ),
          ),
        ]
      : []),
  );
  const f = device.facts,
    c = device.ceilings,
    cold = c.cold;
  const lines = (values) =>
    make("ul", {}, ...(values.length ? values : ["not recorded"]).map((v) => make("li", {}, v)));
  const block = (name, ...content) => make("div", {}, make("h3", {}, name), ...content);
  $("facts").replaceChildren(
    block(
      "Device",
      lines(
        [
          device.name,
          f.capability && `capability ${f.capability}`,
          f.units && `${f.units} ${f.type === "cpu" ? "threads" : "multiprocessors"}`,
          f.memory && `${memoryText(f.memory)} of memory`,
          f.l2 && `${memoryText(f.l2)} last-level cache`,
        ].filter(Boolean),
      ),
    ),
    block(
      "Measured ceilings",
      lines(
        [
          cold && `${rateText(cold)} copying, from memory`,
          c.flops && `${flopsText(c.flops)}, float32`,
          c.t0_us && `${timeText(c.t0_us)} for an empty call`,
          device.unsure && `uncertain, since other work ran during their measurement: ${device.unsure}`,
        ].filter(Boolean),
      ),
    ),
    block(
      "Versions",
      make(
        "p",
        {},
        Object.entries(device.versions)
          .map(([k, v]) => `${k} ${v.join(" and ")}`)
          .join(", ") || "not recorded",
      ),
    ),
    block(
      "Not run, and why",
      lines(
        Object.keys(device.absent).length
          ? Object.entries(byReason(device.absent)).map(([why, labels]) => `${labels.join(", ")}: ${why}`)
          : ["every backend in these records ran"],
      ),
    ),
  );
}

function byReason(absent) {
  const found = {};
  for (const [label, reasons] of Object.entries(absent))
    for (const why of Object.keys(reasons)) (found[why] ||= []).push(label);
  return found;
}
