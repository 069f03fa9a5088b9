// The plots of costs: time against the best, host time, compilation.

Object.assign(FIGURES, {
  regret(state) {
    const cells = state.cells.filter((c) => c.regret.nxcore);
    if (!cells.length) return { empty: "No cell passes the filters and has a choice and a best time." };
    const curves = ["nxcore", "torch", ...state.labels].map((policy) => ({
      policy,
      factors: cells.map((c) => c.regret[policy] ?? c.regret.torch).sort((a, b) => a - b),
    }));
    const end = Math.min(Math.max(...curves.map((c) => c.factors.at(-1))), 64);
    const traces = curves.map(({ policy, factors }) => ({
      type: "scatter",
      mode: "lines",
      name: policy === "nxcore" ? "nxcore's choice" : policy === "torch" ? "always torch" : `always ${policy}`,
      x: [1, ...factors, end * 1.1],
      y: [0, ...factors.map((_, i) => (i + 1) / factors.length), 1],
      legendrank: policy === "nxcore" ? 1 : rank(policy),
      line: {
        shape: "hv",
        color: style(policy).color,
        width: policy === "nxcore" ? 3.2 : 1.8,
        dash:
          policy === "torch"
            ? "dash"
            : ["solid", "dot", "dashdot", "longdash"][Math.max(BACKENDS.indexOf(policy), 0) % 4],
      },
      hovertemplate: "%{y:.0%} of cells within %{x:.2f} × the best<extra>%{fullData.name}</extra>",
    }));
    const share = (factors, limit) => shareText(factors.filter((f) => f <= limit).length / factors.length);
    const at = (factors, q) => ratioText(factors[Math.min(factors.length - 1, Math.ceil(q * factors.length) - 1)]);
    return {
      traces: [...traces.slice(1), traces[0]],
      words: `Share of cells within a factor of the best time, ${plural(curves.length, "policy", "policies")} over ${plural(cells.length, "cell")}.`,
      layout: layout({
        xaxis: axis("times the best time", {
          type: "log",
          range: [-0.01, Math.log10(end)],
          tickvals: [1, 1.1, 1.5, 2, 4, 8, 16, 32, 64],
          ticktext: ["1", "1.1", "1.5", "2", "4", "8", "16", "32", "64"],
        }),
        yaxis: axis("share of cells", { tickformat: ".0%", range: [0, 1.02] }),
      }),
      columns: [
        col("Policy"),
        num("Median"),
        num("95th percentile"),
        num("Worst"),
        num("Within 2%"),
        num("Within 10%"),
        num("Within 2 ×"),
      ],
      rows: curves.map(({ policy, factors }, i) => [
        traces[i].name,
        at(factors, 0.5),
        at(factors, 0.95),
        ratioText(factors.at(-1)),
        share(factors, 1.02),
        share(factors, 1.1),
        share(factors, 2),
      ]),
    };
  },

  host(state, width) {
    if ((state.device.facts.type || "") === "cpu")
      return { empty: "On a CPU the host is the device, so there is only one time." };
    const smallest = unique(state.cells.map((c) => c.op)).map((op) => state.cells.find((c) => c.op === op && c.bytes));
    const points = measured({ ...state, cells: smallest.filter(Boolean) }, (row) => row.host_us && row.device_us);
    if (!points.length) return { empty: "No row passes the filters and has both a host and a device time." };
    const ops = unique(points.map((p) => p.cell.op)),
      traces = [];
    const limits = ops.map((op) => {
      const own = points.filter((p) => p.cell.op === op),
        base = own.find((p) => p.label === "torch") || own[0];
      return 2.2 * base.row.call_us;
    });
    ops.forEach((op, i) => {
      const own = points.filter((p) => p.cell.op === op).reverse();
      for (const [field, title, color, shape] of [
        ["device_us", "device", css("--accent"), ""],
        ["host_us", "host", css("--muted"), "/"],
      ]) {
        const cut = own.map((p) => p.row[field] > limits[i]);
        traces.push({
          type: "bar",
          orientation: "h",
          name: title,
          legendgroup: title,
          showlegend: i === 0,
          y: own.map((p) => p.label),
          x: own.map((p, k) => (cut[k] ? limits[i] : p.row[field])),
          customdata: own.map((p) => p.cell.id),
          hovertext: own.map(hover),
          hoverinfo: "text",
          text: own.map((p, k) => `${timeText(p.row[field])}${cut[k] ? " ▸" : ""}`),
          textposition: cut.map((c) => (c ? "inside" : "outside")),
          insidetextanchor: "end",
          textangle: 0,
          constraintext: "none",
          cliponaxis: false,
          textfont: { size: 10.5, color: cut.map((c) => (c ? css("--paper") : css("--muted"))) },
          marker: {
            color,
            pattern: {
              shape: own.map((_, k) => (cut[k] ? "" : shape)),
              fillmode: "overlay",
              size: 5,
              solidity: 0.4,
              fgcolor: css("--paper"),
              fgopacity: 1,
            },
            line: { width: 0 },
          },
          ...place(i),
        });
      }
    });
    const heading = (op) => {
      const { cell } = points.find((p) => p.cell.op === op);
      return `<b>${escaped(op)}</b><br><span style="font-size:12px">${escaped(`${cell.sample}, ${cell.dtype}`)}</span>`;
    };
    return {
      traces,
      words: `Host and device time of the smallest cell of ${plural(ops.length, "operator")}.`,
      layout: {
        ...panels(ops.map(heading), width, { height: 300, gutter: 88, titled: 2 }, (i) => [
          axis("", { range: [0, limits[i] * 1.12], nticks: 4, ticksuffix: " µs" }),
          axis("", { gridcolor: "rgba(0,0,0,0)" }),
        ]),
        barmode: "group",
        bargap: 0.22,
      },
      columns: [col("Cell"), col("Kernel"), num("Host"), num("Device"), num("Call")],
      rows: points.map(({ cell, row }) => [
        opener(cell),
        row.label,
        timeText(row.host_us),
        timeText(row.device_us),
        timeText(row.call_us),
      ]),
    };
  },

  jit(state) {
    const points = [...drawn(state)].filter(({ row }) => row.compile_s && row.break_even);
    if (!points.length)
      return { empty: "Compilation times were not recorded (field compile_s)." };
    const paid = points.filter((p) => p.row.break_even !== "never");
    return {
      traces: [...byLabel(paid)].map(([label, group]) =>
        scatter(
          group,
          label,
          (p) => p.cell.bytes,
          (p) => p.row.break_even,
        ),
      ),
      words: `Calls until compilation pays off, over size; in ${plural(points.length - paid.length, "row")} it never does.`,
      layout: layout({
        xaxis: log(
          "bytes that the operator must move",
          paid.map((p) => p.cell.bytes),
          bytesText,
        ),
        yaxis: log(
          "calls",
          paid.map((p) => p.row.break_even),
          plain,
        ),
      }),
      columns: [col("Cell"), col("Kernel"), num("Compiling"), num("Ratio to torch"), num("Calls to break even")],
      rows: points.map(({ cell, row }) => [
        opener(cell),
        row.label,
        `${row.compile_s.toPrecision(3)} s`,
        intervalText(row.ratio),
        row.break_even.toLocaleString("en"),
      ]),
    };
  },
});
