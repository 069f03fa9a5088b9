"""What every test here shares: the device, and no test for a GPU where there is none."""

from __future__ import annotations

import gc

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="torch sees no CUDA device"))


def pytest_collection_finish() -> None:
    """Leave what was collected out of later searches for garbage: it is millions of objects, and stays."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels are tested: CUDA where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
