"""Loss and accuracy of an epoch."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from nxcore.nas.data import Split
from nxcore.nas.process_group import place, total

CHUNK = 256
"""Images in a forward pass without gradients."""


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


def evaluated(
    net: nn.Module, scored: Callable[[Tensor], Tensor], split: Split, device: torch.device
) -> tuple[float, float]:
    """Return mean loss and accuracy of a network on a split, over all ranks, with running statistics."""
    tally = Tally(device)
    rank, world = place()
    own = (tensor[rank::world].split(CHUNK) for tensor in split)
    net.eval()
    for chunk in zip(*own, strict=True):
        images, labels = (t.to(device) for t in chunk)
        scores = scored(images)
        tally.add(functional.cross_entropy(scores, labels), scores, labels)
    net.train()
    return tally.read()
