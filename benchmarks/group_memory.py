"""The memory of a cell's call with its convolutions one by one, and together: counted on the CPU, not timed.

    python benchmarks/group_memory.py

A cell of four nodes, as in ``search_step.py``, within a call that may be captured. Kernels are replaced by
functions that allocate what the kernels of CUDA C++ return, and compute nothing. What is counted is what
tensors hold, in multiples of a state: after the forward pass, and at most during the backward pass, which
keeps what autograd saved, as that of a capture does.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import nxcore
from nxcore import nas
from nxcore.graphs import branches
from nxcore.graphs.late import late
from nxcore.nas import blend, group, level, node
from nxcore.nn import sequential

sys.path.append(str(Path(__file__).parents[1]))
from tests.nas import darts

IMAGES, CHANNELS, SIDE, NODES = 8, 16, 16, 4
WAYS = {"one by one": (0, False), "group": (0, True), "nodes": (2, False), "group, nodes": (2, True)}


def made(x: Tensor, _: Tensor, pw: Tensor, stride: Any, *__: Any) -> Tensor:
    """Return memory for the result of a separable convolution that halves its image where it has a stride."""
    step = stride[0] if isinstance(stride, tuple) else stride
    return x.new_empty(x.shape[0], pw.shape[0], x.shape[2] // step, x.shape[3] // step)


class Block(torch.autograd.Function):
    """A separable convolution; with its norm where it has an eps."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dw: Tensor, pw: Tensor, *rest: Any) -> Any:
        out = made(x, dw, pw, *rest)
        if len(rest) < 5:
            ctx.save_for_backward(x, dw, pw)
            return out
        y, mean, var = torch.empty_like(out), x.new_empty(pw.shape[0]), x.new_empty(pw.shape[0])
        ctx.save_for_backward(x, dw, pw, y, mean, var)
        ctx.mark_non_differentiable(y, mean, var)
        return out, y, mean, var

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        grads = [torch.empty_like(t) for t in ctx.saved_tensors[:3]]
        return *grads, *(None for _ in ctx.needs_input_grad[3:])


class Sum(torch.autograd.Function):
    """A sum of results and their norms, as ``batch_norm_sum``."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, norms: int, *xs: Tensor) -> Any:
        found = torch.empty_like(xs[0]), *(xs[0].new_empty(norms, xs[0].shape[1]) for _ in range(2))
        ctx.save_for_backward(weights, *xs)
        ctx.mark_non_differentiable(*found[1:])
        return found

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        weights, *xs = ctx.saved_tensors
        return torch.empty_like(weights), None, *map(torch.empty_like, xs)


def forward(xs: Any, dws: Any, pws: Any, strides: Any, *rest: Any) -> Any:
    """Return memory for what ``foreach_sep_conv2d_batch_norm`` returns."""
    normed = rest[2]
    outs = [made(*one) for one in zip(xs, dws, pws, strides, strict=True)]
    ys = [torch.empty_like(out) for out, norm in zip(outs, normed, strict=True) if norm]
    statistics = [outs[0].new_empty(len(ys), outs[0].shape[1]) for _ in range(2)] if ys else [None, None]
    return outs, ys, *statistics


def backward(*args: Any) -> Any:
    """Return memory for the gradients: of xs and of both weights, which follow the gradients of results."""
    return tuple([torch.empty_like(t) for t in ts] for ts in args[1:4])


def stand_ins() -> None:
    """Replace kernels by functions that allocate."""
    kernels = {
        "foreach_sep_conv2d_batch_norm": forward,
        "foreach_sep_conv2d_batch_norm_backward": backward,
    }
    level._operator = lambda name: SimpleNamespace(by_kernel=kernels[name])  # type: ignore[assignment]  # noqa: SLF001  a stand-in
    sequential._block = sequential._sep_conv2d = SimpleNamespace(by_kernel=Block.apply)  # type: ignore[assignment]  # noqa: SLF001  as above
    summed = SimpleNamespace(by_kernel=lambda xs, w, normed, _: Sum.apply(w, sum(normed), *xs))  # type: ignore[no-untyped-call]  # torch has no types for it
    blend._sum = lambda: summed  # type: ignore[assignment]  # noqa: SLF001  as above
    branches._sum = lambda: SimpleNamespace(by_kernel=lambda grads, _: torch.empty_like(grads[0]))  # type: ignore[assignment]  # noqa: SLF001  as above


def most(profile: Any) -> tuple[int, int]:
    """Return the bytes that are held at the end of a block, and the most within it."""
    events = profile.profiler.kineto_results.events()
    held = peak = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return held, peak


def counted(net: nn.Module, given: list[Tensor]) -> tuple[float, float]:
    """Return what is held after a forward pass, and the most that a backward pass adds, in states."""
    leaves = [t.clone().requires_grad_() for t in given]
    state, profiled = 4 * leaves[0].numel() // leaves[0].shape[1] * CHANNELS, []
    with late(net):
        for _ in range(2):
            with torch.profiler.profile(profile_memory=True) as profile:
                if not profiled:
                    out = net(*leaves)
                    grad = torch.ones_like(out)
                else:
                    wanted = [*leaves, *net.parameters()]
                    found = torch.autograd.grad(out, wanted, grad, retain_graph=True)
                    del found
            profiled.append(most(profile))
    return profiled[0][0] / state, profiled[1][1] / state


def main() -> None:
    """Print a line each way, for a normal cell."""
    torch.manual_seed(0)
    plain = darts.Cell(NODES, CHANNELS, CHANNELS, CHANNELS, False, False)
    rows = sum(2 + i for i in range(NODES))
    given = [torch.randn(IMAGES, CHANNELS, SIDE, SIDE) for _ in range(2)]
    given.append(torch.rand(rows, 8))
    group.ON = True
    net = nn.Sequential(plain)
    nas.patch(net, graphs=False, watch=False)
    plain(*given)  # what reads which state is noted
    stand_ins()
    for name, (norms, together) in WAYS.items():
        blend.ON, node.ON, group.ON = norms > 0, norms > 1, together
        held, peak = counted(plain, given)
        print(f"{name}: {held:.0f} states held, {peak:.0f} more in the backward pass")


if __name__ == "__main__":
    with nxcore.policy("estimate"):
        main()
