"""An epoch of the trainer is the paper's: the loop of its code, written out, on the plain network."""

import dataclasses
import math

import pytest
import torch
from torch.nn.functional import cross_entropy

import nxcore
from nxcore.nas.data import Data, Split
from nxcore.nas.preset import PRESETS
from nxcore.nas.trainer import Trainer
from tests.nas import darts

EPOCHS = 2


def images():
    draw = torch.Generator().manual_seed(3)

    def part(count):
        return Split(torch.randn(count, 3, 8, 8, generator=draw), torch.randint(3, (count,), generator=draw))

    return Data("noise", ("a", "b", "c"), part(12), part(12), part(4))


@pytest.mark.slow
def test_a_search_is_the_papers_loop():
    """Architecture by Adam on a validation batch, then weights by SGD, clipped; a cosine over the epochs."""
    sizes = {"C": 2, "layers": 3, "steps": 2, "multiplier": 2, "batch": 4, "epochs": EPOCHS}
    preset = dataclasses.replace(PRESETS["darts"], **sizes, lr=0.5, arch_lr=0.1, clip=0.5, retrain_epochs=0)
    with nxcore.policy("frozen"):
        trainer = Trainer(images(), preset)
        net = darts.Network(2, 3, 3, 2)
        net.load_state_dict(trainer.net.state_dict())
        rows = trainer.arch.logits.detach().clone().requires_grad_()
        seen, augmented = [], trainer._augmented
        trainer._augmented = lambda batch, **how: seen.append(augmented(batch, **how)) or seen[-1]
        losses = [row["loss"] for row in trainer.run()]

    adam = torch.optim.Adam([rows], 0.1, betas=(0.5, 0.999), weight_decay=1e-3)
    sgd = torch.optim.SGD(net.parameters(), 0.5, momentum=0.9, weight_decay=3e-4)
    steps, found = len(seen) // 2 // EPOCHS, []
    for epoch in range(EPOCHS):
        sgd.param_groups[0]["lr"] = 0.001 + 0.499 * (1 + math.cos(math.pi * epoch / EPOCHS)) / 2
        total = 0.0
        for step in range(steps):
            (x, y), (valid_x, valid_y) = seen[2 * (epoch * steps + step) :][:2]
            adam.zero_grad()
            cross_entropy(net(valid_x, *rows), valid_y).backward()
            adam.step()
            sgd.zero_grad()
            loss = cross_entropy(net(x, *rows.detach()), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            sgd.step()
            total += loss.item()
        found.append(total / steps)
    assert losses == pytest.approx(found, rel=1e-4)
    torch.testing.assert_close(trainer.arch.logits.detach(), rows.detach(), rtol=1e-3, atol=1e-4)
    for (name, own), want in zip(trainer.net.named_parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(own, want, rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
