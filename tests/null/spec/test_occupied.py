"""Whether a device is at work is known by how long it is waited for."""

import time

import pytest
import torch

from nxcore.spec import device


@pytest.mark.parametrize(
    ("waits", "occupied"), [([0.0, 0.0, 0.0, 0.01, 0.01], False), ([0.01, 0.0, 0.01, 0.0, 0.01], True)]
)
def test_most_waits_decide(waits, occupied, monkeypatch):
    left = iter(waits)
    monkeypatch.setattr(device, "synchronize", lambda _: time.sleep(next(left)))
    assert device.occupied(torch.device("cuda")) == occupied
    assert next(left, None) is None


def test_a_processor_is_shared_anyway(monkeypatch):
    monkeypatch.setattr(device, "synchronize", lambda _: pytest.fail("it is waited for"))
    assert not device.occupied(torch.device("cpu"))
