"""sep_conv2d: which of torch's convolutions is its reference, by the precision that the process allows."""

import importlib

import pytest
import torch
from torch.nn import functional

MODULE = importlib.import_module("nxcore.ops.sep_conv2d")  # the package's attribute is the operator


def test_torchs_convolution_serves_where_it_takes_no_tf32(device, monkeypatch):
    shapes = (2, 4, 7, 8), (4, 1, 3, 3), (5, 4, 1, 1)
    image, filters, points = (torch.randn(shape, device=device, dtype=torch.float64) for shape in shapes)
    inner = functional.conv2d(functional.relu(image), filters, None, 1, 1, groups=4)
    want = functional.conv2d(inner, points)
    for exact in (True, False):
        monkeypatch.setattr(MODULE, "exact", lambda _, exact=exact: exact)
        torch.testing.assert_close(MODULE.reference(image, filters, points, 1, 1), want)


@pytest.mark.gpu
def test_a_middle_of_float32_is_convolved_as_the_process_allows(monkeypatch):
    u = torch.ones(1, 2, 3, 3, device="cuda")
    for allowed in (True, False):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
        assert MODULE.exact(u) is not allowed
