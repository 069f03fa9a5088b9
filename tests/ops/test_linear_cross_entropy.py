"""What is true of linear_cross_entropy alone: its memory, its gradients, and what torch's own has."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

import nxcore
from nxcore.ops.linear_cross_entropy import PARTS, PARTS_OF_LOSS

loss_of = nxcore.op("linear_cross_entropy")
REDUCTIONS = ("none", "mean", "sum")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
each_reduction = pytest.mark.parametrize("reduction", REDUCTIONS)


def made(dtype: torch.dtype = torch.float64, rows: int = 13, device: str = "cpu") -> tuple[Tensor, ...]:
    """Return input, weight, bias and targets, of which some are class 3."""
    generator = torch.Generator().manual_seed(rows)
    tensors = (torch.randn(s, dtype=torch.float64, generator=generator) for s in ((rows, 7), (9, 7), (9,)))
    leaves = [t.to(device, dtype).requires_grad_() for t in tensors]
    return *leaves, torch.randint(0, 9, (rows,), generator=generator).to(device)


def torchs(x: Tensor, w: Tensor, target: Tensor, *, linear_bias: Tensor | None = None, **settings) -> Tensor:
    settings["ignore_index"] = -100 if settings.get("ignore_index") is None else settings["ignore_index"]
    return functional.cross_entropy(functional.linear(x, w, linear_bias), target, **settings)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@each_reduction
@pytest.mark.parametrize(
    "settings", [{}, {"ignore_index": 3}, {"ignore_index": 3, "label_smoothing": 0.3}], ids=str
)
def test_loss_and_gradients_are_those_of_float64(dtype, reduction, settings):
    for rows in (1, 13):
        x, w, b, target = made(dtype, rows)
        found = loss_of(x, w, target, linear_bias=b, reduction=reduction, **settings)
        wide = [t.detach().double().requires_grad_() for t in (x, w, b)]
        want = torchs(*wide[:2], target, linear_bias=wide[2], reduction=reduction, **settings)
        grad = torch.linspace(-1, 2, want.numel() or 1, dtype=dtype).view_as(want)
        got = torch.autograd.grad(found, (x, w, b), grad, retain_graph=True)
        again = torch.autograd.grad(found, (x, w, b), grad)  # the first took the buffers over
        right = torch.autograd.grad(want, wide, grad.double())
        assert found.dtype is dtype
        for mine, other in zip((found, *got, *again), (want, *right, *right), strict=True):
            scale = float(other.detach().norm()) or 1.0
            torch.testing.assert_close(mine.double(), other, rtol=0, atol=TOLERANCE[dtype] * scale)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own forward mode uses it
@each_reduction
def test_derivatives_of_any_order(reduction):
    x, w, b, target = made(rows=5)
    settings = {"reduction": reduction, "label_smoothing": 0.1, "ignore_index": 3}

    def function(x, w, b):
        return loss_of(x, w, target, linear_bias=b, **settings)

    assert torch.autograd.gradcheck(function, (x, w, b))
    assert torch.autograd.gradgradcheck(function, (x, w, b))
    plain = [t.detach() for t in (x, w, b)]
    want = torch.autograd.grad(function(x, w, b).sum(), x)[0]
    torch.testing.assert_close(torch.func.grad(lambda x: function(x, *plain[1:]).sum())(plain[0]), want)
    tangents = [torch.ones_like(t) for t in plain]
    _, forward = torch.func.jvp(lambda *args: function(*args).sum(), tuple(plain), tuple(tangents))
    found = torch.autograd.grad(function(x, w, b).sum(), (x, w, b))
    torch.testing.assert_close(forward, sum((g * t).sum() for g, t in zip(found, tangents, strict=True)))


def test_one_gradient_alone():
    x, w, b, target = made()
    every = torch.autograd.grad(loss_of(x, w, target, linear_bias=b), (x, w, b))
    for i, want in enumerate(every):
        args = [t if i == j else t.detach() for j, t in enumerate((x, w, b))]
        (found,) = torch.autograd.grad(loss_of(*args[:2], target, linear_bias=args[2]), args[i])
        torch.testing.assert_close(found, want)


def test_a_mean_over_ignored_rows_is_torchs():
    x, w, _, target = made()
    for settings in ({"ignore_index": 0}, {"ignore_index": 0, "label_smoothing": 0.5}):
        found = loss_of(x, w, torch.zeros_like(target), **settings)
        assert found.isnan()
        assert [float(g.abs().sum()) for g in torch.autograd.grad(found, (x, w))] == [0, 0]


def test_a_mean_in_float16_keeps_gradients_that_the_scale_of_a_loss_carries():
    rows = 4096
    x, w = torch.ones(rows, 1, dtype=torch.float16), torch.zeros(512, 1, dtype=torch.float16)
    w.requires_grad_()
    loss = loss_of(x, w, torch.arange(rows) % 511)
    (found,) = torch.autograd.grad(loss, w, torch.tensor(1024.0, dtype=torch.float16))
    torch.testing.assert_close(found[-1].float(), torch.tensor([1024 / 512]), rtol=1e-2, atol=0)


def test_autocast_is_torchs():
    x, w, b, target = made(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found, want = (f(x, w, target, linear_bias=b) for f in (loss_of, torchs))
    assert found.dtype is want.dtype is torch.float32
    torch.testing.assert_close(found, want, rtol=1e-2, atol=0)
    for mine, other in zip(
        torch.autograd.grad(found, (x, w, b)), torch.autograd.grad(want, (x, w, b)), strict=True
    ):
        assert mine.dtype is torch.float32
        torch.testing.assert_close(mine, other, rtol=0, atol=2e-2)


def test_compiled_it_is_torchs():
    torch._dynamo.reset()
    x, w, b, target = made()
    compiled = torch.compile(lambda x: loss_of(x, w, target, linear_bias=b) * 2, backend="aot_eager")
    want = torchs(x, w, target, linear_bias=b) * 2
    torch.testing.assert_close(compiled(x), want)
    torch.testing.assert_close(torch.autograd.grad(compiled(x), x), torch.autograd.grad(want, x))


def test_arguments_stay_and_a_model_learns():
    x, w, b, target = made(rows=40)
    head = torch.nn.Linear(7, 9).double()
    other = copy.deepcopy(head)
    before = [t.detach().clone() for t in (x, w, b)]
    for model, function in ((head, loss_of), (other, torchs)):
        rate = torch.optim.SGD(model.parameters(), 0.5)
        for _ in range(3):
            rate.zero_grad()
            function(x.detach(), model.weight, target, linear_bias=model.bias).backward()
            rate.step()
    loss_of(x, w, target, linear_bias=b).backward()
    for mine, want in zip(head.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, want)
    for mine, want in zip((x, w, b), before, strict=True):
        torch.testing.assert_close(mine, want, rtol=0, atol=0)


def peak(call: Callable[[], object]) -> int:
    """Return the most bytes that a call holds at once on the CPU, by torch's own record of allocations."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        call()
    now = most = 0
    events = [e for e in found.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


SIZE = (64, 8, 128 * 1024)  # rows, features, classes


@each_reduction
@pytest.mark.parametrize("trains", [True, False])
def test_memory_on_the_cpu_is_a_tenth_of_torchs(reduction, trains):
    rows, features, classes = SIZE
    x, w = torch.randn(rows, features), torch.randn(classes, features)
    w.requires_grad_(trains)
    x.requires_grad_(trains)
    target = torch.arange(rows)
    results = 4 * (w.numel() + x.numel()) if trains else 0

    def step(function: Callable[..., Tensor]) -> int:
        def call() -> None:
            loss = function(x, w, target, reduction=reduction)
            if trains:
                torch.autograd.grad(loss.sum(), (x, w))

        return peak(call) - results

    mine, torchs_own = step(loss_of), step(torchs)
    assert mine <= torchs_own / 10, (mine, torchs_own)
    part = 4 * rows * classes // (PARTS if trains else PARTS_OF_LOSS)
    assert mine >= part, "less than one part's logits: the count is wrong"


@pytest.mark.gpu
@each_reduction
def test_memory_on_a_device_is_a_tenth_of_torchs(reduction):
    rows, features, classes = 1024, 256, 128 * 1024
    x = torch.randn(rows, features, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    w = torch.randn(classes, features, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(0, classes, (rows,), device="cuda")

    def step(function: Callable[..., Tensor]) -> int:
        for _ in range(2):  # the first makes the library's workspaces
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            torch.autograd.grad(function(x, w, target, reduction=reduction).sum(), (x, w))
        return torch.cuda.max_memory_allocated() - before - x.nbytes - w.nbytes

    assert step(loss_of) <= step(torchs) / 10
