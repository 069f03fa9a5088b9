"""The demo as data: a small convolutional model on real images, plain and accelerated.

It compares the kernels of one layer, and times a step of the model. Then it runs one mixed edge of a DARTS
cell: eight operations (Liu, Simonyan, Yang 2019, arXiv:1806.09055) run as torch modules on the same images,
and ``softmax_sum`` adds up their outputs, forward and backward. An expression follows, of which each backend
makes a kernel. On request it compares ``add`` and ``sum`` at three sizes.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nxcore import __version__
from nxcore.bench.example import CHANNELS, LAYER, SIDE, Step, compared, digits, network
from nxcore.errors import present
from nxcore.expression.grammar import parsed
from nxcore.measure.ceilings import SLACK, TRIES, Ceilings, ceilings, ceilings_now
from nxcore.measure.decision import Candidate
from nxcore.registry.made import define
from nxcore.session import Session, default
from nxcore.spec.device import describe
from nxcore.spec.kernel import Code
from nxcore.spec.problem import tensors_of
from nxcore.spec.spec import OpSpec
from nxcore.trust.truth import Truth

BATCH = 64
EXPRESSION = "relu(x) * y + z"
"""A text as users write it; every backend makes a kernel of it."""
ELEMENTS = 2**20
ASKED = "only on request"

Advance = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel on one problem.

    Attributes
    ----------
    label : str
        The kernel.
    verdict : str
        ``verified``, ``wrong`` or ``not run``.
    detail : str
        Why it didn't run, or how it ran (in an interpreter).
    error : float, optional
        Relative error against float64 in the 2-norm: on this problem, or on the operator's smoke samples
        if the kernel runs in an interpreter.
    median_us : float, optional
        Median time of a call, in microseconds.
    ratio : (float, float, float), optional
        Times as fast as torch's fastest idiom: median and interval.
    share : float, optional
        The roofline's time over the measured time.
    """

    label: str
    verdict: str
    detail: str
    error: float | None = None
    median_us: float | None = None
    ratio: tuple[float, float, float] | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One problem: a row for each kernel, and the winner.

    Attributes
    ----------
    title : str
        Title of the table.
    rows : tuple of Row
        Every kernel of every backend.
    chosen : str
        The winner.
    reason : str
        Why it is the winner.
    floor_us : float
        The shortest time possible on this device, in microseconds.
    """

    title: str
    rows: tuple[Row, ...]
    chosen: str
    reason: str
    floor_us: float

    @property
    def beaten(self) -> list[str]:
        """The kernels faster than the floor. If torch's own is one of them, the floor is wrong."""
        return [row.label for row in self.rows if (row.share or 0.0) * SLACK > 1]


@dataclass(frozen=True, slots=True)
class Report:
    """The results of the demo.

    Attributes
    ----------
    head : dict
        Device, versions, data.
    cells : tuple of Cell
        One for each problem.
    absent : dict
        Backend -> why it can't run here.
    on_request : dict
        Backend -> why it runs on request only. The demo requests none.
    edge : dict
        The mixed edge end to end: the loss, and the errors of output and gradients against float64.
    step : Step
        The model's step, plain and accelerated.
    """

    head: dict[str, Any]
    cells: tuple[Cell, ...]
    absent: dict[str, str]
    on_request: dict[str, str]
    edge: dict[str, Any]
    step: Step

    @property
    def wrong(self) -> bool:
        """Whether any kernel disagrees with the reference."""
        return any(row.verdict == "wrong" for cell in self.cells for row in cell.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        parts = {"head": self.head, "cells": [asdict(cell) for cell in self.cells]}
        rest = {"absent": self.absent, "on_request": self.on_request, "edge": self.edge}
        return parts | rest | {"step": self.step.to_dict()}


class _Zero(nn.Module):
    """DARTS' "none"."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 0


def candidates(channels: int) -> nn.ModuleDict:
    """Return DARTS' eight candidate operations as torch modules, stride 1."""

    def norm() -> nn.Module:
        return nn.BatchNorm2d(channels, affine=False)

    def depthwise(k: int, dilation: int) -> list[nn.Module]:
        pad = dilation * (k - 1) // 2
        spatial = nn.Conv2d(
            channels, channels, k, padding=pad, dilation=dilation, groups=channels, bias=False
        )
        return [nn.ReLU(), spatial, nn.Conv2d(channels, channels, 1, bias=False), norm()]

    return nn.ModuleDict(
        {
            "none": _Zero(),
            "max_pool_3x3": nn.Sequential(nn.MaxPool2d(3, 1, 1), norm()),
            "avg_pool_3x3": nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False), norm()),
            "skip_connect": nn.Identity(),
            "sep_conv_3x3": nn.Sequential(*depthwise(3, 1), *depthwise(3, 1)),
            "sep_conv_5x5": nn.Sequential(*depthwise(5, 1), *depthwise(5, 1)),
            "dil_conv_3x3": nn.Sequential(*depthwise(3, 2)),
            "dil_conv_5x5": nn.Sequential(*depthwise(5, 2)),
        }
    )


def run(
    device: torch.device,
    *,
    seed: int = 0,
    everything: bool = False,
    advance: Advance = lambda *_: None,
) -> Report:
    """Run the demo.

    Parameters
    ----------
    device : torch.device
        Where the model and its data are.
    seed : int
        Seed of the weights and of the choice of images.
    everything : bool
        Also compare ``add`` and ``sum``.
    advance : callable
        Called before each step with its name, the number of steps done and their total.

    Returns
    -------
    Report
        Data only; ``nxcore.cli.scoreboard`` prints it.

    Raises
    ------
    NxcoreError
        If scikit-learn isn't installed. Nothing is measured then.
    """
    session, steps = default(), 13 if everything else 7
    data, labels = digits(BATCH, device, seed)
    torch.manual_seed(seed)
    model = network().to(device)
    with session.policy("measure"):
        advance("measuring this device's bandwidth and throughput", 0, steps)
        best = ceilings(device)
        advance("a model's step, plain and accelerated", 1, steps)
        step = compared(model, data, labels)
        operations = candidates(CHANNELS).to(device)
        with torch.no_grad():
            hidden = state = model[:LAYER](data)
            xs = tuple(operation(state) for operation in operations.values())
        logits = 1e-3 * torch.randn(len(xs), device=device)
        cells = []
        problems = _problems(model, hidden, xs, logits, everything=everything)
        for done, (title, name, args) in enumerate(problems, start=2):
            advance(title, done, steps)
            best, cell = _sure(session, best, title, name, args)
            cells.append(cell)
        edge = _edge(session, state, operations, logits)
    advance("done", steps, steps)
    absent = {name: status.reason for name, status in session.backends().items() if status.status != "ready"}
    head = _head(device, best, cells, list(operations))
    return Report(head, tuple(cells), absent, _on_request(session, cells), edge, step)


def _on_request(session: Session, cells: list[Cell]) -> dict[str, str]:
    """Return why each backend is left out that takes part on request only."""
    left_out = {row.label for cell in cells for row in cell.rows if row.detail == ASKED}
    return {
        name: backend.on_request
        for name, backend in session.registry.backends.items()
        if any(backend.label(kernel) in left_out for kernel in backend.kernels)
    }


def _head(device: torch.device, best: Ceilings, cells: list[Cell], operations: list[str]) -> dict[str, Any]:
    """Return what the figures depend on."""
    return {
        "device": describe(device).to_dict(),
        "ceilings": best.to_dict(),
        "unsure": best.unsure or any(n.startswith("torch") for cell in cells for n in cell.beaten),
        "images": f"{BATCH} handwritten digits as ({BATCH}, 1, {SIDE}, {SIDE}) float32",
        "versions": {
            "nxcore": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "operations": operations,
    }


def _problems(
    model: nn.Sequential, hidden: Tensor, xs: tuple[Tensor, ...], logits: Tensor, *, everything: bool
) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    layer: Any = model[LAYER]
    shape, device = "x".join(map(str, hidden.shape)), hidden.device
    weight, how = layer.weight.detach(), (layer.stride, layer.padding, layer.dilation)
    what = "depthwise 5x5"
    yield f"the model's layer, {what} of {shape}", "depthwise_conv2d", (hidden, weight, *how)
    grad = torch.randn_like(hidden)
    backward = (grad, hidden, weight, *how, (True, True))
    yield f"its gradient, {what} of {shape}", "depthwise_conv2d_backward", backward
    shape = "x".join(map(str, xs[0].shape))
    yield f"softmax_sum forward, {len(xs)} x {shape}", "softmax_sum", (xs, logits)
    grad = torch.randn_like(xs[0])
    yield f"softmax_sum backward, {len(xs)} x {shape}", "softmax_sum_backward", (grad, xs, logits, None)
    made = define(default().registry, parsed(EXPRESSION, {}), "demonstrated").name
    triple = (torch.randn(ELEMENTS, device=device) for _ in range(3))
    yield f"expression {EXPRESSION}, {ELEMENTS:,} elements", made, (*triple, None)
    if not everything:
        return
    for n in (1_024, 102_400, 10_240_000):
        x, y = (torch.randn(n, device=device) for _ in range(2))
        yield f"add, {n:,} elements", "add", (x, y, 1, None)
    for size, dim in (((64, 128), -1), ((64, 16, 32, 32), (0, 2, 3)), ((4096, 2048), 0)):
        x = torch.randn(size, device=device)
        yield f"sum, {'x'.join(map(str, size))} over {dim}", "sum", (x, dim, False)


def _sure(
    session: Session, best: Ceilings, title: str, name: str, args: tuple[Any, ...]
) -> tuple[Ceilings, Cell]:
    """Decide one problem; measure the ceilings again while a kernel exceeds them.

    Ceilings come out too low if other work runs during their measurement.
    """
    cell = _cell(session, best, title, name, args)
    for _ in range(TRIES):
        if cell.beaten:
            best = best.raised(ceilings_now(tensors_of(args)[0].device))
            cell = _cell(session, best, title, name, args)
    return best, cell


def _cell(session: Session, best: Ceilings, title: str, name: str, args: tuple[Any, ...]) -> Cell:
    """Decide one problem and check every kernel's result."""
    spec = session.registry.spec(name)
    keywords = {p.name: a for p, a in zip(spec.params, args, strict=True) if p.keyword}
    positional = args[: len(args) - len(keywords)]
    decision = session.explain(name, *positional, **keywords).decision
    floor = best.floor_us(spec.cost(*args))
    truth = Truth.of(spec, args)
    rows = tuple(_row(session, spec, args, truth, c, floor) for c in decision.candidates)
    return Cell(title, rows, decision.chosen, decision.reason, floor)


def _row(
    session: Session, spec: OpSpec, args: tuple[Any, ...], truth: Truth, found: Candidate, floor: float
) -> Row:
    if found.refusal:
        wrong = found.refusal.code is Code.WRONG
        if found.refusal.code is Code.ON_REQUEST:  # the summary gives the reason once
            return Row(found.label, "not run", ASKED)
        return Row(found.label, "wrong" if wrong else "not run", found.refusal.reason, found.error)
    if found.simulated:
        return Row(found.label, "verified", "in its interpreter, so not timed", found.error)
    call = _call(session, spec, args, found)
    with torch.no_grad():
        agreed = truth.judge(call(*args))
    if not agreed.ok:
        return Row(found.label, "wrong", agreed.reason, agreed.error)
    timing, ratio = found.timing, found.ratio
    return Row(
        label=found.label,
        verdict="verified",
        detail="",
        error=agreed.error,
        median_us=timing.median_us if timing else None,
        ratio=(ratio.median, ratio.low, ratio.high) if ratio else None,
        share=floor / timing.device_median_us if timing else None,
    )


def _call(session: Session, spec: OpSpec, args: tuple[Any, ...], found: Candidate) -> Callable[..., Any]:
    """Return the planned call of one candidate."""
    from nxcore.spec.problem import Problem

    problem = Problem.of(spec, args)
    for backend, kernel in session.registry.kernels(spec.name):
        if backend.label(kernel) == found.label:
            return kernel.plan(problem)
    raise AssertionError(f"{found.label!r} is a candidate and has no kernel")


def _edge(session: Session, state: Tensor, operations: nn.ModuleDict, logits: Tensor) -> dict[str, Any]:
    """Run the edge with gradients through nxcore, and again in float64 through torch."""
    alpha = logits.clone().requires_grad_()
    x = state.detach().clone().requires_grad_()
    with torch.backends.cudnn.flags(
        enabled=True, allow_tf32=False
    ):  # TF32 in torch's convolutions would add to the error
        out = session.op("softmax_sum")([operation(x) for operation in operations.values()], alpha)
        out.square().mean().backward()
    wide = operations.double()
    alpha64 = logits.double().requires_grad_()
    x64 = state.double().requires_grad_()
    weights = torch.softmax(alpha64, 0)
    terms = [w * operation(x64) for w, operation in zip(weights, wide.values(), strict=True)]
    out64 = torch.stack(terms).sum(0)
    loss = out64.square().mean()
    loss.backward()
    operations.float()

    def error(got: Tensor | None, want: Tensor | None) -> float:
        got, want = present(got, "got"), present(want, "want")
        return float((got.double() - want).norm() / want.norm())

    return {
        "loss": float(loss.detach()),
        "output_error": error(out.detach(), out64.detach()),
        "logits_grad_error": error(alpha.grad, alpha64.grad),
        "input_grad_error": error(x.grad, x64.grad),
    }
