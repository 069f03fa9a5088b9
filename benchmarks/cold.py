"""A search step from empty caches: seconds until it has its speed.

    python benchmarks/cold.py [--unknown] [--policy online] [--seconds 120] [--device cuda] [--quick]

With ``--unknown`` the record of the package is hidden, as if nobody had measured this device. Steps of a
patched DARTS network (8 cells, C = 16, batch 64 of 3 x 32 x 32, float32) run until the time is over. Printed
are the first step's seconds, the seconds after which steps take at most 1.1 times the median of the last
ones, and what was compiled and raced.
``NXCORE_WORKERS`` sets the number of workers, 0 for none.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FULL = 1.1
"""The largest time of a step at full speed, relative to the median of the last ones."""

LAST = 11
"""The number of last steps."""


def empty_caches(folder: Path) -> None:
    """Have nxcore and its toolkits keep what they compile and measure in new folders."""
    for variable in ("NXCORE_CACHE", "NXCORE_CUDA_CACHE", "TRITON_CACHE_DIR", "CUPY_CACHE_DIR"):
        os.environ[variable] = str(folder / variable.lower())


def run(device: str, seconds: float, *, unknown: bool, quick: bool) -> dict[str, Any]:
    """Run steps for some seconds; return when they had their speed."""
    import torch
    from torch.nn.functional import cross_entropy

    import nxcore
    from nxcore import nas
    from nxcore.store import transfer

    sys.path.append(str(Path(__file__).parents[1]))
    from tests.nas import darts  # the plain network, which is no part of the package

    if unknown:
        transfer.SHIPPED = Path(os.environ["NXCORE_CACHE"]) / "hidden"
    torch.manual_seed(0)
    size, cells, batch, side = (4, 3, 2, 8) if quick else (16, 8, 64, 32)
    net = darts.Network(size, 10, cells, 4).to(device)
    images, labels = torch.randn(batch, 3, side, side, device=device), torch.randint(10, (batch,)).to(device)
    logits = torch.zeros(2, 14, 8, device=device, requires_grad=True)
    began, steps = time.perf_counter(), list[tuple[float, float]]()
    nas.patch(net)
    while not steps or time.perf_counter() - began < seconds:
        at = time.perf_counter()
        loss = cross_entropy(net(images, *logits.unbind(0)), labels)
        torch.autograd.grad(loss, [logits, *net.parameters()])
        if device != "cpu":
            torch.cuda.synchronize()
        steps.append((time.perf_counter() - began, time.perf_counter() - at))
    final = statistics.median(s for _, s in steps[-LAST:])
    slow = [at for at, s in steps if s > FULL * final]
    status = nxcore.status().to_dict()
    return {
        "first_s": steps[0][0],
        "full_speed_s": max(slow, default=0.0),
        "final_ms": final * 1e3,
        "steps": len(steps),
        "tally": status["tally"],
        "counts": status["counts"],
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--unknown", action="store_true", help="hide the record of the package")
    parser.add_argument("--policy", default="online")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="a small network")
    given = parser.parse_args()
    os.environ["NXCORE_POLICY"] = given.policy
    with tempfile.TemporaryDirectory() as folder:
        empty_caches(Path(folder))
        found = run(given.device, given.seconds, unknown=given.unknown, quick=given.quick)
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
