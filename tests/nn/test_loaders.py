"""Workers of a data loader call operators and modules, however they were started."""

import multiprocessing

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import nxcore


class Pooled(Dataset[Tensor]):
    """Images that are pooled, and added to, where they are loaded."""

    def __init__(self) -> None:
        self.add = nxcore.op("add", backend="numba")
        self.pool = nn.MaxPool2d(2)
        nxcore.accelerate(self.pool)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> Tensor:
        image = torch.arange(48.0).view(3, 4, 4)
        if multiprocessing.parent_process() is None:  # the truth, below
            return nn.functional.max_pool2d(image, 2) + i
        with nxcore.use("numba"):
            return self.add(self.pool(image), torch.tensor(float(i)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_worker_calls_operators_and_modules(start: str) -> None:
    images = Pooled()
    nxcore.ops.sum(torch.randn(3000, 100) + 1)  # torch's own threads are up when a worker is forked
    loader = DataLoader(images, batch_size=None, num_workers=1, multiprocessing_context=start, timeout=300)
    for i, image in enumerate(loader):
        torch.testing.assert_close(image, images[i])
