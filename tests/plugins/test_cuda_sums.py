"""nxcore-cuda's sums: what a call tells of itself before it is made."""

import pytest
import torch

import nxcore
import nxcore.ops
from nxcore.plugin import Problem
from tests.ops.backends import operator
from tests.table import for_each

nxcore_cuda = pytest.importorskip("nxcore_cuda")


@for_each(
    ("op", "shape", "how", "shared"),
    [
        ("sum", (16, 16), (-1, False), False),
        ("sum", (19, 6656), (-1, False), True),
        ("sum", (160, 10992), (0, False), True),
        ("sum", (237, 6890), (0, False), False),
        ("sum_to_size", (4, 8, 8), ((8, 1),), False),
        ("sum_to_size", (256, 8, 8), ((8, 1),), True),
        ("sum_to_size", (1, 8), ((8,),), False),
        ("global_avg_pool2d", (2, 8, 7, 7), (), False),
        ("global_avg_pool2d", (1, 2, 512, 512), (), True),
    ],
)
def test_a_sum_tells_whether_blocks_share_its_outputs(op, shape, how, shared):
    """The ways that cost the host more or less, as an H200's times of these sizes show."""
    spec = next(spec for spec in nxcore.ops.nxcore_ops() if spec.name == op)
    dtype = torch.bfloat16 if how == (0, False) else torch.float32
    problem = Problem.of(spec, spec.bind(torch.empty(shape, dtype=dtype, device="meta"), *how))
    kernel = next(k for k in nxcore_cuda.KERNELS if k.op == op)
    assert kernel.branch_of(problem) is shared


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(600_000,), (3, 40_000), (40_001,)], ids=str)
def test_blocks_that_share_an_output_leave_no_slot_behind(device, shape, dtype):
    """The next launch finds tickets and slots empty, whatever was found: NaN, infinities, ties, nothing."""
    from nxcore_cuda.machine.launch import ticket

    ops = {name: operator(name, "cuda") for name in ("sum", "amax", "argmax", "any")}
    x = torch.zeros(shape, dtype=dtype, device=device)
    for value, at in ((0.0, 0), (torch.nan, 39_999), (torch.inf, 7), (-torch.inf, 20_000), (2.0, 31_234)):
        x.view(-1)[at] = value
        for name, op in ops.items():
            expected = getattr(torch, name)(x, -1)
            torch.testing.assert_close(op(x, -1), expected, rtol=0, atol=0, equal_nan=True)
            assert not ticket(device).any()
        if value != value:
            x.view(-1)[at] = 0.0
