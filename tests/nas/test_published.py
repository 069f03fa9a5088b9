"""Search networks in the forms of published code: patched ones train as plain ones, for 60 steps."""

import random

import pytest
import torch

from nxcore import nas
from tests.nas import published
from tests.nas.published import FORMS

TAKEN = {
    **dict.fromkeys(("darts", "sdarts", "p-darts"), "cells.0._ops.0"),
    **dict.fromkeys(("pc-darts", "darts-"), "cells.0._ops.0"),
    **dict.fromkeys(("nas-bench-201", "fbnet"), "cells.0"),
}
"""Form -> a module whose weighted sum is one operator; the others stay as they were."""


def trained(form, steps, *, patched):
    """Return what each step leaves: values, gradients, statistics and random states."""
    torch.manual_seed(0)
    make, change = FORMS[form]
    net = published.Net(make).double()
    swap = nas.patch(net, watch=False) if patched else None
    weights = [p for n, p in net.named_parameters() if n != "alphas"]
    by_sgd = torch.optim.SGD(weights, 0.02, momentum=0.9, weight_decay=3e-4)
    by_adam = torch.optim.Adam([net.alphas], 3e-3, betas=(0.5, 0.999))
    random.seed(0)
    torch.manual_seed(1)
    for step in range(steps):
        change(net, step / steps)
        net.train(step % 10 != 9)
        images = 3 if step % 7 == 6 else 2
        x = torch.arange(images * 3 * 64).mul(0.1 * (1 + step % 5)).sin().view(images, 3, 8, 8).double()
        net.zero_grad(set_to_none=True)
        out = net(x)
        torch.nn.functional.cross_entropy(out, torch.arange(images) % 3).backward()
        grads = [p.grad if p.grad is None else p.grad.clone() for p in net.parameters()]
        torch.nn.utils.clip_grad_norm_(weights, 5)
        for optimizer in (by_sgd, by_adam) if step % 2 else (by_sgd,):
            optimizer.step()
        held = [t.clone() for t in net.state_dict().values()] if step % 20 == 19 else []
        yield [out.detach(), *grads, *held, torch.get_rng_state(), torch.tensor(random.random())], net, swap


@pytest.mark.parametrize(
    ("form", "steps"),
    [*((form, 20) for form in FORMS), *(pytest.param(form, 60, marks=pytest.mark.slow) for form in FORMS)],
)
def test_training_leaves_what_plain_training_does(form, steps):
    plain = [left for left, _, _ in trained(form, steps, patched=False)]
    for (left, net, swap), want in zip(trained(form, steps, patched=True), plain, strict=True):  # noqa: B007
        for got, wanted in zip(left, want, strict=True):
            assert (got is None) is (wanted is None)
            if got is not None:
                torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-8)
    taken = TAKEN.get(form)
    if taken:
        assert taken in swap.replaced, swap
    else:
        cells = [n for n in swap.replaced if n.startswith("cells.") and n.count(".") == 1]
        assert not cells, swap
        assert swap.left["cells.0"]
