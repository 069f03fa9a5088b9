"""A small record, as `nxcore bench --record` writes them: two operators, three sizes, every kind of row."""

import json
from pathlib import Path
from typing import Any

SIZES = {"small": 12_288, "medium": 4_000_000, "large": 800_000_000}
HEAD = {
    "record": "head",
    "device": {
        "type": "cuda",
        "name": "Invented 9000",
        "capability": "9.0",
        "units": 8,
        "memory": 2**34,
        "l2": 2**22,
    },
    "ceilings": {"t0_us": 2.0, "bandwidths": [[16384, 2e10], [2**28, 4e12], [2**30, 3.9e12]], "flops": 5e13},
    "versions": {"torch": "2.11.0", "triton": "3.6.0"},
    "date": "2026-11-21T10:00:00+00:00",
    "method": "cold",
}


def row(label: str = "torch", times: float | None = 1.0, /, **more: Any) -> dict[str, Any]:
    """Return one row; its time is a hundred microseconds over the ratio, its interval 2% wide."""
    found: dict[str, Any] = {
        "record": "row",
        "op": "add",
        "sample": "small",
        "dtype": "float32",
        "label": label,
    }
    found |= {"bytes": 12_288, "floor_us": 2.0, "noise": 0.01, "error": 1e-7}
    if times is None:
        return found | {"verdict": "DECLINED", "reason": "needs another device"} | more
    us = 100 / times
    around = [times, times * 0.98, times * 1.02] if times != 1.0 or label != "torch" else [1.0, 1.0, 1.0]
    verdict = "BASE" if label == "torch" else "FAST" if times > 1.05 else "SLOW"
    found |= {
        "verdict": verdict,
        "device_us": us / 2,
        "host_us": us,
        "call_us": us,
        "ratio": around,
        "blocks": 20,
    }
    return found | more


def record() -> list[dict[str, Any]]:
    """Return a whole run: rows that win, lose, can't be told, decline and are wrong."""
    lines: list[dict[str, Any]] = [HEAD]
    for op in ("add", "sum"):
        for dtype in ("float32", "bfloat16"):
            for k, (sample, size) in enumerate(SIZES.items()):
                cell = {
                    "op": op,
                    "sample": sample,
                    "dtype": dtype,
                    "bytes": size,
                    "floor_us": 2.0 + size / 4e6,
                }
                lines += [
                    row(**cell),
                    row("triton", (0.5, 2.0, 8.0)[k] * (1.5 if op == "sum" else 1), compile_s=0.5, **cell),
                    row(
                        "cuda",
                        1.1,
                        verdict="AMBG",
                        tflop_per_s=1.0,
                        device_blocks_us=[1.0] * 20,
                        clocks={"sm_mhz": 1980},
                        **cell,
                    ),
                    row("numba", None, reason="needs CPU tensors, got cuda <b>here</b>", **cell),
                    row("jax", 1.5, **cell)
                    if sample != "large"
                    else row("jax", 9.0, verdict="WRONG", **cell),
                    row("torch again", 1.01, record="again", verdict="BASE", **cell),
                ]
    return lines


def choice(chosen: str, ratio: float, called: float, **more: Any) -> dict[str, Any]:
    """Return the row of a choice, with its ratio before and with the cost of a call through nxcore."""
    found = row("nxcore", ratio, record="choice", chosen=chosen, call_us=100 / called, **more)
    return found | {"ratio_called": [called, called * 0.98, called * 1.02]}


def write(path: Path, *lines: Any) -> Path:
    """Write lines to a file: text as it is, all else as JSON."""
    path.write_text(
        "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), "utf-8"
    )
    return path
