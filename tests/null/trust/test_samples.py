"""The samples that verify a kernel: layouts of a call, and samples of each."""

import pytest
import torch

from nxcore.spec.layout import LAYOUTS, layout_class
from nxcore.spec.problem import Problem, TensorMeta
from nxcore.trust import samples
from tests.null import fakes
from tests.null.fakes import SPECS
from tests.table import for_each

X = torch.arange(12.0).view(3, 4)


@for_each(
    ("tensor", "expected"),
    [
        (torch.zeros(2, 3, 4, 5), "contiguous"),
        (torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last), "channels_last"),
        (torch.zeros(2, 1, 4, 5).to(memory_format=torch.channels_last), "contiguous"),
        (torch.zeros(3, 4).t(), "permuted"),
        (torch.zeros(2, 3, 4, 5).permute(3, 2, 1, 0), "permuted"),
        (torch.zeros(3, 8)[:, ::2], "gaps"),
        (torch.zeros(3, 8)[:, :5], "gaps"),
        (torch.zeros(1, 4).expand(3, 4), "expanded"),
        (torch.zeros(8).unfold(0, 4, 1), "expanded"),
        (torch.zeros(8)[1:], "contiguous"),
        (torch.zeros(()), "contiguous"),
        (torch.zeros(0, 3), "contiguous"),
    ],
    ids=str,
)
def test_a_tensor_has_one_layout_class(tensor, expected):
    assert layout_class([TensorMeta.of(tensor)]) == expected


def test_a_call_is_laid_out_as_its_least_plain_tensor():
    plain, gaps = TensorMeta.of(X), TensorMeta.of(X[:, ::2])
    assert layout_class([plain, gaps]) == "gaps"
    assert layout_class([]) == "contiguous"


@for_each("op", [n for n, s in SPECS.items() if not n.endswith(("sum_backward", "size_backward"))])
def test_every_operator_that_kernels_run_has_a_sample_of_every_layout(op):
    """Or a call laid out like that could go to no kernel at all."""
    if op.endswith("_backward") and all(
        Problem.of(SPECS[op], s.build(SPECS[op], "cpu", torch.float32)).view
        for s in SPECS[op].tagged("smoke")
    ):
        pytest.skip("its results are views: no kernel runs it")
    registry = fakes.registry()
    if op == "global_max_pool2d_backward":
        pytest.skip("its images are of one pixel: they lie in rows, whatever their strides")
    for layout in LAYOUTS[1:]:
        if op in ("column_sums", "linear_cross_entropy") and layout == "channels_last":
            continue  # a matrix has no such layout
        assert samples.alike(op, torch.float32, layout, registry), layout
