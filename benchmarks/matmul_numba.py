"""Time a product of float32 matrices by a loop in Numba beside torch on a CPU, in turns.

The loop is over rows, terms and columns: parallel over rows, and LLVM makes vectors of the columns. It is why
nxcore-numba has no kernel for ``matmul``. Prints a line for each size, writes all figures.

    python benchmarks/matmul_numba.py --json record.json
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch

from nxcore.store.encoding import encoded

SIZES = (512, 1024)


@numba.njit(parallel=True, fastmath={"contract"})  # type: ignore[untyped-decorator]
def multiply(a: Any, b: Any, out: Any) -> None:
    """Write ``a @ b``, of a multiple of four terms."""
    for i in numba.prange(a.shape[0]):
        line = out[i]
        line[:] = 0
        for k in range(0, a.shape[1], 4):  # four terms for each time that a sum is loaded and stored
            x0, x1, x2, x3 = a[i, k], a[i, k + 1], a[i, k + 2], a[i, k + 3]
            for j in range(b.shape[1]):
                line[j] = line[j] + x0 * b[k, j] + x1 * b[k + 1, j] + x2 * b[k + 2, j] + x3 * b[k + 3, j]


def measure(n: int, repeats: int) -> dict[str, Any]:
    """Check and time both; return the milliseconds of every call."""
    generator = np.random.default_rng(0)
    a, b = (generator.random((n, n), dtype=np.float32) - np.float32(0.5) for _ in range(2))
    made, x, y = np.empty((n, n), np.float32), torch.from_numpy(a), torch.from_numpy(b)
    by_torch = torch.empty(n, n)
    calls: dict[str, Callable[[], Any]] = {
        "torch": lambda: torch.matmul(x, y, out=by_torch),
        "numba": lambda: multiply(a, b, made),
    }
    for call in calls.values():
        call()
    exact, scale = a.astype(float) @ b.astype(float), np.abs(a).astype(float) @ np.abs(b)
    errors = {
        k: float((np.abs(v - exact) / scale).max()) for k, v in (("torch", by_torch.numpy()), ("numba", made))
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            times[name].append(1000 * (time.perf_counter() - began))
    return {"n": n, "errors": errors, "ms": times}


def main() -> None:
    """Measure all sizes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=41)
    given = parser.parse_args()
    threads = torch.get_num_threads()
    # As set: as many as torch has, which the kernels would take.
    numba.set_num_threads(threads)
    cases = [measure(n, given.repeats) for n in SIZES]
    for case in cases:
        middle = {name: statistics.median(ms) for name, ms in case["ms"].items()}
        least = {name: min(ms) for name, ms in case["ms"].items()}
        shares = [found["torch"] / found["numba"] for found in (middle, least)]
        print(
            f"{case['n']}: torch {middle['torch']:.2f} ms, numba {middle['numba']:.2f} ms;"
            f" share of torch's speed {shares[0]:.2f}, of the least times {shares[1]:.2f};"
            f" errors {case['errors']['torch']:.1e}, {case['errors']['numba']:.1e}"
        )
    if given.json:
        about = {"torch": torch.__version__, "numba": numba.__version__, "python": platform.python_version()}
        load = os.getloadavg()[0]
        record = {**about, "threads": threads, "load": load, "repeats": given.repeats, "cases": cases}
        given.json.write_text(encoded(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
