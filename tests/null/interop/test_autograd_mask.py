"""A backward kernel is told which gradients are wanted, and computes no other."""

import pytest
import torch

from nxcore.interop import internals
from tests.null import fakes
from tests.null.interop.test_autograd import CASES, leaves_of
from tests.table import for_each


def test_the_backward_kernel_runs_and_gets_the_mask():
    seen = []

    def note(*args):
        seen.append((args[3], torch.is_grad_enabled()))
        return fakes.SPECS["softmax_sum_backward"].reference(*args)

    backend = fakes.backend("fake", fakes.kernel("softmax_sum"), fakes.kernel("softmax_sum_backward", note))
    op = fakes.session(backend).op("softmax_sum", backend="fake")
    x, y, w = (
        torch.randn(4, requires_grad=True),
        torch.randn(4, requires_grad=True).detach(),
        torch.randn(2, requires_grad=True),
    )
    result = op([x, y], w)
    result.sum().backward()
    assert seen[-1] == ((True, False, True), False)


LARGE, SMALL = 2**19, 4


@for_each("size", [LARGE, SMALL])
@for_each("ask", ["grad", "grad of a result", "inputs", "all"])
def test_a_pass_for_some_inputs_works_for_those_alone(ask, size):
    masks = []

    def note(*args):
        masks.append(args[3])
        return fakes.SPECS["softmax_sum_backward"].reference(*args)

    backend = fakes.backend("fake", fakes.kernel("softmax_sum"), fakes.kernel("softmax_sum_backward", note))
    op = fakes.session(backend).op("softmax_sum", backend="fake")
    leaves = [torch.randn(size, requires_grad=True) for _ in range(2)]
    xs, w = [leaves[0] * 2, leaves[1]], torch.randn(2, requires_grad=True)
    loss, want = (call(xs, w).sum() for call in (op, fakes.SPECS["softmax_sum"].reference))

    def grads(of):
        if ask == "all":
            of.backward(retain_graph=True)
            return [t.grad for t in (*leaves, w)]
        if ask == "inputs":
            of.backward(inputs=[w], retain_graph=True)
            return [w.grad]
        return torch.autograd.grad(of, [leaves[1] if ask == "grad" else xs[0]], retain_graph=True)

    grads(loss)  # verified here
    del masks[:]
    for leaf in (*leaves, w):
        leaf.grad = None
    got = [g.clone() for g in grads(loss)]
    some = {
        "grad": (False, True, False),
        "grad of a result": (True, False, False),
        "inputs": (False, False, True),
        "all": (True, True, True),
    }
    assert masks == [some[ask] if size == LARGE else (True, True, True)]
    for leaf in (*leaves, w):
        leaf.grad = None
    for a, b in zip(got, grads(want), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("path", ["python"], indirect=True)  # the compiled one asks without an exception
def test_a_pass_for_many_leaves_asks_about_a_few(monkeypatch):
    """Torch's answer "yes" about a leaf is an exception, which takes longer than a small kernel."""
    raised = []
    ask = internals.will_run

    def counted(node):
        try:
            return ask(node)
        except RuntimeError:
            raised.append(node)
            raise

    monkeypatch.setattr(internals, "will_run", counted)
    backend = fakes.backend("fake", fakes.kernel("softmax_sum"), fakes.kernel("softmax_sum_backward"))
    op = fakes.session(backend).op("softmax_sum", backend="fake")
    x = torch.randn(LARGE, requires_grad=True)
    leaves = [torch.randn(LARGE, requires_grad=True) for _ in range(6)]
    w = torch.randn(2, requires_grad=True)

    def loss():
        y = x * 1.0
        for leaf in leaves:
            y = op([y, leaf], w)
        return y.sum()

    torch.autograd.grad(loss(), [x, w, *leaves])  # verified here
    for _ in range(2):  # each pass anew
        del raised[:]
        torch.autograd.grad(loss(), [x, w, *leaves])
        assert len(raised) == 2


SEVERAL = [case for case in CASES if len(fakes.leaves(CASES[case][1]())) > 1]


@for_each("case", SEVERAL)
def test_a_gradient_that_nobody_needs_is_not_computed(case):
    name, _, kwargs = CASES[case]
    spec, masks = fakes.SPECS[name], []
    back = fakes.SPECS[spec.gradient.op]
    place = next(i for i, p in enumerate(back.params) if p.name == "output_mask")

    def note(*args):
        masks.append(args[place])
        return back.reference(*args)

    session = fakes.session(fakes.backend("fake", fakes.kernel(name), fakes.kernel(back.name, note)))
    for i in range(len(fakes.leaves(leaves_of(case)))):
        args = leaves_of(case)
        for j, t in enumerate(fakes.leaves(args)):
            t.requires_grad_(i == j and t.is_floating_point())
        if not fakes.leaves(args)[i].requires_grad:
            continue
        with session.use("fake"):
            out = fakes.first(session.op(name)(*args, **kwargs))
        out.sum().backward(retain_graph=True)  # verified here, if at all
        before = len(masks)
        out.sum().backward()
        wanted = tuple(i == j for j in range(len(fakes.leaves(args))))
        wanted += (False,) * (len(masks[-1]) - len(wanted) if masks else 0)  # of tensors that aren't given
        assert masks[before:] in ([wanted], [])  # a gradient that is a view is nobody's work
