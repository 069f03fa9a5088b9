"""Whether a device is at work is known by how long it is waited for."""

import pytest
import torch

from nxcore.spec import device
from tests.stand_ins import stand_in

device_has = stand_in(device)


class Clock:
    """A clock that only ``sleep`` moves on."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.mark.parametrize(
    ("waits", "occupied"), [([0.0, 0.0, 0.0, 0.01, 0.01], False), ([0.01, 0.0, 0.01, 0.0, 0.01], True)]
)
def test_most_waits_decide(waits, occupied, device_has):
    left, clock = iter(waits), Clock()
    device_has(time=clock, synchronize=lambda _: clock.sleep(next(left)))
    assert device.occupied(torch.device("cuda")) == occupied
    assert next(left, None) is None


def test_a_processor_is_shared_anyway(device_has):
    device_has(synchronize=lambda _: pytest.fail("it is waited for"))
    assert not device.occupied(torch.device("cpu"))
