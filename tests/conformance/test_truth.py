"""The float64 truth is torch's own: it must not depend on the device that it is computed on."""

import pytest
import torch

from nxcore.registry.discovery import discover
from nxcore.spec.spec import OpSpec
from nxcore.trust.truth import Truth
from tests.table import for_each

SPECS = discover(strict=True).ops


@pytest.mark.gpu
@for_each("spec", SPECS.values(), ids=SPECS)
def test_a_device_computes_what_the_cpu_does(spec: OpSpec) -> None:
    for sample in (s for s in spec.samples if "bench" not in s.tags):
        want, got = (
            Truth.of(spec, sample.build(spec, device, torch.float32)).exact for device in ("cpu", "cuda")
        )
        for w, g in zip(want, got, strict=True):
            say = f"{sample.name}: {{}}".format
            torch.testing.assert_close(g.cpu(), w, rtol=1e-11, atol=1e-11, equal_nan=True, msg=say)
