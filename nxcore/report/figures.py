"""Records -> all numbers of a page, as plain data: the same for HTML, Markdown and ``--json``.

The page's scripts filter and draw. They compute only numbers that depend on a filter, such as a mean over the
remaining cells, by the formulas of `spread`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nxcore.report.records import NUMBERS, Cell, Records, Row, is_native, is_number, ratio_of

NXCORE = "nxcore"
CALLED = "nxcore, called"  # the choice, including the time of a call through nxcore
COMPARED_ONLY = frozenset({"inductor", "jax", "compile", "eager", "flaggems"})  # run on request only
FAILED = frozenset({"WRONG", "BELOW_FLOOR"})  # the time of such a row is meaningless
TIE = 1.02  # as in nxcore.measure.decision, which needs torch
UNSURE = 0.2  # as in nxcore.measure.race


def joined(records: Records) -> dict[str, Any]:
    """Return the data of a page: runs, devices, cells with their rows, and summaries."""
    cells = [_cell(index, cell) for index, cell in enumerate(records.cells)]
    labels = _ordered(row["label"] for cell in cells for row in cell["rows"])
    names = list(dict.fromkeys(cell["device"] for cell in cells))
    devices = [_device(name, records, [c for c in cells if c["device"] == name]) for name in names]
    devices.sort(key=lambda d: -d["cells"])
    counts = Counter(cell["run"] for cell in cells)
    runs = [
        {k: v for k, v in r.head.items() if k != "record"}
        | {"file": r.file, "device": r.device, "cells": counts[i]}
        for i, r in enumerate(records.runs)
    ]
    return {
        "devices": devices,
        "labels": labels,
        "cells": cells,
        "runs": runs,
        "notes": records.notes,
        "others": records.others,
        "replaced": records.replaced,
    }


def spread(ratios: Sequence[float]) -> dict[str, float] | None:
    """Return geometric mean, fifth percentile, minimum and the number below one; None if empty."""
    if not ratios:
        return None
    ordered = sorted(ratios)
    return {
        "cells": len(ordered),
        "mean": math.exp(math.fsum(map(math.log, ordered)) / len(ordered)),
        "p5": ordered[math.ceil(len(ordered) * 0.05) - 1],
        "minimum": ordered[0],
        "slower": sum(r < 1 for r in ordered),
    }


def summary(cells: Sequence[Mapping[str, Any]], labels: Iterable[str]) -> list[dict[str, Any]]:
    """Return the spread of nxcore's choice, and of each backend where it ran; one row for each policy."""
    policies = {
        NXCORE: [c["ratio"][0] for c in cells if c["ratio"]],
        CALLED: [c["ratio_called"][0] for c in cells if c["ratio_called"]],
    }
    for label in labels:
        policies[label] = [r["ratio"][0] for c in cells if (r := row_of(c, label)) and _counts(r)]
    return [{"policy": p, **found} for p, ratios in policies.items() if (found := spread(ratios))]


def support(cells: Sequence[Mapping[str, Any]], labels: Iterable[str]) -> list[dict[str, Any]]:
    """Return a row for each operator and backend: the cells that ran, declined or failed, and the reasons."""
    found = []
    for op in dict.fromkeys(c["op"] for c in cells):
        for label in labels:
            rows = [r for c in cells if c["op"] == op and (r := row_of(c, label))]
            if not rows:
                continue
            declined = [r for r in rows if r.get("verdict") == "DECLINED"]
            failed = [r for r in rows if r.get("verdict") in FAILED]
            reasons = Counter(r.get("reason") or r["verdict"] for r in declined + failed)
            found.append(
                {
                    "op": op,
                    "label": label,
                    "ran": len(rows) - len(declined) - len(failed),
                    "declined": len(declined),
                    "failed": len(failed),
                    "reasons": dict(reasons.most_common()),
                }
            )
    return found


def row_of(cell: Mapping[str, Any], label: str) -> dict[str, Any] | None:
    """Return the row of a kernel in a cell."""
    return next((row for row in cell["rows"] if row["label"] == label), None)


def _cell(index: int, cell: Cell) -> dict[str, Any]:
    rows = [r for r in cell.rows if r.record == "row"]
    torch = _torch(rows)
    baseline = torch.get("call_us") if torch else None
    choice = next((r for r in cell.rows if r.record == "choice"), None)
    sound = [r for r in rows if r.verdict not in FAILED]
    won = next((r for r in sound if choice and r.label == choice.more.get("chosen")), None)
    won = won or _chosen(sound) or torch
    chosen, took = (won.label, won.get("call_us")) if won else (None, None)
    ratio = won.ratio if won else None
    times = {r.label: r.numbers["call_us"] for r in sound if "call_us" in r.numbers}
    best = min(times.values(), default=None)
    regret = {}
    if best and baseline and took:
        # Where a backend can't run a cell, torch's time counts, as in a call.
        policies = {NXCORE: took, "torch": baseline}
        policies |= {r.label: times.get(r.label, baseline) for r in rows if not r.native}
        regret = {policy: round(us / best, 4) for policy, us in policies.items()}
    return {
        "id": index,
        "device": cell.device,
        "op": cell.op,
        "sample": cell.sample,
        "dtype": cell.dtype,
        "run": cell.run,
        **cell.numbers,
        "torch": torch.label if torch else None,
        "torch_us": baseline,
        "chosen": chosen,
        "left_to_torch": bool(won and won.native),
        "chosen_us": took,
        "ratio": ratio,
        "called_us": choice.get("call_us") if choice else None,
        "ratio_called": ratio_of(choice.more.get("ratio_called")) if choice else None,
        "regret": regret,
        "rows": [_row(row, cell, baseline) for row in rows],
    }


def _torch(rows: Sequence[Row]) -> Row | None:
    """Return the row of torch at its best, the baseline of every ratio."""
    native = [r for r in rows if r.native and r.get("call_us")]
    exact = [r for r in native if r.ratio and r.ratio == (1.0, 1.0, 1.0)]
    return min(exact or native, key=lambda r: r.numbers["call_us"], default=None)


def _chosen(rows: Sequence[Row]) -> Row | None:
    """Return the winner by the rule on these timings, for a record without a choice."""
    won = [r for r in rows if r.verdict == "FAST" and r.get("call_us") and r.ratio and not compared_only(r)]
    fastest = min((r.numbers["call_us"] for r in won), default=0.0)
    ties = [r for r in won if r.numbers["call_us"] <= fastest * TIE]
    return min(ties, key=lambda r: r.numbers.get("error", math.inf), default=None)


def compared_only(row: Row) -> bool:
    """Return whether a kernel is measured for comparison only, and runs on request only."""
    return row.label in COMPARED_ONLY


def _counts(row: Mapping[str, Any]) -> bool:
    return bool(row.get("ratio")) and row.get("verdict") not in FAILED


def _row(row: Row, cell: Cell, baseline: float | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "label": row.label,
        "verdict": row.verdict,
        "reason": row.reason,
        "native": row.native,
        "compared_only": compared_only(row),
        "ratio": row.ratio,
        **{name: row.get(name) for name in NUMBERS},
        "more": dict(row.more),
    }
    device, call = row.get("device_us"), row.get("call_us")
    size, floor = cell.numbers.get("bytes"), cell.numbers.get("floor_us")
    if call and row.ratio:  # the ratio's interval, applied to the time
        median, low, high = row.ratio
        found["interval_us"] = [round(call * median / high, 3), round(call * median / low, 3)]
    if device and size and found["gb_per_s"] is None:
        found["gb_per_s"] = round(size / device * 1e-3, 1)
    if device and floor and found["share_of_floor"] is None:
        found["share_of_floor"] = round(floor / device, 4)
    operations = cell.numbers.get("flops") or (row.get("tflop_per_s") or 0.0) * (device or 0.0) * 1e6
    if device and size and operations:
        found["intensity"] = operations / size
        found["tflop_per_s"] = found["tflop_per_s"] or operations / device * 1e-6
    compiling = row.get("compile_s")
    if compiling and call and baseline:
        gained = baseline - call
        found["break_even"] = math.ceil(compiling * 1e6 / gained) if gained > 0 else "never"
    return {k: v for k, v in found.items() if v is not None and v is not False and v not in ("", {})}


def _device(name: str, records: Records, cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the facts of a device from its latest run, and the backends that never ran on it."""
    own = sorted((r for r in records.runs if r.device == name), key=lambda r: r.date)
    head = own[-1].head if own else {}
    versions: dict[str, list[str]] = {}
    for run in own:
        given = run.head.get("versions")
        for package, version in (given if isinstance(given, dict) else {}).items():
            versions.setdefault(str(package), [])
            if str(version) not in versions[str(package)]:
                versions[str(package)].append(str(version))
    rows = [row for cell in cells for row in cell["rows"]]
    labels = _ordered(row["label"] for row in rows)
    ran = {row["label"] for row in rows if "call_us" in row}
    absent = {
        label: dict(Counter(r.get("reason", "no reason recorded") for r in rows if r["label"] == label))
        for label in labels
        if label not in ran
    }
    for run in own:  # a backend that can't run may have no rows
        said = run.head.get("absent")
        for backend, why in (said if isinstance(said, dict) else {}).items():
            if backend not in ran:
                absent.setdefault(str(backend), {str(why): 0})
    failures = [
        {"cell": c["id"], "label": r["label"], "verdict": r["verdict"], "reason": r.get("reason", "")}
        for c in cells
        for r in c["rows"]
        if r.get("verdict") in FAILED
    ]
    return {
        "name": name,
        "cells": len(cells),
        "facts": head.get("device") if isinstance(head.get("device"), dict) else {},
        "ceilings": _ceilings(head.get("ceilings")),
        "unsure": _unsure(head.get("ceilings"), rows),
        "versions": versions,
        "dates": sorted({r.date for r in own if r.date}),
        "methods": sorted({str(r.head["method"]) for r in own if r.head.get("method")}),
        "absent": absent,
        "failures": failures,
        "summary": summary(cells, [n for n in labels if not is_native(n)]),
        "support": support(cells, labels),
    }


def _ceilings(given: Any) -> dict[str, float]:
    """Return launch time, throughput and memory bandwidth, from which floors are computed."""
    if not isinstance(given, dict):
        return {}
    pairs = [p for p in given.get("bandwidths") or () if isinstance(p, list) and len(p) == 2]
    rates = [rate for _, rate in pairs[-2:] if is_number(rate)]
    found = {name: given[name] for name in ("t0_us", "flops") if is_number(given.get(name))}
    return found | ({"cold": max(rates)} if rates else {})


def _unsure(ceilings: Any, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return why the ceilings, and so the shares of floors, are uncertain; else ""."""
    own = (row for row in rows if row.get("native"))
    beaten = sum(bool(row.get("more", {}).get("floor_unsure")) for row in own)
    if beaten:
        return f"torch exceeded them in {beaten} rows"
    noise: Any = ceilings.get("noise") if isinstance(ceilings, dict) else None
    return f"blocks differed by {noise:.0%}" if is_number(noise) and noise > UNSURE else ""


def _ordered(labels: Iterable[str]) -> list[str]:
    """Return the distinct labels: torch's own first, then by name, those for comparison last."""
    return sorted(set(labels), key=lambda n: (not is_native(n), n in COMPARED_ONLY, n))
