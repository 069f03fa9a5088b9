// The plots. Each returns traces, a layout, a description and its table; or the reason why there is no plot.

const FIGURES = {
  time(state, width) {
    const points = measured(state, () => true).filter(({ cell }) => cell.bytes);
    if (!points.length) return { empty: "No cell passes the filters and has a time and a size." };
    const ops = unique(points.map((p) => p.cell.op)),
      seen = new Set(),
      traces = [];
    ops.forEach((op, i) => {
      const own = points.filter((p) => p.cell.op === op);
      const least = new Map(); // the measured launch time differs between runs
      for (const { cell } of own)
        if (cell.floor_us) least.set(cell.bytes, Math.min(cell.floor_us, least.get(cell.bytes) ?? Infinity));
      const floor = [...least].sort((a, b) => a[0] - b[0]);
      traces.push({
        type: "scatter",
        mode: "lines",
        name: "floor",
        legendgroup: "floor",
        showlegend: !seen.has("floor"),
        x: floor.map((f) => f[0]),
        y: floor.map((f) => f[1]),
        legendrank: 1,
        line: { color: css("--muted"), width: 1.4, dash: "dot" },
        hoverinfo: "skip",
        ...place(i),
      });
      seen.add("floor");
      for (const [label, group] of byLabel(own)) {
        const bars = group.map((p) => p.row.interval_us || [p.row.call_us, p.row.call_us]);
        traces.push(
          scatter(
            group,
            label,
            (p) => p.cell.bytes,
            (p) => p.row.call_us,
            {
              showlegend: !seen.has(label),
              ...place(i),
              error_y: {
                type: "data",
                symmetric: false,
                array: bars.map((b, k) => Math.max(b[1] - group[k].row.call_us, 0)),
                arrayminus: bars.map((b, k) => Math.max(group[k].row.call_us - b[0], 0)),
                thickness: 1,
                width: 0,
                color: style(label).color,
              },
            },
          ),
        );
        seen.add(label);
      }
      const rings = own.filter((p) => p.row.label === p.cell.chosen);
      traces.push({
        type: "scatter",
        mode: "markers",
        name: "nxcore's choice",
        legendgroup: "choice",
        showlegend: !seen.has("choice"),
        x: rings.map((p) => p.cell.bytes),
        y: rings.map((p) => p.row.call_us),
        customdata: rings.map((p) => p.cell.id),
        hoverinfo: "skip",
        legendrank: 2,
        marker: { symbol: "circle-open", size: 15, color: css("--ink"), line: { width: 1.3 } },
        ...place(i),
      });
      seen.add("choice");
    });
    return {
      traces,
      layout: panels(
        ops.map((op) => `<b>${escaped(op)}</b>`),
        width,
        { height: 290, gutter: 58 },
        (i) => {
          const own = points.filter((p) => p.cell.op === ops[i]);
          return [
            log(
              "",
              own.map((p) => p.cell.bytes),
              bytesText,
            ),
            log(
              "",
              own.flatMap((p) => [p.row.call_us, p.cell.floor_us || p.row.call_us]),
              timeTick,
            ),
          ];
        },
      ),
      words: `Time of a call over bytes moved, logarithmic, ${plural(ops.length, "operator")}, ${plural(points.length, "measurement")}.`,
      columns: [
        col("Cell"),
        col("Kernel"),
        num("Bytes"),
        num("Floor"),
        num("Call"),
        num("Interval"),
        num("Device"),
        num("Host"),
        num("Of floor"),
      ],
      rows: points.map(({ cell, row }) => [
        opener(cell),
        row.label,
        bytesText(cell.bytes),
        timeText(cell.floor_us),
        timeText(row.call_us),
        row.interval_us ? row.interval_us.map(timeText).join(" to ") : "–",
        timeText(row.device_us),
        timeText(row.host_us),
        shareText(row.share_of_floor),
      ]),
    };
  },

  error(state) {
    const points = measured(state, (row) => row.error !== undefined && row.ratio);
    if (!points.length) return { empty: "No row passes the filters and has both an error and a ratio to torch." };
    const least = Math.min(...points.map((p) => p.row.error).filter((e) => e > 0), 1e-3);
    const edge = 10 ** (Math.floor(Math.log10(least)) - 0.5),
      exact = points.some((p) => p.row.error === 0);
    const traces = [...byLabel(points)].map(([label, group]) =>
      scatter(
        group,
        label,
        (p) => p.row.error || edge,
        (p) => p.row.ratio[0],
      ),
    );
    const across = log(
      "relative error against float64",
      points.map((p) => p.row.error || edge),
      (v) => `10<sup>${Math.round(Math.log10(v))}</sup>`,
    );
    if (exact) {
      const kept = across.tickvals.filter(
        (v) => v >= least / 2 && Number.isInteger(Math.round(Math.log10(v) * 1e6) / 1e6),
      );
      Object.assign(across, {
        tickvals: [edge, ...kept],
        ticktext: ["exact", ...kept.map((v) => `10<sup>${Math.round(Math.log10(v))}</sup>`)],
      });
    }
    return {
      traces,
      words: `Ratio to torch over relative error, ${plural(points.length, "measurement")}.`,
      layout: layout({
        shapes: [
          { type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { color: css("--muted"), width: 1 } },
        ],
        xaxis: across,
        yaxis: log(
          "times as fast as torch",
          points.map((p) => p.row.ratio[0]),
          plain,
        ),
      }),
      columns: [col("Cell"), col("Kernel"), num("Error"), num("Ratio to torch"), col("Verdict")],
      rows: points.map(({ cell, row }) => [
        opener(cell),
        row.label,
        errorText(row.error),
        intervalText(row.ratio),
        row.verdict,
      ]),
    };
  },

  roofline(state) {
    const points = measured(state, (row) => row.gb_per_s && row.device_us).filter(({ cell }) => cell.bytes);
    const cold = state.device.ceilings.cold,
      start = state.device.ceilings.t0_us;
    if (!points.length) return { empty: "No row passes the filters and has a bandwidth." };
    const sizes = points.map((p) => p.cell.bytes),
      low = Math.log10(Math.min(...sizes)) - 0.2,
      high = Math.log10(Math.max(...sizes)) + 0.2;
    const line = Array.from({ length: 60 }, (_, i) => 10 ** (low + ((high - low) * i) / 59));
    const traces = [...byLabel(points)].map(([label, group]) =>
      scatter(
        group,
        label,
        (p) => p.cell.bytes,
        (p) => p.row.gb_per_s,
      ),
    );
    if (cold && start)
      traces.unshift({
        type: "scatter",
        mode: "lines",
        name: "roof: an empty call, then copying",
        x: line,
        y: line.map((b) => (b / (start + (1e6 * b) / cold)) * 1e-3),
        line: { color: css("--ink"), width: 1.5 },
        hoverinfo: "skip",
      });
    if (cold)
      traces.unshift({
        type: "scatter",
        mode: "lines",
        name: "copying, from memory",
        x: [line[0], line.at(-1)],
        y: [cold * 1e-9, cold * 1e-9],
        line: { color: css("--muted"), width: 1.2, dash: "dash" },
        hoverinfo: "skip",
      });
    return {
      traces,
      words: `Bytes a second over bytes moved, with the measured roof, ${plural(points.length, "measurement")}.`,
      layout: layout({
        xaxis: log("bytes that the operator must move", sizes, bytesText),
        yaxis: log(
          "GB/s, by device time",
          [...points.map((p) => p.row.gb_per_s), ...(cold ? [cold * 1e-9] : [])],
          plain,
        ),
      }),
      columns: [
        col("Cell"),
        col("Kernel"),
        num("Bytes"),
        num("GB/s"),
        num("Of floor"),
        num("TFLOP/s"),
        num("FLOP a byte"),
      ],
      rows: points.map(({ cell, row }) => [
        opener(cell),
        row.label,
        bytesText(cell.bytes),
        row.gb_per_s,
        shareText(row.share_of_floor),
        row.tflop_per_s ? row.tflop_per_s.toPrecision(3) : null,
        row.intensity ? row.intensity.toPrecision(3) : null,
      ]),
    };
  },

  intensity(state) {
    const points = measured(state, (row) => row.intensity && row.tflop_per_s);
    if (!points.length) return { skip: true };
    const cold = state.device.ceilings.cold,
      peak = state.device.ceilings.flops;
    const all = points.map((p) => p.row.intensity),
      low = Math.log10(Math.min(...all)) - 0.3,
      high = Math.log10(Math.max(...all, peak && cold ? peak / cold : 0)) + 0.5;
    const line = Array.from({ length: 60 }, (_, i) => 10 ** (low + ((high - low) * i) / 59));
    const traces = [...byLabel(points)].map(([label, group]) =>
      scatter(
        group,
        label,
        (p) => p.row.intensity,
        (p) => p.row.tflop_per_s,
      ),
    );
    if (cold && peak)
      traces.unshift({
        type: "scatter",
        mode: "lines",
        name: "roof",
        x: line,
        y: line.map((i) => Math.min(peak, i * cold) * 1e-12),
        line: { color: css("--ink"), width: 1.5 },
        hoverinfo: "skip",
      });
    return {
      traces,
      words: `Operations a second over operations a byte, with the roof, ${plural(points.length, "measurement")}.`,
      layout: layout({
        xaxis: log("operations a byte", [10 ** low, 10 ** high], plain),
        yaxis: log(
          "TFLOP/s, by device time",
          [...points.map((p) => p.row.tflop_per_s), ...(peak ? [peak * 1e-12] : [])],
          plain,
        ),
      }),
      columns: [col("Cell"), col("Kernel"), num("FLOP a byte"), num("TFLOP/s")],
      rows: points.map(({ cell, row }) => [
        opener(cell),
        row.label,
        row.intensity.toPrecision(3),
        row.tflop_per_s.toPrecision(3),
      ]),
    };
  },
};
