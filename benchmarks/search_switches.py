"""A search step with each way of a capture switched on in turn: times, memory, launches by group, errors.

    python benchmarks/search_switches.py [--seconds 80]

The network is that of ``search_step.py``, patched; kernels are those of CUDA C++, without a race. The ways:
each norm's statistics and each gradient by itself (``before``), the statistics of a cell together (``late``),
the gradients of branches and of weights' rows too (``fans``), the sums of weights' gradients too
(``totals``), all of that with operations on 2 or 4 streams, and with the norms that end an edge's operations
computed with their weighted sum, by edge and by node (``edges``, ``nodes``), and with the separable
convolutions that leave a state computed together, alone and with those sums (``group``, ``group, nodes``).
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import statistics
import sys
import time
from collections import Counter
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import nxcore
from nxcore import nas
from nxcore.graphs import branches, capture, part, recorder, rows, together
from nxcore.nas import blend, group, node

sys.path.append(str(Path(__file__).parents[1]))
from benchmarks import search_step

LATE, NONE = branches.LATE, ContextVar("none", default=None)
WAYS = {  # late, fans, totals, streams, sums with norms: 1 of edges, 2 of nodes; convolutions together
    "totals": (True, True, True, 1, 0, False),
    "nodes": (True, True, True, 1, 2, False),
    "group": (True, True, True, 1, 0, True),
    "group, nodes": (True, True, True, 1, 2, True),
    "edges": (True, True, True, 1, 1, False),
    "fans": (True, True, False, 1, 0, False),
    "before": (False, False, False, 1, 0, False),
    "4 streams": (True, True, True, 4, 0, False),
    "late": (True, False, False, 1, 0, False),
    "2 streams": (True, True, True, 2, 0, False),
}
CAPTURED = ("fans", "totals", "nodes", "group", "group, nodes", "edges", "before")
"""Ways whose whole step is captured too: streams are tried in cells alone."""

GROUPS = {
    "statistics": ("multi_tensor_apply", "CUDAFunctorOnSelf_add<long>"),
    "additions": ("CUDAFunctor_add<float>",),
    "sums of many": ("softmax_sum__", "weighted_sum"),
    "sums of many, gradients": ("softmax_sum_backward",),
    "sums of norms": ("batch_norm_sum",),
    "totals": ("sep_conv2d_totals", "column_sums"),
    "torch's max-pool gradients": ("max_pool_backward",),
    "convolutions": ("sep_conv2d_", "sep_conv2d__"),
    "norms": ("batch_norm",),
}


def take(late: bool, fans: bool, totals: bool, streams: int, norms: int, grouped: bool) -> None:
    """Switch to a way."""
    held = LATE_BLOCK if late else (lambda *_: contextlib.nullcontext())
    capture.late = part.late = held  # type: ignore[attr-defined]  # imported there
    branches.LATE = rows.LATE = LATE if fans else NONE  # type: ignore[assignment, attr-defined]  # as above
    together.ON, group.ON = totals, grouped
    recorder.STREAMS, blend.ON, node.ON = streams, norms > 0, norms > 1
    recorder._recorders.clear()  # noqa: SLF001  lanes are made once


LATE_BLOCK = capture.late  # type: ignore[attr-defined]  # as above


def groups(step: Any) -> dict[str, tuple[int, float]]:
    """Return the launches and the milliseconds of each group of kernels in one step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    count: Counter[str] = Counter()
    ms: Counter[str] = Counter()
    for e in profile.key_averages():
        if e.device_type != torch.autograd.DeviceType.CUDA:
            continue
        kind = next((g for g, names in GROUPS.items() if any(n in e.key for n in names)), "other")
        for name in (kind, "all"):
            count[name] += e.count
            ms[name] += e.self_device_time_total / 1e3
    return {name: (count[name], ms[name]) for name in count}


def listed(found: dict[str, tuple[int, float]]) -> str:
    """Return groups as text: name, launches, milliseconds."""
    return "; ".join(f"{g} {n} {ms:.2f}" for g, (n, ms) in sorted(found.items()))


def off(found: list[Tensor], exact: list[Tensor]) -> str:
    """Return the errors of scores, architecture's gradient, and weights' gradients in the median."""
    each = [float((g - e).norm() / e.norm()) for g, e in zip(found, exact, strict=True) if float(e.norm())]
    return f"{each[0]:.1e} {each[1]:.1e} {statistics.median(each[2:]):.1e}"


def pools() -> None:
    """Print whose gradient a max pool of the network has, eager and captured, where choices are free."""
    for channels, side, stride in ((16, 32, 1), (32, 32, 2), (32, 16, 1), (64, 16, 2), (64, 8, 1)):
        pool = nxcore.nn.MaxPool2d(3, stride, 1)
        x = torch.randn(64, channels, side, side, device="cuda", requires_grad=True)

        def step(pool: Any = pool, x: Tensor = x) -> Tensor:
            out = pool(x)
            return torch.autograd.grad(out, x, torch.ones_like(out))[0]

        name = "torch's max-pool gradients"
        with nxcore.policy("measure"):
            for _ in range(6):
                step()
            eager = groups(step).get(name, (0, 0))[0]
            captured = groups(nxcore.graphed(step)).get(name, (0, 0))[0]
        print(
            f"max pool {channels}x{side}x{side} stride {stride}: torch's {eager} eager, {captured} captured"
        )


def main() -> None:
    """Print a line each way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=80.0)
    given, began = parser.parse_args(), time.perf_counter()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    images, labels = torch.randn(64, 3, 32, 32, device="cuda"), torch.randint(10, (64,), device="cuda")
    logits = (1e-3 * torch.randn(2, 14, 8, device="cuda")).requires_grad_()
    plain = search_step.networks()["plain"]()
    truth, wide = copy.deepcopy(plain).double(), logits.detach().double().requires_grad_()
    _, scores, gradients = search_step.step_of(truth, images.double(), labels, wide)()
    exact = [scores, *gradients]
    for _ in range(4):  # as many as update the statistics of a captured step: its warm-ups, and a replay
        _, scores, gradients = search_step.step_of(plain, images, labels, logits)()
    print(f"plain: errors {off([scores, *gradients], exact)}", flush=True)
    state = {n: b.clone() for n, b in plain.named_buffers()}
    del plain, truth, gradients
    part.MET = 2
    for name, way in WAYS.items():
        if time.perf_counter() - began > given.seconds:
            print(f"{name}: left out, {given.seconds:.0f} s are over")
            continue
        gc.collect()
        torch.cuda.empty_cache()
        take(*way)
        net = search_step.networks()["patched"]()
        step = search_step.step_of(net, images, labels, logits)
        _, scores, gradients = step()
        torch.cuda.synchronize()
        for _ in range(2):
            step()
        torch.cuda.reset_peak_memory_stats()
        _, scores, gradients = step()
        errors = off([scores, *gradients], exact)
        eager = search_step.timed(step)
        peak = torch.cuda.max_memory_allocated() / 2**30
        print(f"{name}: eager {eager:.1f} ms, peak {peak:.2f} GiB, errors {errors}", flush=True)
        states = nas.replays(net)
        print("  ", *(states[f"cells.{i}"] for i in (0, 5)), sep=" | ")
        found = groups(step)
        print("   eager:", listed(found), flush=True)
        if name in CAPTURED:
            del net, step, gradients
            net = search_step.networks()["patched"]()
            torch.cuda.reset_peak_memory_stats()
            replay = nxcore.graphed(search_step.step_of(net, images, labels, logits))
            replay()
            buffers = dict(net.named_buffers())
            differs = max(float((buffers[n].double() - b.double()).abs().max()) for n, b in state.items())
            ms, peak = search_step.timed(replay), torch.cuda.max_memory_allocated() / 2**30
            print(f"   captured {ms:.1f} ms, peak {peak:.2f} GiB, statistics off by {differs:.1e}")
            found = groups(replay)
            print(
                "   captured:",
                "; ".join(f"{g} {n} {ms:.2f}" for g, (n, ms) in sorted(found.items())),
                flush=True,
            )
            del net, replay, buffers


if __name__ == "__main__":
    with nxcore.use("cuda"):
        main()
    pools()
