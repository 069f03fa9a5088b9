"""Operators of models' modules, forward and backward: who wins on the device, and by the clock.

    python benchmarks/walls.py [--only REGEX] [--seconds N] [--output FILE] [--device cpu] [MODEL[:LINE] ...]

For each problem of ``benchmarks/workloads`` in bfloat16, three sides take turns: torch's own call with its
autograd, the kernels that are on record as the winners of both halves, and the operator as it is served.
*Device* is the device's time of both ways: calls wait behind a pause, so that the host is ahead. *Wall* is
the clock's time of calls in a row that are waited for at the end. Figures are torch's time over the side's.
After its name, the line of a model's file may stand that its problems begin at, counted from 0.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nxcore.store.encoding import encoded

# As set: what is on record is timed.
os.environ.setdefault("NXCORE_POLICY", "estimate")  # nothing is measured beside this

import torch
from torch import Tensor

import nxcore
from nxcore.call.operator import Operator
from nxcore.errors import FOREIGN, present
from nxcore.interop import native
from nxcore.interop.autograd import Differentiable
from nxcore.session import default
from nxcore.spec.device import describe
from nxcore.spec.problem import Problem, leaves, tensors_of
from nxcore.spec.spec import OpSpec
from nxcore.store import problems

FOLDER = Path(__file__).parent / "workloads"
MODELS = ("resnet50", "efficientnet_b0", "convnext_tiny")
ROUNDS, ROUND_S = 7, 0.006
AHEAD, PAUSE = 12, 6_000_000
"""Calls of which the device's time is taken, and the cycles that it waits before them: about 3 ms."""

WINS = 1.03
"""The least ratio on the device that counts as won."""

NOISE = 0.98
"""The least ratio by the clock that doesn't count as lost: torch's own call beside itself has it."""

ADMITTED = 4
"""Calls after which the plan of a call is kept."""

Call = Callable[..., Any]


def differentiable(name: str) -> OpSpec | None:
    """Return the operator of which ``name`` is the forward half, if it has a gradient."""
    specs = default().registry.ops
    outer = (s for s in specs.values() if s.gradient and (s.gradient.forward or s.name) == name)
    return next(outer, None)


def chosen(problem: Problem) -> tuple[str, str]:
    """Return the label and backend of the winner on record."""
    found = default().chooser.choose(problem, problems.arguments(problem))
    return found.decision.chosen, "torch" if found.alone else found.backend.name


def by_kernels(spec: OpSpec, args: tuple[Any, ...], forward: str, backward: str) -> Call:
    """Return the call with gradients whose halves are pinned to backends, joined as a served pair is."""
    gradient = present(spec.gradient, "gradient")
    inner = nxcore.op(gradient.forward or spec.name, backend=forward)
    back = nxcore.op(gradient.op, backend=backward)
    call = planned(inner, args[: len(inner.spec.params)])
    made = Differentiable(spec, Problem.of(spec, args).args, gradient, call, back, back.spec.reference)
    extension = native.of(nxcore.op(spec.name))
    return made if extension is None else made.compiled(extension)


def planned(op: Operator, args: tuple[Any, ...]) -> Call:
    """Return what a pinned operator calls for such arguments; it may be given more, which it doesn't have."""
    positional = sum(not p.keyword for p in op.spec.params)
    named = {p.name: value for p, value in zip(op.spec.params, args, strict=True) if p.keyword}
    find: Callable[..., Any] = getattr(op, "find", lambda *_: None)
    with torch.no_grad():
        for _ in range(ADMITTED):
            op(*args[:positional], **named)
        found = find(*args)
    if found is not None:
        call: Call = found[2]
        return call
    return lambda *given: op.run(*given[: len(args)])


def served(spec: OpSpec) -> Call:
    """Return the operator as modules call it: arguments by name have their defaults."""
    op, positional = nxcore.op(spec.name), sum(not p.keyword for p in spec.params)
    return lambda *args: op(*args[:positional])


def stepped(call: Call, args: tuple[Any, ...], grad: Tensor) -> Callable[[], None]:
    """Return a call of both ways."""
    wanted = [t for t in tensors_of(args) if t.requires_grad]

    def run() -> None:
        torch.autograd.grad(next(leaves(call(*args))), wanted, grad)

    return run


def wall_us(run: Callable[[], None], count: int) -> float:
    """Return the clock's time of a call."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else int
    wait()
    began = time.perf_counter()
    for _ in range(count):
        run()
    wait()
    return (time.perf_counter() - began) / count * 1e6


def device_us(run: Callable[[], None]) -> float:
    """Return the device's time of a call; a CPU's is the clock's."""
    if not torch.cuda.is_available():
        return wall_us(run, 1)
    found: list[float] = []
    for _ in range(2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(PAUSE)  # noqa: SLF001  torch has no public name for it
        begin.record()
        for _ in range(AHEAD):
            run()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) * 1e3 / AHEAD)
    return min(found)


def compared(line: Mapping[str, Any], device: str = "cuda") -> dict[str, Any] | None:
    """Return the row of a problem; None for a half without a gradient, or of another type."""
    spec = differentiable(line["op"])
    if spec is None or "bfloat16" not in encoded(line):
        return None
    half = problems.described(default().registry.spec(line["op"]), line)
    half = problems.moved(half, torch.device(device))
    args = spec.bind(*(_leaf(a) for a in problems.arguments(half)))
    result = next(leaves(spec.reference(*args)))
    grad, gradient = torch.randn_like(result), present(spec.gradient, "gradient")
    inner = nxcore.op(gradient.forward or spec.name)
    given = args[: len(inner.spec.params)]
    forward = chosen(Problem.of(inner.spec, given, needs_grad=inner.spec.gradient is not None))
    with torch.no_grad():
        outs = list(leaves(inner.spec.reference(*given)))
        kept = outs[1:] if gradient.forward or gradient.keeps else []
        backs = gradient.args(grad, (True,) * len(tensors_of(args)), *args, *kept)
        backward = chosen(Problem.of(default().registry.spec(gradient.op), backs))
    sides = {"torch": stepped(spec.reference, args, grad)}
    if {forward[1], backward[1]} != {"torch"}:
        sides["kernels"] = stepped(by_kernels(spec, args, forward[1], backward[1]), args, grad)
    sides["served"] = stepped(served(spec), args, grad)
    for run in sides.values():
        wall_us(run, 8)
    count = max(3, int(ROUND_S * 1e6 / wall_us(sides["torch"], 3)))
    times: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(ROUNDS):
        for side in list(sides)[:: 1 - 2 * (turn % 2)]:
            times[side].append(wall_us(sides[side], count))
    pair = default().chooser.pairs.of(Problem.of(spec, args, needs_grad=True))
    return {
        "op": spec.name,
        "problem": str(half),
        "count": line["count"],
        "kernels": f"{forward[0]} + {backward[0]}",
        "pair": None if pair is None else pair.chosen,
        "device_us": {side: device_us(run) for side, run in sides.items()},
        "wall_us": times,
    }


def _leaf(value: Any) -> Any:
    if isinstance(value, tuple) and value and isinstance(value[0], Tensor):
        return tuple(map(_leaf, value))
    return value.requires_grad_() if isinstance(value, Tensor) else value


def ratios(row: Mapping[str, Any]) -> dict[str, float]:
    """Return torch's time over those of the sides."""
    found = {}
    for side in ("kernels", "served"):
        if side in row["wall_us"]:
            pairs = zip(row["wall_us"]["torch"], row["wall_us"][side], strict=True)
            found[f"{side}, wall"] = statistics.median(a / b for a, b in pairs)
            found[f"{side}, device"] = row["device_us"]["torch"] / row["device_us"][side]
    return found


def summary(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield how many win on the device, and what becomes of these by the clock."""
    won = [r for r in map(_judged, rows) if r["kernels, device"] >= WINS]
    lost = [r for r in won if r["kernels, wall"] < NOISE]
    yield f"{len(rows)} problems; the kernels of {len(won)} win on the device"
    yield f"of these win by the wall, or have torch's time: {len(won) - len(lost)}; lose: {len(lost)}"
    for name, some in (("those that win on the device", won), ("those that lose by the wall", lost)):
        if some:
            least = min(r["served, wall"] for r in some)
            slower = sum(r["served, wall"] < NOISE for r in some)
            yield f"as served, {name}: {slower} slower than torch, least ratio {least:.3f}"


def _judged(row: dict[str, Any]) -> dict[str, float]:
    return {"kernels, device": 0.0, "kernels, wall": 1.0} | ratios(row)


def main() -> None:
    """Measure, print a line a problem, and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=[*MODELS], metavar="MODEL")
    parser.add_argument("--output", type=Path, help="write the rows to this file, as JSON")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no problem after so many")
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="of the problems, those whose name has it"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    record = {"device": describe(given.device).to_dict() | {"torch": str(torch.__version__)}, "models": {}}
    for model, _, first in (name.partition(":") for name in given.models):
        rows: list[dict[str, Any]] = []
        record["models"][model] = rows
        for text in (FOLDER / f"{model}.jsonl").read_text(encoding="utf-8").splitlines()[int(first or 0) :]:
            if time.monotonic() > end:
                print(f"{model}: not all measured")
                break
            line = json.loads(text)
            try:
                row = compared(line, given.device) if re.search(given.only, line["op"]) else None
            except FOREIGN as why:
                print(f"{model}, {line['op']}: {type(why).__name__}: {why}", flush=True)
                continue
            if row is None:
                continue
            rows.append(row)
            shown = ", ".join(f"{name} {value:.2f}" for name, value in ratios(row).items())
            print(
                f"{model} {row['count']} x {row['problem'][:90]}: {shown}; {row['kernels']}, {row['pair']}",
                flush=True,
            )
            if given.output:
                given.output.write_text(encoded(record) + "\n", encoding="utf-8")
        for said in summary(rows):
            print(f"{model}: {said}", flush=True)


if __name__ == "__main__":
    main()
