"""Expressions against torch's own chain of calls, by size and backend: times, gains, part of the bandwidth.

    python benchmarks/pointwise.py [--device cuda] [--elements 1024 65536 1048576 16777216] > record.json

Inputs are out of cache, with ``--warm`` where the call before left them. Medians over interleaved blocks, and
minima, which other work on the machine disturbs less; a gain is torch's chain over the expression. On the CPU
the row ``reading`` is of adding up each input, which takes as long as reading it. ``--forward`` leaves the
gradients out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional

import nxcore
from nxcore.measure.ceilings import ceilings
from nxcore.measure.cold import rotating, rotation
from nxcore.measure.race import Effort, race
from nxcore.spec.device import describe
from nxcore.store.encoding import encoded

EFFORT = Effort(looks=(20,), warm_s=0.05, budget_s=1.0)

CHAINS: dict[str, Callable[..., torch.Tensor]] = {
    "relu(x) * y + z": lambda x, y, z: torch.relu(x) * y + z,
    "gelu(x) * y": lambda x, y: functional.gelu(x) * y,
    "silu(x) * y": lambda x, y: functional.silu(x) * y,
    "tanh(x) * sigmoid(y) + z": lambda x, y, z: torch.tanh(x) * torch.sigmoid(y) + z,
    "clamp(x * y + z, -1, 1)": lambda x, y, z: torch.clamp(x * y + z, -1, 1),
    "where(x > 0, x, 0.1 * x) * y + z": lambda x, y, z: torch.where(x > 0, x, 0.1 * x) * y + z,
}
"""Each expression, and the chain that it replaces."""


def reading(*args: torch.Tensor) -> None:
    """Read every tensor once."""
    for tensor in args:
        tensor.sum()


def ways(
    text: str, args: tuple[torch.Tensor, ...], backends: Sequence[str]
) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield torch's chain, then the expression on every backend that takes these arguments."""
    yield "eager", CHAINS[text]
    if args[0].device.type == "cpu":
        yield "reading", reading
    name = nxcore.pointwise(text).__name__
    for backend, status in nxcore.backends().items():
        if status.status != "ready" or status.simulated or (backends and backend not in backends):
            continue
        operator = nxcore.op(name, backend=backend)
        try:
            operator(*args)
        except nxcore.errors.NxcoreError:
            continue
        yield backend, operator


def trained(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return forward and backward as one call of the incoming gradient and the tensors."""
    return lambda grad, *args: torch.autograd.grad(call(*args), args, grad)


def measured(
    text: str,
    elements: int,
    device: torch.device,
    dtype: torch.dtype,
    backends: Sequence[str],
    *,
    gradients: bool = True,
    warm: bool = False,
) -> dict[str, Any]:
    """Race one expression of one size, without and, unless they are left out, with gradients."""
    spec = nxcore.pointwise(text).spec
    args = tuple(torch.randn(elements, device=device, dtype=dtype) for _ in spec.expression.tensors)
    found, cache = dict(ways(text, args, backends)), describe(device).l2
    sets = [args] if warm else rotation(args, cache)
    forward = race(rotating(found, sets), device, again="again", effort=EFFORT)
    grad = torch.randn(elements, device=device, dtype=dtype)
    leaves = [(grad, *(t.requires_grad_() for t in given)) for given in sets]
    trainings = {k: trained(c) for k, c in found.items() if gradients and c is not reading}
    both = race(rotating(trainings, leaves), device, again="again", effort=EFFORT) if gradients else {}
    cost, limits = spec.cost(*args, None), ceilings(device)
    floor = 1e6 * cost.bytes / limits.bandwidth(cost.bytes)
    rows = {}
    for label, timing in forward.items():
        rows[label] = {
            "call_us": timing.median_us,
            "least_us": min(timing.call_us),
            "device_us": timing.device_median_us,
            "of_bandwidth": floor / timing.device_median_us,
            "gain": forward["eager"].median_us / timing.median_us,
            "gain_least": min(forward["eager"].call_us) / min(timing.call_us),
            "gain_device": forward["eager"].device_median_us / timing.device_median_us,
            "both_us": both[label].median_us if label in both else None,
            "gain_both": both["eager"].median_us / both[label].median_us if label in both else None,
            "both_device_us": both[label].device_median_us if label in both else None,
            "gain_both_device": both["eager"].device_median_us / both[label].device_median_us
            if label in both
            else None,
        }
    return {"expression": text, "elements": elements, "dtype": str(dtype), "warm": warm, "rows": rows}


def main() -> None:
    """Print the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--elements", type=int, nargs="+", default=[1024, 65536, 1 << 20, 1 << 24])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--backends", nargs="+", default=[], help="only these; by default all that are ready")
    parser.add_argument("--forward", action="store_true", help="without gradients")
    parser.add_argument("--warm", action="store_true", help="inputs where the call before left them")
    given = parser.parse_args()
    device = torch.device(given.device)
    with nxcore.policy("estimate"):
        rows = [
            measured(
                text,
                elements,
                device,
                getattr(torch, dtype),
                given.backends,
                gradients=not given.forward,
                warm=given.warm,
            )
            for text in CHAINS
            for elements in given.elements
            for dtype in given.dtypes
        ]
    print(encoded({"device": describe(device).name, "torch": str(torch.__version__), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
