"""What every test shares: the device, the toolkits' interpreters where there is none, and ``--require``."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    # Each is read when the toolkit is imported, so they are set before any test is collected.
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    os.environ["NXCORE_CUDA_EMULATOR"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require",
        action="append",
        default=[],
        metavar="KERNELS",
        help="fail, instead of skip, where these kernels (such as triton or numba-cuda) can't run",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="torch sees no CUDA device"))


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels are tested: CUDA where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
