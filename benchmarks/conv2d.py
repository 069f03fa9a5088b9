"""Time convolutions of few channels: our kernels beside torch's and im2col, in the study's nine shapes.

On a GPU: CUDA C++ and Triton beside cuDNN, strict and in TF32, each tile checked against float64, in graphs
of calls, in turns. On a CPU: Numba beside oneDNN. ``--gradients`` does the same with all three gradients.
Prints a table, writes all figures.

    python benchmarks/conv2d.py --json record.json
    python benchmarks/conv2d.py --gradients --json gradients.json
"""

from __future__ import annotations

import argparse
import importlib
import platform
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import nxcore
from nxcore.plugin import Problem
from nxcore.store.encoding import encoded

SPEC, BACKWARD = (nxcore.op(name).spec for name in ("conv2d", "conv2d_backward"))
CASES = tuple((side, k) for side in (32, 64, 128) for k in (3, 5, 7))
CALLS = 20  # of a graph
RIGHT = 1e-5  # the largest error

Results = tuple[Tensor, ...]
Call = Callable[[], Any]


def arguments(side: int, k: int, device: str, *, back: bool) -> tuple[Any, ...]:
    """Return a case's call: batch 2, 4 to 8 channels, a bias, padding k // 2; or that of its gradients."""
    generator = torch.Generator(device).manual_seed(side + k)
    shapes = ((2, 4, side, side), (8, 4, k, k), (2, 8, side, side) if back else (8,))
    x, weight, last = (torch.randn(shape, generator=generator, device=device) for shape in shapes)
    return BACKWARD.bind(last, x, weight, 1, k // 2) if back else SPEC.bind(x, weight, last, 1, k // 2)


def is_back(given: tuple[Any, ...]) -> bool:
    """Return whether a call is of the gradients."""
    return len(given) == len(BACKWARD.params)


def im2col(x: Tensor, weight: Tensor, bias: Tensor, _stride: int, padding: int, *_: Any) -> Tensor:
    """Return the convolution as a product of matrices."""
    columns = functional.unfold(x, weight.shape[-2:], padding=padding)
    made = weight.flatten(1) @ columns + bias[:, None]
    return made.view(x.shape[0], -1, *x.shape[2:])


def by_torch(given: tuple[Any, ...]) -> Any:
    """Return torch's convolution, or its gradients."""
    if not is_back(given):
        return functional.conv2d(*given)
    grad, x, weight, stride, padding, dilation, groups, mask = given
    pairs = ([n, n] for n in (stride, padding, dilation))
    return torch.ops.aten.convolution_backward(
        grad, x, weight, [weight.shape[0]], *pairs, False, [0, 0], groups, list(mask)
    )


def strict(given: tuple[Any, ...]) -> Any:
    """Return torch's results without TF32."""
    torch.backends.cudnn.allow_tf32 = False
    return by_torch(given)


def in_tf32(given: tuple[Any, ...]) -> Any:
    """Return torch's results with TF32."""
    torch.backends.cudnn.allow_tf32 = True
    try:
        return by_torch(given)
    finally:
        torch.backends.cudnn.allow_tf32 = False


def entrants(given: tuple[Any, ...], swept: bool, backends: list[str]) -> dict[str, Call]:
    """Return the calls by name: on a GPU, with all tiles on request."""
    spec = BACKWARD if is_back(given) else SPEC
    problem = Problem.of(spec, given)
    found: dict[str, Call] = {"torch": lambda: strict(given)}
    if spec is SPEC:
        found["im2col"] = lambda: im2col(*given)
    if not given[0].is_cuda:
        plan = importlib.import_module(f"nxcore_numba.{spec.name}").plan(problem)
        return found | {"numba": lambda: plan(*given)}
    found["tf32"] = lambda: in_tf32(given)
    for name in backends:
        module = importlib.import_module(f"nxcore_{name}.{spec.name}")
        tiles = list(module.sweep(problem))
        for i, tile in enumerate(tiles if swept else tiles[:1]):
            called = f"{name} {spelt(tile)}{' chosen' * (i == 0)}"
            found[called] = _bound(module.plan(problem, tile), given)
    return found


def spelt(tile: Any) -> str:
    """Return a tile's numbers, behind the name of what it is of where it is one of several."""
    if tile is None or isinstance(tile, int):
        return str(tile)
    values = {name: value for name, value in vars(tile).items() if value is not None}
    parts = [f"{name} {spelt(v)}" if hasattr(v, "__dict__") else str(v) for name, v in values.items()]
    return "-".join(parts)


def _bound(plan: Callable[..., Any], given: tuple[Any, ...]) -> Call:
    return lambda: plan(*given)


def compile_all(cases: list[tuple[Any, ...]]) -> int:
    """Compile the CUDA C++ kernels of all tiles, many at a time."""
    from nxcore_cuda import conv2d, conv2d_backward, direct, direct_filters
    from nxcore_cuda.machine.compile import image

    wanted = set()
    for given in cases:
        if not is_back(given):
            problem = Problem.of(SPEC, given)
            layer = direct.Layer.of(problem)
            wanted |= {conv2d.instance(torch.float32, layer, tile) for tile in direct.candidates(layer)}
            continue
        problem = Problem.of(BACKWARD, given)
        (layer,), shape = direct.Layer.turned(problem), direct_filters.Shape.of(problem)
        tiles, sums = direct.candidates(layer), direct_filters.candidates(shape)
        wanted |= {conv2d.instance(torch.float32, layer, tile, BACKWARD.name) for tile in tiles}
        wanted |= {conv2d_backward.instance(torch.float32, shape, each) for each in sums}
        wanted.add(conv2d_backward.totals(torch.float32))
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda instance: image(instance, torch.cuda.get_device_capability()), wanted))
    return len(wanted)


def results(out: Any) -> Results:
    """Return a call's results, one or several."""
    return out if isinstance(out, tuple) else (out,)


def exact(given: tuple[Any, ...]) -> tuple[Results, Results]:
    """Return a call's results in float64, and those of absolute values."""
    spec = BACKWARD if is_back(given) else SPEC
    wide = tuple(v.double() if isinstance(v, Tensor) else v for v in given)
    return results(spec.reference(*wide)), results(spec.magnitude(*wide))


def error(out: Any, truth: tuple[Results, Results]) -> float:
    """Return the largest error as a share of what absolute values give."""
    each = zip(results(out), *truth, strict=True)
    return max(float(((found.double() - true).abs() / size).max()) for found, true, size in each)


def checked(calls: dict[str, Call], given: tuple[Any, ...]) -> dict[str, float]:
    """Return each entrant's error; infinite where a kernel of ours doesn't repeat its bits."""
    truth, errors = exact(given), {}
    for name, call in calls.items():
        first, again = results(call()), results(call())
        errors[name] = error(first, truth)
        same = all(torch.equal(*pair) for pair in zip(first, again, strict=True))
        if not same and name not in ("torch", "im2col", "tf32"):
            errors[name] = float("inf")
    return errors


def captured(call: Call) -> Callable[[], None]:
    """Return the replay of a graph of calls."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for _ in range(CALLS)]
    return lambda: (graph.replay(), kept)[0]  # the results keep their memory


def on_gpu(calls: dict[str, Call], repeats: int) -> dict[str, list[float]]:
    """Return each entrant's microseconds of a call, in graphs, in turns."""
    replays = {name: captured(call) for name, call in calls.items()}
    times: dict[str, list[tuple[Any, Any]]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, replay in replays.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            replay()
            end.record()
            times[name].append((start, end))
    torch.cuda.synchronize()
    return {name: [1000 * s.elapsed_time(e) / CALLS for s, e in pairs] for name, pairs in times.items()}


def on_cpu(calls: dict[str, Call], repeats: int) -> dict[str, list[float]]:
    """Return each entrant's microseconds of a call, in turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(1e6 * (time.perf_counter() - start))
    return times


def measure(
    side: int, k: int, given: tuple[Any, ...], repeats: int, calls: dict[str, Call]
) -> dict[str, Any]:
    """Check and time one case."""
    errors = checked(calls, given)
    # Half of the turns warm up.
    times = (on_gpu if given[0].is_cuda else on_cpu)(calls, 2 * repeats)
    rows = [
        {
            "entrant": name,
            "us": statistics.median(found[repeats:]),
            "tenth_us": statistics.quantiles(found[repeats:], n=10)[0],
            "error": errors[name],
        }
        for name, found in times.items()
    ]
    return {"side": side, "kernel": k, "rows": rows}


def wrong(errors: dict[str, float]) -> str:
    """Return how many kernels of ours are right, and which aren't."""
    own = {n: e for n, e in errors.items() if n not in ("torch", "im2col", "tf32")}
    bad = [f"{name} {e:.1e}" for name, e in own.items() if not e < RIGHT]
    return f"{len(own) - len(bad)} of {len(own)} right" + "".join(f"; {each}" for each in bad[:3])


def line(record: dict[str, Any]) -> str:
    """Return a case's line: torch, im2col, TF32, ours as chosen and best, by the fastest tenth."""
    by = {row["entrant"]: row for row in record["rows"]}
    base = by["torch"]["tenth_us"]
    cells = [f"{record['side']:>4} {record['kernel']}", f"torch {base:7.2f}"]
    cells += [f"{name} {by[name]['tenth_us']:7.2f}" for name in ("im2col", "tf32") if name in by]
    for kind in ("numba", "cuda", "triton"):
        own = [row for name, row in by.items() if name.startswith(kind)]
        right = [row for row in own if row["error"] < RIGHT]
        if own and not right:
            cells.append(f"{kind}: none right")
        elif own:
            best, chosen = min(right, key=lambda row: row["tenth_us"]), own[0]["tenth_us"]
            cells.append(f"{kind} {chosen:6.2f} {base / chosen:5.2f}x median {_ratio(by, own[0]):5.2f}x")
            if len(own) > 1:
                name = best["entrant"].removeprefix(kind).strip()
                cells.append(f"best {best['tenth_us']:6.2f} {name}")
            if len(right) < len(own):
                cells.append(f"{len(own) - len(right)} wrong")
    return " | ".join(cells)


def _ratio(by: dict[str, Any], own: dict[str, Any]) -> float:
    return float(by["torch"]["us"] / own["us"])


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of a CPU")
    parser.add_argument("--sweep", action="store_true", help="time every tile")
    parser.add_argument("--gradients", action="store_true", help="of the gradients, not the convolution")
    parser.add_argument("--check", action="store_true", help="compare with float64, and time nothing")
    parser.add_argument("--filter", type=int, default=0, help="of the cases: 3, 5 or 7; by default all")
    parser.add_argument("--backends", nargs="+", default=["cuda", "triton"], help="on a GPU")
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    # As set: torch's own number by default, another one on request.
    torch.set_num_threads(given.threads)
    begun = time.perf_counter()
    kept = [(side, k) for side, k in CASES if given.filter in (0, k)]
    cases = [arguments(side, k, given.device, back=given.gradients) for side, k in kept]
    if given.device == "cuda" and given.sweep and "cuda" in given.backends:
        print(f"{compile_all(cases)} kernels in {time.perf_counter() - begun:.0f} s")
    device = torch.cuda.get_device_name() if given.device == "cuda" else platform.processor()
    about = {"device": device, "torch": torch.__version__, "python": platform.python_version()}
    about |= {"op": (BACKWARD if given.gradients else SPEC).name}
    about |= {"repeats": given.repeats, "threads": torch.get_num_threads()}
    records = []
    for (side, k), case in zip(kept, cases, strict=True):
        calls = entrants(case, given.sweep, given.backends)
        if given.check:
            print(about["op"], side, k, *given.backends, wrong(checked(calls, case)), flush=True)
            continue
        records.append(measure(side, k, case, given.repeats, calls))
        print(line(records[-1]), f"| {time.perf_counter() - begun:.0f} s", flush=True)
        if given.json:
            given.json.write_text(encoded({**about, "cases": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
