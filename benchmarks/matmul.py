"""Time products of float32 matrices on a GPU: tiles of the CUDA C++ and the Triton kernel beside cuBLAS.

Each entrant is checked against float64 first, then timed in turns with the others: the device's time of one
call after the cache was overwritten, and of calls one after the other. Prints a table, writes all figures.

    python benchmarks/matmul.py --json record.json
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from nxcore_cuda import matmul as cuda
from nxcore_cuda.machine.compile import image
from nxcore_cuda.machine.instance import Instance
from nxcore_triton import matmul as triton
from nxcore_triton import matmul_parts as triton_parts
from products import CASES, Case
from tiles import CUDA, PARTS, SPLIT, tiles_for
from torch import Tensor

from nxcore.plugin import Product, TensorMeta
from nxcore.spec.precision import SHARE
from nxcore.store.encoding import encoded
from nxcore.trust.truth import ACCUMULATOR

FLUSH = 512 << 20  # bytes that are overwritten before a call, while the host prepares it
WORKERS = 14  # processes that compile

Call = Callable[[], Tensor]


def product_of(a: Tensor, b: Tensor) -> Product:
    """Describe a call."""
    out = torch.matmul(a.to("meta"), b.to("meta"))
    return Product.of(*(TensorMeta.of(t) for t in (a, b)), replace(TensorMeta.of(out), device=a.device))


def prepare(case: Case, wanted: str) -> None:
    """Compile the Triton kernels of an entrant; another process finds them in Triton's cache."""
    a, b = case.operands()
    product = product_of(a, b)
    for _, tile in tiles_for(case, product, f"^{re.escape(wanted)} of "):
        with contextlib.suppress(Exception):  # it fails again where it is timed
            entrant(product, tile, a, b, torch.matmul(a, b))()


def compiled(cases: tuple[Case, ...], only: str = "") -> list[tuple[Case, str]]:
    """Return the entrants that Triton compiles, by case and name."""
    found = []
    for case in cases:
        names = [name for name, _ in tiles_for(case, product_of(*case.operands()), only)]
        found += [(case, name) for name in names if "triton" in name or "parts" in name]
    return found


def entrant(product: Product, tile: Any, a: Tensor, b: Tensor, out: Tensor) -> Call:
    """Return a call of one tile."""
    parts = isinstance(tile, triton_parts.Tile)
    module: Any = cuda if isinstance(tile, cuda.Tile) else triton_parts if parts else triton
    run = module.plan_product(product, a.device, tile)
    first, second = (b, a) if product.turned else (a, b)

    def call() -> Tensor:
        run(first, second, out)
        return out

    return call


def instances(cases: tuple[Case, ...], only: str = "") -> set[Instance]:
    """Return the kernels that the cases compile."""
    found = set()
    for case in cases:
        product = product_of(*case.operands())
        for name, tile in tiles_for(case, product, only):
            if "cuda" in name:
                a = cuda.Way.of(product.rows, product.terms, product.a, product.a_batch)
                b = cuda.Way.of(product.columns, product.terms, product.b, product.b_batch)
                found |= {tile.instance(a, b), tile.instance(_by_one(a), _by_one(b))}
    return found


def _by_one(way: cuda.Way) -> cuda.Way:
    return replace(way, vectors=False)


def truth(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the product in float64, and that of absolute values."""
    return a.double() @ b.double(), a.double().abs() @ b.double().abs()


def error(out: Tensor, exact: tuple[Tensor, Tensor]) -> float:
    """Return the largest error as a share of the product of absolute values."""
    return float(((out.double() - exact[0]).abs() / exact[1]).max())


def cold(calls: dict[str, Call], repeats: int) -> dict[str, float]:
    """Return the median microseconds of calls in turns, each after the cache was overwritten."""
    trash = torch.empty(FLUSH, dtype=torch.uint8, device="cuda")
    times: dict[str, list[tuple[Any, Any]]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            trash.zero_()
            start.record()
            call()
            end.record()
            times[name].append((start, end))
    torch.cuda.synchronize()
    return {n: 1000 * statistics.median(s.elapsed_time(e) for s, e in t) for n, t in times.items()}


def warm(call: Call, seconds: float) -> tuple[float, str]:
    """Return the microseconds of calls one after the other, and clock and power meanwhile."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call()
    torch.cuda.synchronize()
    begun, count = time.perf_counter(), 0
    start.record()
    while time.perf_counter() - begun < seconds:
        for _ in range(8):
            call()
        count += 8
        if count % 64 == 0:
            torch.cuda.synchronize()
    end.record()
    own = f"--id=GPU-{torch.cuda.get_device_properties().uuid}"
    query = ["nvidia-smi", own, "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader"]
    seen = ""
    with contextlib.suppress(OSError):
        seen = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    torch.cuda.synchronize()
    return 1000 * start.elapsed_time(end) / count, seen


def special() -> list[str]:
    """Return what tiles make of values that products on tensor cores get wrong; empty where all is right."""
    found = []
    a, b = Case("special", (192, 160), (160, 256)).operands()
    values = {"inf": float("inf"), "nan": float("nan"), "huge": 3e38, "denormal": 0.0}
    for name, value in values.items():
        x, y = a.clone(), b * 1e-3 if name == "huge" else b
        x[3, 5], x[100, 7] = value, -value
        if name == "denormal":  # all results
            x, y = a * 1e-30, b * 1e-10
        for label, tile in [
            *((n, CUDA[n]) for n in ("L16", "M16x2", "S16x2", "V32")),
            ("T", triton.Tile(64, 64, 32)),
        ]:
            out = torch.empty(192, 256, device="cuda")
            got, truth = entrant(product_of(x, y), tile, x, y, out)(), (x.double() @ y.double()).float()
            scale = (x.double().abs() @ y.double().abs()).float()
            same = torch.equal(got.isnan(), truth.isnan()) and torch.equal(got.isinf(), truth.isinf())
            rest = truth.isfinite()
            near = bool(((got - truth).abs() <= 2e-5 * scale + 5e-43)[rest].all())
            if not (same and near):
                found.append(f"{name} by {label}: {'wrong values' if same else 'NaN or inf elsewhere'}")
    return found


def measure(case: Case, repeats: int, only: str = "") -> dict[str, Any]:
    """Check and time one case."""
    a, b = case.operands()
    product = product_of(a, b)
    out = torch.matmul(a, b)
    calls: dict[str, Call] = {"cublas": lambda: torch.matmul(a, b, out=out)}
    exact = truth(a, b)
    errors = {"cublas": error(out, exact)}
    for name, tile in tiles_for(case, product, only):
        try:
            made = torch.full_like(out, float("nan"))
            call = entrant(product, tile, a, b, made)
            errors[name] = error(call(), exact)
            again = made.clone()
            if not torch.equal(again, call()):
                errors[name] = float("inf")  # not the same bits twice
            calls[name] = call
        except Exception as wrong:  # noqa: BLE001  an entrant that fails is a result
            errors[name] = float("nan")
            print(f"{case.name}: {name}: {type(wrong).__name__}: {str(wrong)[:200]}")
    times = cold(calls, repeats)
    flops = 2 * out.numel() * product.terms
    rows = [
        {"entrant": n, "us": us, "tflops": flops / us / 1e6, "error": errors[n]} for n, us in times.items()
    ]
    failed = [{"entrant": n, "error": str(e)} for n, e in errors.items() if n not in times]
    return {"case": asdict(case), "flops": flops, "rows": rows, "failed": failed}


def allowed(record: dict[str, Any], kind: str = "") -> float:
    """Return the largest error that the gate allows, as a share of the product of absolute values."""
    a = record["case"]["a"]
    return 4 * ACCUMULATOR * float(a[-1]) ** 0.5 + SHARE["fp32x" if kind == "fp32x" else "ieee32"]


def remarks(record: dict[str, Any], kind: str) -> str:
    """Return how many entrants of a kind are wrong, and how many have over thrice cuBLAS's error."""
    base, bound = record["rows"][0]["error"], allowed(record, kind)
    errors = [row["error"] for row in record["rows"] if row["entrant"].startswith(kind)]
    wrong = sum(not e <= bound for e in errors)
    less = sum(3 * base + 1e-7 < e <= bound for e in errors)
    return f" WRONG {wrong}" * (wrong > 0) + f" {less} less exact" * (less > 0)


def best(record: dict[str, Any], kind: str, count: int = 1) -> str:
    """Return the gains of the best right entrants of a kind, and of the chosen one."""
    by = {row["entrant"]: row for row in record["rows"]}
    base = by["cublas"]
    own = [row for n, row in by.items() if n.startswith(kind) and row["error"] <= allowed(record, kind)]
    first = sorted(own, key=lambda row: row["us"])[:count]
    cells = [f"{base['us'] / row['us']:.2f} {row['entrant'].removeprefix(kind + ' ')}" for row in first]
    chosen = by.get(f"{kind} chosen")
    share = base["us"] / chosen["us"] if chosen else 0
    return f"{', '.join(cells)} ({share:.2f}){remarks(record, kind)}"


def split(record: dict[str, Any]) -> str:
    """Return the gains and the errors of the best entrants of the class fp32x."""
    base = record["rows"][0]
    own = [row for row in record["rows"] if row["entrant"].startswith("fp32x")]
    cells = []
    for row in sorted(own, key=lambda row: row["us"])[:5]:
        name, share = row["entrant"].removeprefix("fp32x "), row["error"] / base["error"]
        cells.append(f"{base['us'] / row['us']:.2f} {name} ({share:.1f})")
    return ", ".join(cells) + remarks(record, "fp32x")


def lines(records: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the table: a line for each large square, several cases a line elsewhere."""
    cells = []
    for record in records:
        name, base = record["case"]["name"], record["rows"][0]
        failed = f" FAILED {len(record['failed'])}" * bool(record["failed"])
        head = f"{name} {base['us']:.1f}us {base['tflops']:.1f}T{failed}"
        if name.isdigit():
            yield f"{head} | cuda {best(record, 'cuda', 4)} | triton {best(record, 'triton', 2)}"
            if any(row["entrant"].startswith("fp32x") for row in record["rows"]):
                yield f"{name} fp32x, error over cuBLAS's: {split(record)}"
        else:
            cells.append(f"{head} {best(record, 'cuda')} t{best(record, 'triton').partition(' ')[0]}")
    for i in range(0, len(cells), 5):
        yield " | ".join(cells[i : i + 5])


def counted(cases: tuple[Case, ...], only: str) -> None:
    """Call cuBLAS and some tiles once each."""
    for case in cases:
        a, b = case.operands()
        product, out = product_of(a, b), torch.matmul(a, b)
        for _, tile in tiles_for(case, product, only):
            entrant(product, tile, a, b, out)()
    torch.cuda.synchronize()


def least(repeats: int) -> float:
    """Return the median microseconds of a call that writes one number: no product takes less."""
    one = torch.empty(1, device="cuda")
    return cold({"one": lambda: one.fill_(1.0)}, repeats)["one"]


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=65, help="begins no case after them")
    parser.add_argument("--cases", nargs="*", help="their names; all by default")
    parser.add_argument("--only", default="", help="a pattern, as '^cuda chosen of 512$'; all by default")
    parser.add_argument("--brief", action="store_true", help="no special values, no calls for a second")
    parser.add_argument("--counters", action="store_true", help="only call the entrants, for a profiler")
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    cases = tuple(case for case in CASES if not given.cases or case.name in given.cases)
    if given.counters:
        counted(cases, given.only)
        return
    begun = time.perf_counter()
    wanted = instances(cases, given.only)
    with ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn")) as processes:
        prepared = processes.map(prepare, *zip(*compiled(cases, given.only), strict=True))
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda instance: image(instance, torch.cuda.get_device_capability()), wanted))
        built = time.perf_counter() - begun
        list(prepared)
    wrong = [] if given.brief else special()
    print(
        f"{len(wanted)} kernels in {built:.0f} s, Triton's in {time.perf_counter() - begun:.0f} s;"
        f" special values: {'; '.join(wrong) or ('not checked' if given.brief else 'all right')}"
    )
    shortest = least(given.repeats)
    print(f"a call that writes one number: {shortest:.1f} us")
    print("cublas us, TFLOP/s; gain over it by the best (by the chosen tile); t: by Triton", flush=True)
    records = []
    for case in cases:
        if time.perf_counter() - begun > given.seconds:
            print(f"no time for {case.name} and later cases")
            break
        try:
            records.append(measure(case, given.repeats, given.only))
            torch.cuda.empty_cache()
        except Exception as broken:  # noqa: BLE001  what was measured before is written
            print(f"{case.name}: {type(broken).__name__}: {str(broken)[:200]}")
            break
    print(*lines(records), sep="\n", flush=True)
    sustained = {}
    if not given.brief and (not given.cases or "4096" in given.cases):
        a, b = Case("4096", (4096, 4096), (4096, 4096)).operands()
        out = torch.empty(4096, 4096, device="cuda")
        calls: dict[str, Call] = {"cublas": lambda: torch.matmul(a, b, out=out)}
        for name, tile in {
            "cuda L16": CUDA["L16"],
            "cuda V32": CUDA["V32"],
            "fp32x": SPLIT["64x64x32cut"],
            "fp32x parts": PARTS["128x64x32"],
        }.items():
            calls[name] = entrant(product_of(a, b), tile, a, b, out)
        for name, call in calls.items():
            us, seen = warm(call, 1.0)
            sustained[name] = {"us": us, "tflops": 2 * 4096**3 / us / 1e6, "clock and power": seen}
            print(f"4096 for 1 s: {name} {us:.0f} us, {2 * 4096**3 / us / 1e6:.1f} TFLOP/s, {seen}")
    if given.json:
        about = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "python": platform.python_version(),
            "repeats": given.repeats,
            "special": None if given.brief else wrong,
            "least_us": shortest,
        }
        given.json.write_text(encoded({**about, "cases": records, "sustained": sustained}, indent=1) + "\n")


if __name__ == "__main__":
    main()
