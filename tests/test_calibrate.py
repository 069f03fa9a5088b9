"""``benchmarks/calibrate.py``: what the images allow, at a size for a CPU."""

import dataclasses

import torch

from benchmarks import calibrate
from nxcore.nas import data


def noise(count: int) -> data.Split:
    return data.Split(torch.randn(count, 3, 32, 32), torch.arange(count) % 10)


def test_a_network_learns_its_images_by_heart() -> None:
    images = noise(20)
    for name in ("94", "96"):
        recipe = dataclasses.replace(
            calibrate.RECIPES[name], epochs=30, batch=20, widths=(8, 8, 8), shift=0, cutout=0
        )
        found = calibrate.trained(recipe, images, images, seed=0)
        assert found["plain"] > 0.4, (name, found)


def test_each_image_is_mirrored_in_every_other_epoch() -> None:
    torch.manual_seed(0)
    images, recipe = noise(6), dataclasses.replace(calibrate.RECIPES["94"], batch=6, shift=0)
    padded, first = images.images.permute(0, 2, 3, 1), torch.rand(6) < 0.5
    seen = []
    for mirrored in (first, first ^ True):
        (batch, labels), *_ = calibrate.batches(padded, torch.arange(6), recipe, mirrored)
        seen.append(batch[labels.argsort()])
    assert torch.equal(seen[0], seen[1].flip(3))
    assert torch.equal(torch.where(first[:, None, None, None], seen[1], seen[0]), images.images)


def test_a_step_of_muon_is_nearly_orthogonal() -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(8, 4, 3, 3))
    weight.grad = torch.randn_like(weight)
    before = weight.detach() * (8**0.5 / weight.detach().norm())
    calibrate.Muon([weight], 1.0, 0.6).step()
    step = (before - weight.detach()).reshape(8, -1)
    assert torch.linalg.svdvals(step).sub(1).abs().max() < 0.6
