"""Time convolutions of few channels: our kernels beside torch's and im2col, in the study's nine shapes.

On a GPU: CUDA C++ and Triton beside cuDNN, strict and in TF32, each tile checked against float64, in graphs
of calls, in turns. On a CPU: Numba beside oneDNN. Prints a table, writes all figures.

    python benchmarks/conv2d.py --json record.json
"""

from __future__ import annotations

import argparse
import json
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

SPEC = nxcore.op("conv2d").spec
CASES = tuple((side, k) for side in (32, 64, 128) for k in (3, 5, 7))
CALLS = 20  # of a graph

Call = Callable[[], Tensor]


def arguments(side: int, k: int, device: str) -> tuple[Any, ...]:
    """Return a case's call: batch 2, 4 to 8 channels, a bias, padding k // 2."""
    generator = torch.Generator(device).manual_seed(side + k)
    shapes = ((2, 4, side, side), (8, 4, k, k), (8,))
    tensors = (torch.randn(shape, generator=generator, device=device) for shape in shapes)
    return SPEC.bind(*tensors, 1, k // 2)


def im2col(x: Tensor, weight: Tensor, bias: Tensor, _stride: int, padding: int, *_: Any) -> Tensor:
    """Return the convolution as a product of matrices."""
    columns = functional.unfold(x, weight.shape[-2:], padding=padding)
    made = weight.flatten(1) @ columns + bias[:, None]
    return made.view(x.shape[0], -1, *x.shape[2:])


def strict(given: tuple[Any, ...]) -> Tensor:
    """Return torch's convolution without TF32."""
    torch.backends.cudnn.allow_tf32 = False
    return functional.conv2d(*given)


def in_tf32(given: tuple[Any, ...]) -> Tensor:
    """Return torch's convolution with TF32."""
    torch.backends.cudnn.allow_tf32 = True
    try:
        return functional.conv2d(*given)
    finally:
        torch.backends.cudnn.allow_tf32 = False


def entrants(given: tuple[Any, ...], swept: bool) -> dict[str, Call]:
    """Return the calls by name: on a GPU, with all tiles on request."""
    problem = Problem.of(SPEC, given)
    found: dict[str, Call] = {"torch": lambda: strict(given), "im2col": lambda: im2col(*given)}
    if not given[0].is_cuda:
        from nxcore_numba import conv2d as numba

        plan = numba.plan(problem)
        return found | {"numba": lambda: plan(*given)}
    from nxcore_cuda import conv2d as cuda
    from nxcore_triton import conv2d as triton

    found["tf32"] = lambda: in_tf32(given)
    for name, module in (("cuda", cuda), ("triton", triton)):
        tiles = list(module.sweep(problem))
        for i, tile in enumerate(tiles if swept else tiles[:1]):
            spelt = "-".join(str(n) for n in vars(tile).values())
            found[f"{name} {spelt}{' chosen' * (i == 0)}"] = _bound(module.plan(problem, tile), given)
    return found


def _bound(plan: Callable[..., Tensor], given: tuple[Any, ...]) -> Call:
    return lambda: plan(*given)


def compile_all(cases: list[tuple[Any, ...]]) -> int:
    """Compile the CUDA C++ kernels of all tiles, many at a time."""
    from nxcore_cuda import conv2d as cuda
    from nxcore_cuda.direct import Layer
    from nxcore_cuda.machine.compile import image

    wanted = set()
    for given in cases:
        problem = Problem.of(SPEC, given)
        layer = Layer.of(problem)
        wanted |= {cuda.instance(torch.float32, layer, tile) for tile in cuda.sweep(problem)}
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda instance: image(instance, torch.cuda.get_device_capability()), wanted))
    return len(wanted)


def error(out: Tensor, given: tuple[Any, ...]) -> float:
    """Return the largest error as a share of the convolution of absolute values."""
    wide = tuple(v.double() if isinstance(v, Tensor) else v for v in given)
    scale = functional.conv2d(*(v.abs() if isinstance(v, Tensor) else v for v in wide))
    return float(((out.double() - functional.conv2d(*wide)).abs() / scale).max())


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


def measure(side: int, k: int, given: tuple[Any, ...], repeats: int, swept: bool) -> dict[str, Any]:
    """Check and time one case."""
    calls, errors = entrants(given, swept), {}
    for name, call in calls.items():
        errors[name] = error(call(), given)
        if not torch.equal(call(), call()) and name not in ("torch", "im2col", "tf32"):
            errors[name] = float("inf")  # not the same bits twice
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


def line(record: dict[str, Any]) -> str:
    """Return a case's line: torch, im2col, TF32, ours as chosen and best, by the fastest tenth."""
    by = {row["entrant"]: row for row in record["rows"]}
    base = by["torch"]["tenth_us"]
    cells = [f"{record['side']:>4} {record['kernel']}", f"torch {base:7.2f}"]
    cells += [f"{name} {by[name]['tenth_us']:7.2f}" for name in ("im2col", "tf32") if name in by]
    for kind in ("numba", "cuda", "triton"):
        own = [row for name, row in by.items() if name.startswith(kind)]
        right = [row for row in own if row["error"] < 1e-5]
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
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    torch.set_num_threads(given.threads)
    begun = time.perf_counter()
    cases = [arguments(side, k, given.device) for side, k in CASES]
    if given.device == "cuda" and given.sweep:
        print(f"{compile_all(cases)} kernels in {time.perf_counter() - begun:.0f} s")
    device = torch.cuda.get_device_name() if given.device == "cuda" else platform.processor()
    about = {"device": device, "torch": torch.__version__, "python": platform.python_version()}
    about |= {"repeats": given.repeats, "threads": torch.get_num_threads()}
    records = []
    for (side, k), case in zip(CASES, cases, strict=True):
        records.append(measure(side, k, case, given.repeats, given.sweep))
        print(line(records[-1]), f"| {time.perf_counter() - begun:.0f} s", flush=True)
        if given.json:
            given.json.write_text(json.dumps({**about, "cases": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
