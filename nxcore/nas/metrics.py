"""Loss and accuracy of an epoch."""

from __future__ import annotations

import torch
from torch import Tensor

from nxcore.nas.process_group import total


class Tally:
    """Loss and correct predictions of an epoch, summed on the device and read once at its end."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, hits, images

    def add(self, loss: Tensor, scores: Tensor, labels: Tensor) -> None:
        """Add a batch: its mean loss, and the number of images whose class has the highest score."""
        hits = (scores.argmax(1) == labels).sum()
        self._sums[:2] += torch.stack([loss.double() * len(labels), hits.double()])
        self._sums[2] += len(labels)

    def read(self) -> tuple[float, float]:
        """Return mean loss and accuracy over all ranks."""
        loss, hits, count = total(self._sums).tolist()
        return loss / count, hits / count
