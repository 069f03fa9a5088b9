"""Joined records -> a Markdown page: the figures as tables, for a terminal or a review."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nxcore.report.figures import CALLED, NXCORE, row_of, spread
from nxcore.report.page import title

NAMES = {NXCORE: "**nxcore's choice**", CALLED: "nxcore's choice, called through nxcore"}


def markdown(data: Mapping[str, Any]) -> str:
    """Return the page.

    Parameters
    ----------
    data : mapping
        The data that `figures.joined` returns.
    """
    lines = [f"# {title(dict(data))}", ""]
    for device in data["devices"]:
        cells = [c for c in data["cells"] if c["device"] == device["name"]]
        lines += _device(device, cells)
    lines += ["## Runs", ""]
    lines += _table(
        ("file", "device", "began", "cells shown"),
        [(r["file"], r["device"], r.get("date", ""), str(r["cells"])) for r in data["runs"]],
    )
    if data["replaced"]:
        lines += [
            f"{data['replaced']} earlier measurements of the same cells are replaced by later ones.",
            "",
        ]
    if data["notes"]:
        lines += ["## Lines that could not be read", "", *(f"- {_text(n)}" for n in data["notes"]), ""]
    return "\n".join(lines)


def _device(device: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        *_heading(device),
        *_policies(device, cells),
        *_failures(device, cells),
        *_operators(cells),
        *_cells(cells),
        *_backends(device),
    ]


def _heading(device: Mapping[str, Any]) -> list[str]:
    lines = [
        f"## {_text(device['name'])}",
        "",
        f"Ceilings: {_ceilings(device['ceilings'])}.",
        f"Versions: {_versions(device['versions'])}.",
    ]
    if device["unsure"]:
        lines.append(
            f"Uncertain ceilings, since other work ran during their measurement: {device['unsure']}."
        )
    return [*lines, *(f"Method: {m}." for m in device["methods"]), ""]


def _policies(device: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> list[str]:
    left = f"{sum(c['left_to_torch'] for c in cells)} of {len(cells)} cells"
    rows = [
        (
            NAMES.get(s["policy"], f"always {s['policy']}"),
            str(s["cells"]),
            *(f"{s[k]:.2f}" for k in ("mean", "p5", "minimum")),
            str(s["slower"]),
        )
        for s in device["summary"]
    ]
    return [
        "### Times as fast as torch at its best",
        "",
        *_table(
            ("policy", "cells", "geometric mean", "fifth percentile", "worst cell", "slower than torch"), rows
        ),
        f"nxcore's choice is the winner by its rule on these timings; {left} are left to torch.",
        "A backend's row counts the cells where it ran.",
        "",
    ]


def _failures(device: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> list[str]:
    if not device["failures"]:
        return []
    by_id = {c["id"]: c for c in cells}
    rows = [
        _text(f"- {f['label']} {f['verdict']}, {_cell(by_id[f['cell']])}: {f['reason']}")
        for f in device["failures"]
    ]
    return ["Invalid rows, which are excluded from all figures:", "", *rows, ""]


def _operators(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = []
    for op in dict.fromkeys(c["op"] for c in cells):
        found = spread([c["ratio"][0] for c in cells if c["op"] == op and c["ratio"]])
        if found:
            rows.append((op, str(found["cells"]), *(f"{found[k]:.2f}" for k in ("mean", "p5", "minimum"))))
    head = ("operator", "cells", "geometric mean", "fifth percentile", "worst cell")
    return ["### By operator", "", *_table(head, rows)]


def _cells(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    times = ("torch, us", "choice", "its time, us", "ratio", "of floor", "error")
    head = ("operator", "sample", "type", "bytes", *times)
    return ["### Cells", "", *_table(head, [_row(c) for c in cells])]


def _backends(device: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            s["op"],
            s["label"],
            *(str(s[k] or "") for k in ("ran", "declined", "failed")),
            _reasons(s["reasons"]),
        )
        for s in device["support"]
        if not s["label"].startswith("torch") and s["label"] not in device["absent"]
    ]
    head = ("operator", "backend", "ran", "declined", "wrong", "why")
    lines = ["### Backends by cell", "", *_table(head, rows)]
    if device["absent"]:
        absent = (
            f"- {_text(label)}: {_text(_reasons(reasons))}" for label, reasons in device["absent"].items()
        )
        lines += ["Backends that never ran:", "", *absent, ""]
    return lines


def _row(cell: Mapping[str, Any]) -> tuple[str, ...]:
    chosen = row_of(cell, cell["chosen"] or "") or {}
    ratio = cell["ratio"]
    return (
        cell["op"],
        cell["sample"],
        cell["dtype"],
        f"{int(cell['bytes']):,}" if "bytes" in cell else "",
        _number(cell["torch_us"], ",.1f"),
        cell["chosen"] or "",
        _number(cell["chosen_us"], ",.1f"),
        f"{ratio[0]:.2f} [{ratio[1]:.2f}, {ratio[2]:.2f}]" if ratio else "",
        _number(chosen.get("share_of_floor"), ".0%"),
        _number(chosen.get("error"), ".1e"),
    )


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _cell(cell: Mapping[str, Any]) -> str:
    return f"{cell['op']}, {cell['sample']}, {cell['dtype']}"


def _ceilings(ceilings: Mapping[str, Any]) -> str:
    found = []
    if ceilings.get("cold"):
        found.append(f"{ceilings['cold'] / 1e9:,.0f} GB/s copying from memory")
    if ceilings.get("flops"):
        found.append(f"{ceilings['flops'] / 1e12:,.2f} TFLOP/s")
    if ceilings.get("t0_us"):
        found.append(f"{ceilings['t0_us']:.2f} us for an empty call")
    return ", ".join(found) or "not recorded"


def _versions(versions: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{k} {' and '.join(v)}" for k, v in versions.items()) or "not recorded"


def _reasons(reasons: Mapping[str, int]) -> str:
    return "; ".join(f"{why} ({n})" if n else why for why, n in reasons.items())


def _text(value: str) -> str:
    """Return text with the characters of table borders and elements escaped."""
    return str(value).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    body = [f"| {' | '.join(map(_text, row))} |" for row in rows]
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *body, ""]
