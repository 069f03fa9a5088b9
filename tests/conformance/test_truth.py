"""The float64 truth is torch's own: it must not depend on the device that it is computed on."""

from __future__ import annotations

import pytest
import torch

from nxcore.registry.discovery import discover
from nxcore.spec.sample import Sample
from nxcore.spec.spec import OpSpec
from nxcore.trust.truth import Truth

CASES = [
    pytest.param(spec, sample, id=f"{name}-{sample.name}")
    for name, spec in discover(strict=True).ops.items()
    for sample in spec.samples
    if "bench" not in sample.tags
]


@pytest.mark.gpu
@pytest.mark.parametrize(("spec", "sample"), CASES)
def test_a_device_computes_what_the_cpu_does(spec: OpSpec, sample: Sample) -> None:
    want, got = (
        Truth.of(spec, sample.build(spec, device, torch.float32)).exact for device in ("cpu", "cuda")
    )
    for w, g in zip(want, got, strict=True):
        torch.testing.assert_close(g.cpu(), w, rtol=1e-11, atol=1e-11, equal_nan=True)
