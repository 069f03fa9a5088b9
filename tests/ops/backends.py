"""The backends that an operator's own tests run on: torch, the default choice, and whatever is ready here."""

import pytest
import torch

import nxcore
from nxcore.registry.discovery import discover

# A backend on request compiles anew in each of these tests; the conformance suite holds it to the samples.
NAMES = [None, *(name for name, b in discover(strict=True).backends.items() if not b.on_request)]


def params() -> list[object]:
    """Return one parameter a backend; None is the fastest verified kernel."""
    return [pytest.param(name, id=name or "chosen") for name in NAMES]


def operator(name: str, backend: str | None) -> object:
    """Return the operator on ``backend``, or skip with the reason why that can't run here."""
    if backend is not None:
        status = nxcore.backends()[backend]
        if status.status != "ready":
            pytest.skip(f"{backend} can't run here: {status.reason}")
        if name not in status.operators:
            pytest.skip(f"{backend} has no kernel of {name}")
    return nxcore.op(name, backend=backend)


def place(backend: str | None, device: torch.device) -> torch.device:
    """Return where a backend's tensors live in these tests."""
    del backend
    return device
