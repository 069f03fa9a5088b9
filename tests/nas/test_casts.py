"""Cells under autocast: what layers of torch return, and which operators compute it."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import nxcore
from nxcore.graphs.late import late
from nxcore.nas import blend, casts, group
from tests.nas import darts
from tests.nas.grouped import COUNTS, cell, cells, given
from tests.nas.switches import switch

pytestmark = pytest.mark.usefixtures("decided")

HALVES = (torch.bfloat16, torch.float16)


def single(reduction=False):
    """A cell and a patched copy, in float32, whose readers are noted; and the arguments of a call."""
    made = cells(lambda: darts.Cell(2, 4, 4, 4, reduction, False))
    plain, patched = (net.float() for net in made)
    states = [t.float() for t in given(5, 8)]
    for net in (plain, patched):
        net[0](*states)
    return plain, patched, states


def outcome(net, args, half=None):
    """The result, the gradients of arguments and of weights, and the running statistics."""
    x = [t.clone().requires_grad_() for t in args]
    with torch.autocast("cpu", half, enabled=half is not None):
        out = net[0](*x)
    out.to(torch.promote_types(out.dtype, torch.float32)).square().mean().backward()
    grads = [t.grad for t in (*x, *net[0].parameters())]
    return [out.detach(), *grads, *(b for b in net[0].buffers() if b.is_floating_point())]


def near(got, plain, exact):
    """Dtypes are those of the plain cell; errors are at most twice as large, as norms of all."""
    assert [t.dtype for t in got] == [t.dtype for t in plain]
    off, usual = (
        [float((t.double() - e).norm() / e.norm()) for t, e in zip(found, exact, strict=True)]
        for found in (got, plain)
    )
    assert off[0] <= 2 * usual[0]
    assert sum(off) <= 2 * sum(usual)


@pytest.fixture
def summed(monkeypatch):
    """Norms are computed with sums, as by a kernel; the dtypes of what each sum takes."""
    found = []

    def by_kernel(xs, weights, normed, eps):
        found.append({x.dtype for x in xs})
        return nxcore.op("batch_norm_sum")(xs, weights, normed, eps)

    switch(monkeypatch, blend, on=True)
    monkeypatch.setattr(blend, "_sum", lambda: SimpleNamespace(by_kernel=by_kernel))
    return found


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_a_cell_computes_convolutions_together_under_autocast(served, half):
    plain, patched, args = single()
    exact = outcome(copy.deepcopy(plain).double(), [t.double() for t in args])
    want = outcome(plain, args, half)
    with late(patched[0]) as waiting:
        got = outcome(patched, args, half)
    assert waiting.alone == ""
    assert served.forward == COUNTS
    assert sorted(served.backward) == sorted(COUNTS)
    near(got, want, exact)


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("reduction", [False, True])
def test_with_norms_in_sums_only_nodes_are_rounded(served, summed, half, reduction):
    """Each cast of a result, or of its gradient, is a launch."""
    plain, patched, args = single(reduction)
    exact = outcome(copy.deepcopy(plain).double(), [t.double() for t in args])
    want = outcome(plain, args, half)
    with late(patched[0]) as waiting, Casts() as made:
        got = outcome(patched, args, half)
    assert waiting.alone == ""
    assert waiting.norms
    assert summed == [{torch.float32}] * 2, "a sum for each node"
    assert served.forward == COUNTS
    assert made.counts == CASTS
    near(got, want, exact)


# Nodes are rounded and states widened, and gradients the other way; then both arguments, and the outcome.
CASTS = [2 + 2 + 2 + 1] * 2


class Casts(TorchDispatchMode):
    """Counts the copies of images that round them, and those that widen them."""

    def __init__(self):
        super().__init__()
        self.counts = [0, 0]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._foreach_copy_.default:
            self.note(args[1][0], args[0][0])
        elif func in (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default):
            self.note(args[-1], out)
        return out

    def note(self, before, after):
        if before.dtype is not after.dtype and before.ndim == 4 and before.shape[2:] != (1, 1):
            self.counts[before.dtype is not torch.float32] += 1


def test_convolutions_of_a_state_in_float64_are_as_without_autocast(served):
    plain, patched = cells(cell)
    args = given(5, 8)
    patched[0](*args)
    want = outcome(plain, args)
    with late(patched[0]), torch.autocast("cpu", torch.bfloat16):
        got = patched[0](*args)
    assert served.forward == COUNTS
    torch.testing.assert_close(got, want[0])


def test_a_state_in_another_dtype_under_autocast_has_results_of_its_own(served):
    _, patched, args = single()
    ops, x = [patched[0]._ops[edge]._ops[4] for edge in (0, 2)], args[0]  # both read one state
    with group.reading(patched[0]), late(patched[0]):
        with torch.autocast("cpu", torch.bfloat16):
            narrow = group.outputs(ops[:1], x)
        wide = group.outputs(ops[1:], x)
    assert [given.out.dtype for given in narrow.values()] == [torch.bfloat16]
    assert [given.out.dtype for given in wide.values()] == [torch.float32]


def test_rounded_tensors_have_gradients_of_any_order_and_some_have_none():
    x = torch.randn(3, 4, requires_grad=True)
    y = torch.randn(2, requires_grad=True)
    a, b = casts.rounded([x, y], torch.bfloat16)
    assert a.dtype is b.dtype is torch.bfloat16
    assert a.equal(x.to(torch.bfloat16))
    (grad,) = torch.autograd.grad(a.sum(), x, retain_graph=True)  # expanded: it has no memory of its own
    assert grad.equal(torch.ones(3, 4))
    assert torch.autograd.grad(a.sum(), y, retain_graph=True, allow_unused=True) == (None,)
    (once,) = torch.autograd.grad(a.float().square().sum(), x, create_graph=True)
    (twice,) = torch.autograd.grad(once.sum(), x)
    assert twice.equal(torch.full((3, 4), 2.0))
    rows = torch.eye(2, dtype=torch.bfloat16)
    (each,) = torch.autograd.grad(b, y, rows, is_grads_batched=True)
    assert each.equal(torch.eye(2))


@pytest.mark.parametrize("size", [2, 300])
def test_large_tensors_are_widened_in_parts_that_fill_a_device(size, monkeypatch):
    parts = []
    copy_ = torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda to, given: parts.append(len(to)) or copy_(to, given))
    both = torch.randn(4, 2 * size, size).to(torch.bfloat16)
    (wide,) = casts.rounded([both[:, :size]], torch.float32)  # a slice, as the gradient of a concatenation is
    assert wide.equal(both[:, :size].float())
    assert wide.is_contiguous()
    assert parts == [4 if size > 2 else 1]
    expanded = torch.ones(4, 2 * size, 1, dtype=torch.bfloat16).expand(-1, -1, size)  # the gradient of a mean
    (wide,) = casts.rounded([expanded], torch.float32)
    assert wide.equal(expanded.float())
    assert parts[1:] == [1], "torch would launch each part by itself"


def test_half_types_are_those_of_autocast():
    x = torch.zeros(1)
    assert casts.half_of(x) is None
    assert casts.half_of(x.to("meta")) is None
    with torch.autocast("cpu", torch.float16):
        assert casts.half_of(x) is torch.float16
        assert casts.half_of(x.double()) is None
