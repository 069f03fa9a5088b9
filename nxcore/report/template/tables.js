// The heat map, the policies and the support matrix, which are tables.

const LIMIT = Math.log2(8); // beyond eight times the colour stays the same
const SIZES = [
  [1e5, "under 100 kB"],
  [1e6, "100 kB to 1 MB"],
  [1e7, "1 to 10 MB"],
  [1e8, "10 to 100 MB"],
  [1e9, "100 MB to 1 GB"],
  [Infinity, "over 1 GB"],
];

// A tile of the heat map: text, classes, strength of the colour, and a description for screen readers.
function tileOf(cell, backend) {
  if (!backend) {
    const hesitant = cell.rows.find((r) => r.verdict === "AMBG" && !r.compared_only && r.ratio && r.ratio[0] > 1);
    if (!cell.ratio) return { text: "–", kinds: ["none"], words: "not measured" };
    if (cell.left_to_torch) {
      const why = hesitant
        ? `torch, though ${hesitant.label} may be faster: ${intervalText(hesitant.ratio)}`
        : cell.chosen === cell.torch
          ? "torch itself is chosen"
          : `torch is chosen (${cell.chosen}), though its idiom ${cell.torch} was faster`;
      return { text: ratioText(cell.ratio[0]), kinds: hesitant ? ["kept", "ambg"] : ["kept"], words: why };
    }
    return {
      ...coloured(cell.ratio),
      words: `${cell.chosen} is chosen, ${intervalText(cell.ratio)} times as fast as torch`,
    };
  }
  const row = rowOf(cell, backend);
  if (!row) return { text: "·", kinds: ["none"], words: "not in this record" };
  if (FAILED.has(row.verdict)) return { text: "✕", kinds: ["wrong"], words: `${row.verdict}: ${row.reason || ""}` };
  if (!row.ratio)
    return {
      text: "–",
      kinds: ["none"],
      words: `${row.verdict || "not timed"}: ${row.reason || "no reason recorded"}`,
    };
  const found = coloured(row.ratio);
  if (row.verdict === "AMBG") found.kinds.push("ambg");
  return { ...found, words: `${row.verdict}, ${intervalText(row.ratio)} times as fast as torch` };
}

function coloured([median]) {
  const strength = Math.min(Math.abs(Math.log2(median)) / LIMIT, 1);
  const kinds = [median >= 1 ? "fast" : "slow"];
  if (strength > 0.55) kinds.push("strong");
  return { text: ratioText(median), kinds, strength };
}

function heat(state) {
  const backend = state.wanted.backend;
  const edges = SIZES.filter(([limit], i) => state.cells.some((c) => inside(c, i)));
  const rows = [];
  for (const op of unique(state.cells.map((c) => c.op))) {
    const types = unique(state.cells.filter((c) => c.op === op).map((c) => c.dtype)).sort();
    types.forEach((dtype, i) => {
      const own = state.cells.filter((c) => c.op === op && c.dtype === dtype);
      rows.push(
        make(
          "tr",
          { class: i < types.length - 1 ? "inner" : null },
          i === 0 ? make("th", { scope: "rowgroup", rowspan: types.length, class: "op" }, ...breaking(op)) : null,
          make("th", { scope: "row", class: "type" }, dtype),
          ...edges.map((edge) =>
            make(
              "td",
              {},
              make("div", {}, ...own.filter((c) => inside(c, SIZES.indexOf(edge))).map((c) => tile(c, backend))),
            ),
          ),
        ),
      );
    });
  }
  const found = make(
    "table",
    { class: "heat" },
    make(
      "caption",
      {},
      make(
        "span",
        {},
        "Operators by the bytes that they must move; left to right and down, smaller to larger. Arrow keys move, Enter opens a cell.",
      ),
    ),
    make(
      "thead",
      {},
      make(
        "tr",
        {},
        make("th", { scope: "col" }, "Operator"),
        make("th", { scope: "col" }, "Type"),
        ...edges.map(([, name]) => make("th", { scope: "col" }, name)),
      ),
    ),
    make("tbody", {}, ...rows),
  );
  const first = found.querySelector(".tile");
  if (first) first.tabIndex = 0;
  $("heat").replaceChildren(found);
  $("ratio-note").textContent = backend
    ? `${backend} against torch at its best, in every cell where it was measured. Over one is faster.`
    : "nxcore's choice against torch at its best (the fastest of several idioms), one tile per cell. Over one is faster. Click a tile to see all candidates of its cell.";
  $("key").replaceChildren(...key(backend));
}

const inside = (cell, i) => (cell.bytes || 0) < SIZES[i][0] && (i === 0 || (cell.bytes || 0) >= SIZES[i - 1][0]);

function tile(cell, backend) {
  const { text, kinds, strength, words } = tileOf(cell, backend);
  return make(
    "button",
    {
      type: "button",
      tabindex: -1,
      class: ["tile", ...kinds].join(" "),
      style: strength === undefined ? null : `--s:${strength.toFixed(3)}`,
      "data-cell": cell.id,
      title: `${cell.sample}, ${cell.dtype}, ${bytesText(cell.bytes)}: ${words}`,
      "aria-label": `${text}: ${cell.op}, ${cell.sample}, ${cell.dtype}: ${words}`,
    },
    text,
  );
}

function key(backend) {
  const shades = [0.125, 0.25, 0.5, 1, 2, 4, 8].map((r) => {
    const { kinds, strength } = coloured([r]);
    return make("i", { class: kinds.join(" "), style: `--s:${strength}` }, r < 1 ? `1/${1 / r}` : String(r));
  });
  const mark = (kind, sign, text) => make("span", {}, make("i", { class: kind }, sign), text);
  const marks = backend
    ? [
        ["ambg", "1.10", "AMBG: not significant"],
        ["none", "–", "DECLINED or not timed"],
        ["wrong", "✕", "WRONG"],
      ]
    : [
        ["kept", "1.00", "torch kept"],
        ["kept ambg", "1.00", "torch kept, a candidate may be faster"],
      ];
  return [make("span", { class: "scale" }, ...shades), ...marks.map((m) => mark(...m))];
}

// One tab stop for the whole map; arrows go to the next tile, or to the row above or below.
function steer(event) {
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: "up", ArrowDown: "down", Home: "home", End: "end" }[event.key];
  if (!step || !event.target.classList.contains("tile")) return;
  event.preventDefault();
  const tiles = [...$("heat").querySelectorAll(".tile")];
  const own = event.target.closest("tr"),
    rows = [...$("heat").querySelectorAll("tbody tr")];
  let next = step === "home" ? tiles[0] : step === "end" ? tiles.at(-1) : tiles[tiles.indexOf(event.target) + step];
  if (step === "up" || step === "down") {
    const row = rows[rows.indexOf(own) + (step === "up" ? -1 : 1)];
    const x = event.target.getBoundingClientRect().left;
    const away = (t) => Math.abs(t.getBoundingClientRect().left - x);
    next = row && [...row.querySelectorAll(".tile")].sort((a, b) => away(a) - away(b))[0];
  }
  if (!next) return;
  event.target.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function policies(state) {
  const policy = (name, rows) => ({
    name,
    found: spread(rows.map((r) => r.ratio[0])),
    clearly: rows.filter((r) => r.verdict === "SLOW").length,
  });
  const found = [
    policy(
      "nxcore's choice",
      state.cells.filter((c) => c.ratio),
    ),
  ];
  const called = state.cells.filter((c) => c.ratio_called).map((c) => ({ ratio: c.ratio_called }));
  found.push(policy("nxcore's choice, called through nxcore", called));
  for (const label of state.labels) {
    found.push(
      policy(
        `always ${label}`,
        state.cells.map((c) => rowOf(c, label)).filter((r) => r && r.ratio && !FAILED.has(r.verdict)),
      ),
    );
  }
  const columns = [
    col("Policy"),
    num("Cells"),
    num("Geometric mean"),
    num("Fifth percentile"),
    num("Worst cell"),
    num("Slower than torch"),
    num("Clearly slower"),
  ];
  $("policies-table").replaceChildren(
    table(
      "Times as fast as torch at its best",
      columns,
      found
        .filter((p) => p.found)
        .map(({ name, found: s, clearly }, i) => ({
          class: i === 0 ? "total" : null,
          cells: [name, s.cells, ratioText(s.mean), ratioText(s.p5), ratioText(s.minimum), s.slower, clearly],
        })),
    ),
  );
}

function support(state) {
  const labels = unique([
    ...DATA.labels.filter((l) => state.here.some((c) => rowOf(c, l))),
    ...state.here.flatMap((c) => c.rows.map((r) => r.label)),
  ]).filter((l) => l !== "torch" && !l.startsWith("torch-") && (!state.wanted.backend || l === state.wanted.backend));
  const reasons = new Map();
  const rows = unique(state.cells.map((c) => c.op)).map((op) => ({
    cells: [
      op,
      ...labels.map((label) => {
        const own = state.cells
          .filter((c) => c.op === op)
          .map((c) => rowOf(c, label))
          .filter(Boolean);
        const failed = own.filter((r) => FAILED.has(r.verdict)),
          declined = own.filter((r) => r.verdict === "DECLINED");
        for (const r of [...declined, ...failed]) {
          const why = `${label}: ${r.reason || r.verdict}`;
          reasons.set(why, (reasons.get(why) || 0) + 1);
        }
        const good = own.length - failed.length - declined.length;
        if (!own.length) return make("span", { class: "muted" }, "not measured");
        return make(
          "span",
          {},
          ...[
            good ? `✓ ${good}` : null,
            declined.length ? make("span", { class: "muted" }, ` – ${declined.length}`) : null,
            failed.length ? make("span", { class: "bad" }, ` ✕ ${failed.length}`) : null,
          ],
        );
      }),
    ],
  }));
  $("support-table").replaceChildren(
    table("✓ verified and timed, – declined, ✕ wrong, in cells", [col("Operator"), ...labels.map(col)], rows),
  );
  const listed = [...reasons]
    .sort((a, b) => b[1] - a[1])
    .map(([why, n]) => make("li", {}, `${why} `, make("span", { class: "muted" }, `(${plural(n, "cell")})`)));
  $("support-reasons").replaceChildren(...(listed.length ? [make("ul", { class: "reasons" }, ...listed)] : []));
}
