"""sep_conv2d with a batch norm behind it, in one call: what lies between isn't rounded."""

import pytest
import torch

from nxcore.trust.truth import agreement
from tests.null.fakes import SPECS
from tests.ops.backends import operator


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [name for name in SPECS if name.startswith("sep_conv2d_")])
def test_the_middle_of_16_bits_is_not_rounded(name, dtype):
    spec = SPECS[name]
    for sample in spec.tagged("smoke"):
        args = sample.build(spec, "cpu", dtype)
        assert agreement(spec.reference, spec, args).ok


def test_statistics_of_what_was_rounded_are_refused():
    spec = SPECS["sep_conv2d_batch_norm"]

    def rounded(*args):
        y = SPECS["sep_conv2d"].reference(*args[:7])
        out, mean, var = SPECS["batch_norm"].reference(y, *args[7:])
        return out, y.float(), mean, var

    args = spec.samples[0].build(spec, "cpu", torch.bfloat16)
    assert not agreement(rounded, spec, args).ok


def test_autocast_lowers_the_convolutions_alone():
    generator = torch.Generator().manual_seed(0)
    shapes = (3, 4, 6, 5), (4, 1, 3, 3), (5, 4, 1, 1), (5,), (5,)
    given = [torch.randn(shape, generator=generator) for shape in shapes]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, y, mean, _ = operator("sep_conv2d_batch_norm", None)(*given[:3], 1, 1, 1, True, *given[3:])
    assert (out.dtype, y.dtype, mean.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    factors = given[3].clone(), given[4].bfloat16().float()
    lower = [t.bfloat16() for t in given[:3]]
    rounded = SPECS["sep_conv2d_batch_norm"].reference(*lower, 1, 1, 1, True, *given[3:])[0]
    assert torch.equal(out, rounded)
    assert not torch.equal(out, SPECS["sep_conv2d_batch_norm"].reference(*lower, 1, 1, 1, True, *factors)[0])
