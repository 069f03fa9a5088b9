"""Comparisons of an audit, over operators of many tensors: nothing is missed, and launches are few."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nxcore.spec.problem import leaves
from nxcore.trust.distance import strays
from nxcore.trust.form import twin
from nxcore.trust.suspicion import differ
from nxcore.trust.truth import Truth, without_out
from tests.null.fakes import SPECS

OP = "foreach_sep_conv2d_batch_norm_backward"
NEAR = 1.5
"""A factor that no rounding explains."""

MANY = 10
"""Results of the sample, at least."""


class Launches(TorchDispatchMode):
    """Counts the operations of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def sample():
    """Return the arguments of a sample with ten results or more, and the reference's."""
    spec = SPECS[OP]
    for one in spec.samples:
        args = without_out(spec, one.build(spec, "cpu", torch.float32))
        native = spec.reference(*args)
        if len(list(leaves(native))) >= MANY:
            return spec, args, native
    raise LookupError


def test_one_wrong_element_of_any_output_strays():
    spec, args, native = sample()
    assert not strays(spec, args, native, twin(native))
    for i in range(len(list(leaves(native)))):
        result = twin(native)
        wrong = list(leaves(result))[i]
        at = wrong.abs().argmax()
        wrong.view(-1)[at] *= NEAR
        assert strays(spec, args, native, result), i


@pytest.mark.parametrize("special", [torch.inf, torch.nan])
def test_special_values_hide_no_other_element(special):
    spec, x = SPECS["add"], torch.arange(1.0, 9.0)
    native = x + x
    native[0] = special
    result = native.clone()
    args = (x, x, 1, None)
    assert not strays(spec, args, native, result)
    result[5] *= NEAR
    assert strays(spec, args, native, result)


def test_terms_that_cancel_may_be_far_apart():
    spec = SPECS["sum"]
    x = torch.tensor([1e8, 1.0, -1e8])
    native, other = torch.tensor(0.0), torch.tensor(1.0)
    assert not strays(spec, (x, None, False), native, other)


def test_a_bit_of_any_input_is_a_change():
    spec, args, _ = sample()
    own = twin(args)
    assert not differ(spec, args, own)
    for t in leaves(own):
        t.view(-1)[-1:] += 1
        assert differ(spec, args, own)
        t.view(-1)[-1:] -= 1
        t.copy_(next(a for a, b in zip(leaves(args), leaves(own), strict=True) if b is t))


@pytest.mark.parametrize("what", ["strays", "differ", "twin"])
def test_launches_do_not_grow_with_the_tensors(what):
    """A comparison by tensors took 15 launches an output, 4 an input; a copy took one a tensor."""
    spec, args, native = sample()
    result, own = twin(native), twin(args)
    with Launches() as magnitude:
        spec.magnitude(*args)
    with Launches() as launches:
        if what == "strays":
            strays(spec, args, native, result)
        elif what == "differ":
            differ(spec, args, own)
        else:
            twin(args)
    views = 5 * len(list(leaves(native))) if what == "strays" else 2 * len(list(leaves(args)))
    most = views + 30 + magnitude.count * (what == "strays")
    assert launches.count <= most, "views and empty tensors launch nothing"


def test_a_judgement_waits_for_the_device_once_and_not_for_each_output():
    spec, args, native = sample()
    truth, waits = Truth.of(spec, args), []

    class Waits(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            waits.extend([1] * (function is torch.ops.aten._local_scalar_dense.default))
            return function(*args, **(kwargs or {}))

    with Waits():
        assert truth.judge(native).ok
    assert len(waits) <= 2, "tolist waits once for the bounds and once for the errors"
    assert len(list(leaves(native))) >= MANY
