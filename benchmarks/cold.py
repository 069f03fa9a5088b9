"""A search step from empty caches: seconds until it has its speed.

    python benchmarks/cold.py [--unknown | --shipped FOLDER] [--policy online] [--seconds 120] [--device cuda]
                              [--quick] [--export FILE]

With ``--unknown`` the record of the package is hidden, as if nobody had measured this device. Steps of a
patched DARTS network (8 cells, C = 16, batch 64 of 3 x 32 x 32, float32) run until the time is over. Printed
are the first step's seconds, the seconds after which steps take at most 1.1 times the median of the last
ones, what was compiled and raced, and the operators of problems that are undecided at the end.
``--export`` writes what was measured as a file of the package's record, ``--shipped`` takes the record from
another folder. ``NXCORE_WORKERS`` sets the number of workers, 0 for none.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
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


def run(device: str, seconds: float, *, shipped: Path | None, quick: bool) -> dict[str, Any]:
    """Run steps for some seconds; return when they had their speed.

    Parameters
    ----------
    device : str
    seconds : float
    shipped : Path, optional
        The folder that stands in for the package's record.
    quick : bool
        Whether the network is a small one.
    """
    import torch
    from torch.nn.functional import cross_entropy

    import nxcore
    from nxcore import nas
    from nxcore.store import transfer

    sys.path.append(str(Path(__file__).parents[1]))
    from tests.nas import darts  # the plain network, which is no part of the package

    transfer.SHIPPED = shipped or transfer.SHIPPED
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
        "undecided": Counter(
            f"{row['problem']['op']}, {row['state']}: {row['reason']}"
            for row in status["rows"]
            if row["state"] in ("learning", "unknown")
        ).most_common(),
    }


def export(path: Path) -> None:
    """Write what this process measured as a file of the package's record."""
    from nxcore import session
    from nxcore.store import transfer

    transfer.write(path, transfer.exported(session.default().wisdom.store))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    hidden = parser.add_mutually_exclusive_group()
    hidden.add_argument("--unknown", action="store_true", help="hide the record of the package")
    hidden.add_argument("--shipped", type=Path, help="the folder of another record")
    parser.add_argument("--policy", default="online")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="a small network")
    parser.add_argument("--export", type=Path, help="write what was measured")
    given = parser.parse_args()
    os.environ["NXCORE_POLICY"] = given.policy
    with tempfile.TemporaryDirectory() as folder:
        empty_caches(Path(folder))
        shipped = Path(folder) / "none" if given.unknown else given.shipped
        found = run(given.device, given.seconds, shipped=shipped, quick=given.quick)
        if given.export:
            export(given.export)
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
