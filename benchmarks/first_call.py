"""Time of a process's first call with kernels on disk: softmax_sum of eight tensors, on the CPU.

    python benchmarks/first_call.py [--backend numba] [--rounds 5]

Each round is a process of its own. The first round fills the cache and doesn't count; nor do the imports of
torch and nxcore.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from typing import Any

CALL = """
import json, sys, time
import torch, nxcore

xs, logits = [torch.randn(64, 16, 32, 32) for _ in range(8)], torch.randn(8)
op = nxcore.op("softmax_sum", backend=sys.argv[1] or None)
wall, cpu = time.perf_counter(), time.process_time()
op(xs, logits)
print(json.dumps({"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}))
"""


def main() -> None:
    """Run the rounds, and print the median with its range."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--backend", default="numba", help="the backend; if empty, nxcore measures and chooses"
    )
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rounds = [_round(options.backend) for _ in range(options.rounds + 1)][1:]
    print(f"{platform.machine()}, Python {platform.python_version()}, backend {options.backend or 'chosen'}")
    for name in ("wall_s", "cpu_s"):
        found = sorted(r[name] for r in rounds)
        print(f"{name:<7} median {statistics.median(found):.3f}, {found[0]:.3f} to {found[-1]:.3f}")


def _round(backend: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", CALL, backend],
        capture_output=True,
        text=True,
        check=True,
        # As set: the first call under this policy is what is measured.
        env=os.environ | {"NXCORE_POLICY": "measure"},
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
