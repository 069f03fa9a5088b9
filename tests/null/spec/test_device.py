"""Devices: a wait for a whole one and the capture of a graph exclude each other."""

import threading

import torch

from nxcore.spec import device
from nxcore.spec.device import no_capture_beside, synchronize

CUDA = torch.device("cuda")


def waiting(cuda_answers):
    """Return a thread that waits for a whole device, and an event that it has."""
    done = threading.Event()
    cuda_answers(synchronize=lambda _: done.set())
    return threading.Thread(target=synchronize, args=(CUDA,)), done


def test_a_device_is_waited_for_after_the_capture(cuda_answers):
    other, done = waiting(cuda_answers)
    with no_capture_beside():
        other.start()
        assert not done.wait(0.05)
    assert done.wait(10)
    other.join()


def test_the_wait_has_an_end(monkeypatch, cuda_answers):
    monkeypatch.setattr(device, "LOCK_S", 0.01)
    other, done = waiting(cuda_answers)
    with no_capture_beside():
        other.start()
        assert done.wait(10)
        other.join()
    assert device.CAPTURES.acquire(blocking=False), "it is free again"
    device.CAPTURES.release()
