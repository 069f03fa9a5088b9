"""Hooks on saved tensors, and checkpoints, which consist of them: what they raise is the program's."""

import functools
import warnings

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from tests.null import fakes
from tests.table import for_each


class Refusing:
    """A hook that is no function."""

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        return refuse(tensor)

    def method(self, tensor: torch.Tensor) -> torch.Tensor:
        return refuse(tensor)


def refuse(tensor: torch.Tensor) -> torch.Tensor:
    raise LookupError("no room")


def blend():
    """Return a weighted sum on kernels for both ways, its arguments, and the kernels' counts of calls."""
    kernels = fakes.kernel("softmax_sum"), fakes.kernel("softmax_sum_backward")
    op = fakes.session(fakes.backend("fake", *kernels)).op("softmax_sum", backend="fake")
    xs = [torch.randn(3, 4, requires_grad=True) for _ in range(2)]
    return op, xs, torch.randn(2, requires_grad=True), [kernel.plan(None) for kernel in kernels]


def test_an_operator_may_be_the_last_of_a_checkpoint():
    """The checkpoint ends the second forward pass by an error, once it has all tensors."""
    op, xs, w, (forward, _) = blend()
    wanted = torch.autograd.grad(op.spec.reference(xs, w).sum(), [*xs, w])
    op(xs, w)
    for _ in range(3):
        before = forward.count
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = checkpoint(lambda *given: op(list(given[:2]), given[2]), *xs, w, use_reentrant=False)
            found = torch.autograd.grad(result.sum(), [*xs, w])
        torch.testing.assert_close(found, wanted)
        assert forward.count == before + 2


@for_each(
    "hook",
    [refuse, functools.partial(refuse), Refusing(), Refusing().method],
    ids=lambda hook: type(hook).__name__,
)
def test_what_a_hook_raises_is_no_failure_of_a_kernel(hook):
    op, xs, w, (forward, _) = blend()
    op(xs, w)
    before = forward.count
    with pytest.raises(LookupError, match="no room"), saved_tensors_hooks(hook, lambda tensor: tensor):
        op(xs, w)
    op(xs, w)
    assert forward.count == before + 2


def test_a_kernel_that_fails_while_hooks_are_in_force_is_replaced():
    moody = fakes.raising(RuntimeError("out of order"))
    calls = fakes.Counter(fakes.SPECS["softmax_sum"].reference)
    kernel = fakes.kernel("softmax_sum", lambda *args: calls(*args))
    session = fakes.session(fakes.backend("fake", kernel))
    op = session.op("softmax_sum")
    xs, w = [torch.randn(3, 4) for _ in range(2)], torch.randn(2)
    wanted = op(xs, w)
    calls.call = moody
    with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the kernel is replaced
        torch.testing.assert_close(op(xs, w), wanted)


def test_a_hook_unpacks_each_saved_tensor_once():
    op, xs, w, _ = blend()
    packed, unpacked = [], []
    for times in (1, 2, 3):
        with saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: unpacked.append(t) or t):
            result = op(xs, w)
        result.sum().backward()
        assert len(packed) == len(unpacked) == 3 * times
