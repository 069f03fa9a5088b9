"""A step of the weights is the same whether it is run or replayed, and a replay reads what changes."""

import copy
import dataclasses

import pytest
import torch

import nxcore
from nxcore.errors import CaptureError
from nxcore.graphs import graphed
from nxcore.nas import update as updates
from nxcore.nas.trainer import Trainer
from nxcore.nas.update import Update
from tests.nas.test_trainer import LEAST, images
from tests.nn.tape import Tape
from tests.stand_ins import stand_in

graphed_has = stand_in(graphed)

DEVICES = ["cpu", "taped", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture
def device(request, graphed_has, cuda_answers):
    """The device of the weights; ``taped`` is a CPU on which operators run again, as of a CUDA graph."""
    if request.param != "taped":
        return request.param
    tape = Tape()
    graphed_has(_device=lambda fn, leaves, spec: torch.device("cpu"), recorder_of=lambda device: tape)
    cuda_answers(is_current_stream_capturing=lambda: False, empty_cache=lambda: None)
    return "cpu"


def weights(device):
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(n, 3, device=device)) for n in (2, 5, 1)]


def sgd(params, rate=0.5):
    return torch.optim.SGD(params, rate, momentum=0.9, weight_decay=1e-2, fused=True)


@pytest.mark.parametrize("device", DEVICES, indirect=True)
def test_steps_are_those_of_single_calls(device):
    """Of gradients in one place; a weight has none, and the rate and the gradients change."""
    run = weights(device)
    replayed = copy.deepcopy(run)
    places = [torch.zeros_like(run[0]), None, torch.zeros_like(run[2])]
    for p, place in zip(replayed, places, strict=True):
        p.grad = place
    plain, other = sgd(run), sgd(replayed)
    update = Update(other, clip=0.7)
    for step in range(5):
        for p, place in zip(run, places, strict=True):
            if place is not None:
                place.copy_(torch.randn_like(place) * (0.1 if step == 3 else 2.0))
                p.grad = place.clone()
        for optimizer in (plain, other):
            optimizer.param_groups[0]["lr"] = 0.5 / (1 + step)
        torch.nn.utils.clip_grad_norm_(run, 0.7)
        plain.step()
        update(places)
        assert other.param_groups[0]["lr"] == 0.5 / (1 + step), "a number, for checkpoints"
        torch.testing.assert_close(replayed, run)
    assert update.graphed
    torch.testing.assert_close(other.state_dict()["state"], plain.state_dict()["state"])


@pytest.mark.parametrize("device", DEVICES, indirect=True)
def test_momenta_that_were_loaded_and_other_gradients_are_taken(device):
    run = weights(device)
    replayed = copy.deepcopy(run)
    plain, other = sgd(run), sgd(replayed)
    update = Update(other, clip=10.0)
    for turn in range(3):
        grads = [torch.full_like(p, 1.0 + turn) for p in run]
        for mine, own, grad in zip(run, replayed, grads, strict=True):
            mine.grad, own.grad = grad.clone(), grad
        for _ in range(3):
            for mine, own in zip(run, replayed, strict=True):
                mine.grad.fill_(2.0 + turn)
                own.grad.fill_(2.0 + turn)
            torch.nn.utils.clip_grad_norm_(run, 10.0)
            plain.step()
            update(grads)
        torch.testing.assert_close(replayed, run)
        other.load_state_dict(other.state_dict())  # other tensors of the same values


def test_what_can_not_be_captured_is_run(monkeypatch):
    def refuse(*args):
        raise CaptureError("it waits")

    run = weights("cpu")
    replayed = copy.deepcopy(run)
    monkeypatch.setattr(updates, "Graphed", lambda *args, **how: refuse)
    update = Update(sgd(replayed), clip=10.0)
    plain, grads = sgd(run), [torch.ones_like(p) for p in run]
    for _ in range(3):
        for mine, own, grad in zip(run, replayed, grads, strict=True):
            mine.grad, own.grad = torch.ones_like(mine), grad.fill_(1.0)
        torch.nn.utils.clip_grad_norm_(run, 10.0)
        plain.step()
        update(grads)
    assert not update.graphed
    torch.testing.assert_close(replayed, run)


@pytest.mark.gpu
def test_a_trainer_on_a_gpu_replays_its_steps():
    preset = dataclasses.replace(LEAST, epochs=2, warmup=1)
    with nxcore.policy("frozen"):
        replayed, run = (Trainer(images().to("cuda"), preset) for _ in range(2))
        run.update.graphed = False
        for _ in range(2):  # the third epoch ends the search, and another network has another update
            rows = [trainer.advance() for trainer in (replayed, run)]
            assert rows[0]["loss"] == pytest.approx(rows[1]["loss"], rel=1e-3)
        assert replayed.update.graphed
        assert len(replayed.update._replay) == 1
    torch.testing.assert_close(replayed.net.state_dict(), run.net.state_dict(), rtol=1e-3, atol=1e-3)
