"""What a pass leaves is the same whether it is run or replayed."""

import dataclasses

import pytest
import torch

from nxcore.nas.architecture import ArchitectureParameters
from nxcore.nas.genotype import Genotype
from nxcore.nas.networks import EvalNetwork, SearchNetwork
from nxcore.nas.step import Passes
from nxcore.nas.trainer import Trainer
from tests.nas.test_trainer import LEAST, images

FOUND = Genotype([("dil_conv_3x3", 0), ("skip_connect", 1)], [2], [("max_pool_3x3", 0)] * 2, [2])
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def built(kind, graphed, device="cpu", **how):
    torch.manual_seed(0)
    arch = ArchitectureParameters(steps=2, multiplier=1).to(device)
    if kind == "found":
        net = EvalNetwork(FOUND, 4, 2, layers=2, in_channels=1)
    else:
        sizes = {"C": 2, "num_classes": 2, "layers": 2, "steps": 2, "multiplier": 1}
        net = SearchNetwork(**sizes, mode=kind, in_channels=1)
    return Passes(net.to(device), arch, graphed=graphed, unused=True, **how)


def left(passes, part, calls=3):
    """Return all that some calls leave."""
    out = []
    for _ in range(calls):
        out += [t.clone() for t in passes.of_weights(part)]
        out += [torch.zeros(()) if p.grad is None else p.grad.clone() for p in passes.net.parameters()]
        if isinstance(passes.net, SearchNetwork):
            out += [t.clone() for t in passes.of_architecture(part, part, None)]
        out += [b.clone() for b in passes.net.buffers()]
    return [t.cpu() for t in out]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["exact", "found"])
def test_a_replay_leaves_what_a_call_does(kind, device):
    part = images().to(device).train
    run, replayed = (built(kind, graphed, device) for graphed in (False, True))
    assert (run.graphed, replayed.graphed) == (False, True)
    for got, want in zip(left(replayed, part), left(run, part), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    tracked = dict(replayed.net.named_buffers())["stem.1.num_batches_tracked"]
    assert int(tracked) == (6 if kind == "exact" else 3), "warm-ups count for nothing"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["exact", "found"])
def test_scores_are_those_of_evaluation_and_follow_the_weights(kind, device):
    part = images().to(device).train
    passes = built(kind, True, device)
    logits = [] if kind == "found" else [row.detach() for row in passes.arch()]
    passes.net.eval()
    for _ in range(2):
        for some in (part.images, part.images[:3]):
            with torch.no_grad():
                want = passes.net(some, *logits)
            torch.testing.assert_close(passes.scores(some), want, rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            passes.net.classifier.weight.add_(1.0)


@pytest.mark.gpu
def test_an_evaluation_is_replayed_and_changes_no_statistics():
    trainer = Trainer(images().to("cuda"), LEAST)
    trainer.train(trainer.genotype)
    before = [b.clone() for b in trainer.net.buffers()]
    assert trainer.evaluate(trainer.data.held_out) == trainer.evaluate(trainer.data.held_out)
    assert len(trainer.passes._score) == 1
    assert all(map(torch.equal, before, trainer.net.buffers()))


@pytest.mark.parametrize("device", DEVICES)
def test_under_autocast_scores_are_bfloat16_and_gradients_are_not(device):
    part = images().to(device).train
    loss, grads = [], []
    for half in (False, True):
        passes = built("found", True, device, autocast=half)
        *own, _ = found = passes.of_weights(part)
        assert [t.dtype for t in found] == [torch.float32, torch.bfloat16 if half else torch.float32]
        loss = [*loss, *own]
        grads.append([p.grad for p in passes.net.parameters() if p.grad is not None])
    torch.testing.assert_close(*loss, rtol=2e-2, atol=2e-2)
    assert {g.dtype for g in grads[1]} == {torch.float32}
    assert any(not a.equal(b) for a, b in zip(*grads, strict=True))


def test_a_callers_autocast_stays():
    with torch.autocast("cpu", torch.bfloat16):
        _, scores = built("found", False).of_weights(images().train)
    assert scores.dtype is torch.bfloat16


def test_only_retraining_is_under_autocast():
    preset = dataclasses.replace(LEAST, retrain_autocast=True)
    seen = [trainer.passes.autocast for trainer in [Trainer(images(), preset)] for _ in trainer.run()]
    assert seen == [False, False, True, True, True]


def test_what_has_no_part_has_no_gradient():
    for graphed in (False, True):
        passes = built("found", graphed)
        passes.of_weights(images().train)  # its reduction reads one of the two states alone
        none = {name for name, p in passes.net.named_parameters() if p.grad is None}
        assert "cells.0.preprocess1.op.1.weight" in none
        assert "classifier.weight" not in none


def test_a_network_that_reads_the_device_is_run():
    assert not built("sampled", True).graphed


@pytest.mark.parametrize("device", DEVICES)
def test_a_share_of_dropped_paths_is_read_anew(device):
    part = images().to(device).train
    passes = built("found", True, device)
    seen = []
    for share in (0.0, 1e-9, 0.9):
        passes.net.drop_path_prob = share
        scores = [passes.of_weights(part)[1].clone() for _ in range(2)]
        assert passes.net.drop_path_prob == share
        seen.append(scores[0])
    torch.testing.assert_close(seen[0], seen[1], rtol=1e-4, atol=1e-5)  # of the batch's own statistics
    assert not torch.allclose(seen[0], seen[2], rtol=1e-2), "most paths but identities are dropped"
    if device == "cuda":
        assert len(passes._replay) == 1, "the graph without a share was the one before"


def test_paths_are_dropped_by_a_tensor_as_by_a_number():
    torch.manual_seed(0)
    net = EvalNetwork(FOUND, 4, 2, layers=2, in_channels=1)
    x = torch.randn(512, 1, 8, 8)
    shares = []
    for share in (0.25, torch.tensor(0.25)):
        net.cells[0].train()
        own = net.cells[0]._path(0, [net.cells[0].preprocess0(net.stem(x))] * 2, share)
        shares.append((own.flatten(1) == 0).all(1).float().mean())
    assert all(0.18 < s < 0.32 for s in shares)


@pytest.mark.gpu
def test_a_search_is_replayed_on_a_gpu_and_drops_paths_anew():
    found = Trainer(images().to("cuda"), dataclasses.replace(LEAST, epochs=1, warmup=0))
    rows = list(found.run())
    assert found.passes.graphed
    assert [row["phase"] for row in rows] == ["search", "retraining", "retraining"]
    assert found.net.drop_path_prob > 0
    part = images().to("cuda").train
    assert not torch.equal(found.passes.of_weights(part)[1].clone(), found.passes.of_weights(part)[1])
