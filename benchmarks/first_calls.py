"""Time of first calls of new problems with one backend requested, and what it is spent on.

    python benchmarks/first_calls.py [--backend cuda] [--calls 102] [--seed 0] [--device cuda] [--profile 0]

Random problems of random operators, drawn as the tests draw calls, each called once in one process with an
empty cache. A call ends once its device has finished. Printed are the quantiles of the milliseconds
of a call, over all calls, over those that verify a kernel and over the others, and what was compiled; with
``--profile N``, the N functions with the most time of their own and of all that they call.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import statistics
import tempfile
import time
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

QUANTILES = (0.5, 0.9, 1.0)

MOST = 1 << 20
"""The most elements of a tensor."""


def main() -> None:
    """Call the problems, and print the quantiles."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--calls", type=int, default=102)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--profile", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # As set: an empty cache is what is measured.
        os.environ["NXCORE_CACHE"] = folder
        _timed(options)


def _timed(options: argparse.Namespace) -> None:
    import nxcore
    from nxcore.errors import NxcoreError
    from nxcore.spec import tally
    from nxcore.spec.problem import leaves

    calls = _drawn(options)
    torch.zeros(1, device=options.device).sum().item()
    profile = cProfile.Profile() if options.profile else None
    rows: list[tuple[float, bool, str]] = []
    refused = 0
    for spec, args in calls:
        call = nxcore.op(spec.name, backend=options.backend)
        given = {p.name: a for p, a in zip(spec.params, args, strict=True)}
        _finish(options.device)
        before, began = tally.seconds()["gate"], time.perf_counter()
        if profile:
            profile.enable()
        try:
            with torch.no_grad():
                call(**given)
            _finish(options.device)
        except NxcoreError:
            refused += 1
            continue
        finally:
            if profile:
                profile.disable()
        ms = (time.perf_counter() - began) * 1e3
        rows.append(
            (ms, tally.seconds()["gate"] > before, f"{spec.name}{[tuple(t.shape) for t in leaves(args)][:2]}")
        )
    print(
        f"{options.backend} on {options.device}: {len(rows)} calls, {refused} refused; milliseconds of a call"
    )
    for what, found in (
        ("all", rows),
        ("verified", [r for r in rows if r[1]]),
        ("others", [r for r in rows if not r[1]]),
    ):
        _print(what, [row[0] for row in found])
    for ms, _, what in sorted(rows, reverse=True)[:8]:
        print(f"  {ms:8.1f} {what}")
    if profile:
        for order in ("cumulative", "tottime"):
            pstats.Stats(profile).strip_dirs().sort_stats(order).print_stats(options.profile)


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _drawn(options: argparse.Namespace) -> list[tuple[Any, tuple[Any, ...]]]:
    """Draw operators that the backend has kernels for, and arguments of each."""
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from hypothesis import strategies as st

    from nxcore import session
    from tests.outside import blends, filters, norms, products, reductions, rows, strategies  # noqa: F401  each enters its own

    registry = session.default().registry
    names = sorted({k.op for k in registry.backend(options.backend).kernels})
    found: list[tuple[Any, tuple[Any, ...]]] = []

    @seed(options.seed)
    @settings(
        max_examples=options.calls,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=[*HealthCheck],
    )
    @given(st.data())
    def draw(data: Any) -> None:
        spec = registry.spec(data.draw(st.sampled_from(names)))
        args = data.draw(strategies.strategy_of(spec)(MOST))
        found.append((spec, tree_map_only(torch.Tensor, lambda t: t.to(options.device), args)))

    draw()
    return found


def _print(what: str, ms: list[float]) -> None:
    if not ms:
        return
    ranked = sorted(ms)
    at = " ".join(f"{ranked[min(int(q * len(ranked)), len(ranked) - 1)]:9.2f}" for q in QUANTILES)
    print(f"  {what:<9} {len(ms):4} calls, p50 p90 max {at}, mean {statistics.mean(ms):9.2f}")


if __name__ == "__main__":
    main()
