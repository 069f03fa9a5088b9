"""Rules that need a CUDA device: streams, graphs, a second device, offsets above 2^31."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from nxcore.interop import internals
from nxcore.spec.problem import TensorMeta, leaves
from nxcore.testing.cell import Cell, Declined, Inapplicable
from nxcore.testing.rules import Rule
from nxcore.trust.memory import each, poison, span
from nxcore.trust.rows import EDGE
from nxcore.trust.truth import Truth, without_out

CYCLES = 50_000_000
"""Cycles of the device's clock: a wait that is longer than any launch."""


def _ready(cell: Cell) -> tuple[Cell, tuple[Any, ...]]:
    one = cell.first()
    if one.device.type != "cuda":
        raise Inapplicable(f"the kernel runs on {one.device}")
    return one, without_out(one.spec, one.build())


def runs_on_the_current_stream(cell: Cell) -> None:
    """Run on the current stream: it reads inputs that this stream is still writing."""
    one, args = _ready(cell)
    truth, call = Truth.of(one.spec, args), one.plan(args, waits=False)
    call(*args)
    late = each(args, lambda t: t.clone())
    for tensor in leaves(late):
        poison(tensor)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream), torch.no_grad():
        internals.spin(CYCLES)
        for new, old in zip(leaves(late), leaves(args), strict=True):
            new.copy_(old)
        copies = tuple(r.clone() for r in leaves(call(*late)))
    torch.cuda.synchronize()
    one.judge("runs_on_the_current_stream", truth, copies)


def replays_in_a_graph(cell: Cell) -> None:
    """Return the right result when a CUDA graph is replayed with other inputs and poisoned outputs."""
    if cell.device.type == "cuda" and not cell.kernel.graph_safe:
        raise Declined("doesn't claim to be graph_safe")
    one, args = _ready(cell)
    call = one.plan(args, waits=False)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call(*args)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call(*args)
    inputs = {t.data_ptr() for t in leaves(args)}
    for tensor in leaves(result):
        if tensor.data_ptr() not in inputs:
            poison(tensor)
    for tensor in leaves(args):
        if tensor.is_floating_point():
            tensor.mul_(0.5)
    graph.replay()
    torch.cuda.synchronize()
    one.judge("replays_in_a_graph", Truth.of(one.spec, args), result)


def runs_on_another_device(cell: Cell) -> None:
    """Run on the tensors' device when it isn't the current one."""
    one, _ = _ready(cell)
    if torch.cuda.device_count() < 2:
        raise Inapplicable("needs two CUDA devices")
    other = torch.device("cuda", (torch.cuda.current_device() + 1) % torch.cuda.device_count())
    there = dataclasses.replace(one, fixed=other)
    args = there.build()
    there.judge("runs_on_another_device", Truth.of(there.spec, args), there.plan(args)(*args))


def reads_far_offsets(cell: Cell) -> None:
    """Read an element that is more than 2^31 elements from the first."""
    one, args = _ready(cell)
    target = max((t for t in leaves(args) if t.is_floating_point()), key=lambda t: t.numel())
    free, _ = torch.cuda.mem_get_info()
    if not target.ndim or target.shape[0] < 2:
        raise Inapplicable("the first smoke sample has no dimension to stretch")
    stride = EDGE // (target.shape[0] - 1) + 64
    strides = (stride, *TensorMeta.of(target.contiguous()).strides[1:])
    needed = (stride * target.shape[0] + span(target)) * target.element_size()
    if needed > free // 2:
        raise Inapplicable(f"needs {needed >> 30} GiB, and {free >> 30} GiB are free")

    def stretched(tensor: Tensor) -> Tensor:
        if tensor is not target:
            return tensor
        memory = tensor.new_empty(needed // tensor.element_size())
        return memory.as_strided(tensor.shape, strides).copy_(tensor)

    far = each(args, stretched)
    one.judge(
        "reads_far_offsets", Truth.of(one.spec, far), one.plan(far)(*far), about="a stride of 2^31 elements"
    )


ON_CUDA: tuple[Rule, ...] = (
    runs_on_the_current_stream,
    replays_in_a_graph,
    runs_on_another_device,
    reads_far_offsets,
)
"""Rules checked once for each kernel that runs on a CUDA device."""
