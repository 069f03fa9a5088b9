"""The winners of eager calls and of captured CUDA graphs: small problems, on a CUDA device.

    python benchmarks/regimes.py [--output regimes.json]

The time of an eager call is the larger of host and device time; the time of a replay is the device's. Each
problem is measured as at a first call. If the two winners differ, both are measured again in both ways by
another method: CALLS calls back to back by wall clock, and a replayed graph of CALLS calls. This shows wrong
winners.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nxcore.measure.race import Effort
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.device import describe
from nxcore.store.encoding import encoded

CALLS, ROUNDS = 200, 15
EFFORT = Effort(looks=(12, 20, 40), warm_s=0.15, budget_s=10.0)


def _randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def cases() -> dict[str, tuple[str, tuple[Any, ...]]]:
    """Return name -> operator and arguments. All are small, because large problems have one winner."""
    found: dict[str, tuple[str, tuple[Any, ...]]] = {}
    for n in (1 << 10, 1 << 14, 1 << 17, 1 << 20):
        found[f"add of {n:,}"] = "add", (_randn(n), _randn(n))
    found["add of (64, 1) and (1, 1024)"] = "add", (_randn(64, 1), _randn(1, 1024))
    for shape, dim in (((64, 128), 1), ((512, 512), 0), ((32, 16, 16, 16), (0, 2, 3)), ((1 << 16,), None)):
        found[f"sum of {shape} over {dim}"] = "sum", (_randn(*shape), dim)
    for k, shape in ((2, (16, 8, 8)), (8, (8, 16, 16, 16)), (8, (64, 16, 32, 32))):
        xs = tuple(_randn(*shape) for _ in range(k))
        found[f"softmax_sum of {k} x {shape}"] = "softmax_sum", (xs, _randn(k))
    for shape in ((2, 8, 16, 16), (16, 32, 32, 32)):
        found[f"max_pool2d of {shape}"] = "max_pool2d", (_randn(*shape), 3, 1, 1)
        found[f"avg_pool2d of {shape}"] = "avg_pool2d", (_randn(*shape), 3, 1, 1)
        channels = shape[1]
        found[f"depthwise_conv2d of {shape}"] = (
            "depthwise_conv2d",
            (_randn(*shape), _randn(channels, 1, 3, 3), 1, 1),
        )
    return found


def main() -> None:
    """Measure the cases, print a line each, and the cross-check where the winners differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, help="write the results to this file, as JSON")
    output = parser.parse_args().output
    session = Session(Settings(policy="measure"), effort=EFFORT)
    rows = [_row(session, name, op, args) for name, (op, args) in cases().items()]
    differ = [r for r in rows if r["eager"] != r["captured"]]
    print(f"{len(differ)} of {len(rows)} problems have two winners")
    if output:
        facts = describe("cuda").to_dict() | {"torch": str(torch.__version__)}
        output.write_text(encoded({"device": facts, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def _row(session: Session, name: str, op: str, args: tuple[Any, ...]) -> dict[str, Any]:
    before = set(session.chooser.choices)
    decision = session.explain(op, *args).decision
    (key,) = set(session.chooser.choices) - before
    choice = session.chooser.choices[key]
    captured = decision.captured.chosen if decision.captured else decision.chosen
    times = {
        c.label: {"host_us": statistics.median(c.timing.host_us), "device_us": c.timing.median("captured")}
        for c in decision.candidates
        if c.timing
    }
    shown = ", ".join(f"{n} {t['host_us']:.1f}/{t['device_us']:.1f}" for n, t in times.items())
    print(f"{name}: eager {decision.chosen}, captured {captured} (host/device us: {shown})", flush=True)
    row: dict[str, Any] = {
        "problem": name,
        "eager": decision.chosen,
        "captured": captured,
        "eager_reason": decision.reason,
        "captured_reason": decision.captured.reason if decision.captured else "",
        "times": times,
    }
    if choice.captured is None:
        return row
    bound = session.op(op).spec.bind(*args)
    calls = {
        decision.chosen: functools.partial(choice.call, *bound),
        captured: functools.partial(choice.captured.call, *bound),
    }
    row["again"] = {label: {"eager_us": [], "replay_us": []} for label in calls}
    safe = {decision.chosen: choice.kernel.graph_safe, captured: True}
    graphs = {label: _graph(call) for label, call in calls.items() if safe[label]}
    for _ in range(ROUNDS):  # in turns, so that drift hits both
        for label, call in calls.items():
            row["again"][label]["eager_us"].append(_wall_us(lambda call=call: [call() for _ in range(CALLS)]))
            if label in graphs:
                row["again"][label]["replay_us"].append(_wall_us(graphs[label].replay))
    for label, found in row["again"].items():
        ways = ", ".join(f"{way} {statistics.median(us):.2f}" for way, us in found.items() if us)
        print(f"  again, {label}: {ways}")
    return row


def _graph(call: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    return graph


def _wall_us(run: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter_ns()
    run()
    torch.cuda.synchronize()
    return (time.perf_counter_ns() - started) / CALLS * 1e-3


if __name__ == "__main__":
    main()
