"""How a found network is trained: each part by its formula, and all of them resumed."""

import dataclasses

import pytest
import torch
from torch.nn import functional

from nxcore.errors import InvalidInputError
from nxcore.nas.data import Split
from nxcore.nas.preset import Preset
from nxcore.nas.remedies.recipe import Mean, Muon, alternated, of_views, orthogonal
from nxcore.nas.step import Passes
from nxcore.nas.trainer import Trainer
from nxcore.nas.update import Update
from tests.nas.test_passes import built
from tests.nas.test_search_command import _least, run, trainer_has  # noqa: F401  fixtures
from tests.nas.test_trainer import LEAST, images, same, state
from tests.nas.test_update import DEVICES, device, graphed_has  # noqa: F401  fixtures

ALL = {"retrain_smoothing": 0.1, "retrain_average": 0.9, "retrain_muon": 0.5}
ALL |= {"retrain_alternate": True, "retrain_views": True}


def test_an_image_is_seen_both_ways_in_two_epochs():
    part = Split(torch.randn(20, 3, 4, 4), torch.arange(20))
    first, second, third = (alternated(part, 1, epoch).images for epoch in (1, 2, 3))
    assert torch.equal(first, second.flip(3))
    assert torch.equal(first, third)
    as_it_is = (first == part.images).flatten(1).all(1)
    assert 0 < as_it_is.sum() < 20
    assert torch.equal(first[~as_it_is], part.images[~as_it_is].flip(3))


def test_views_are_mirrored_and_shifted_by_a_pixel():
    x, seen = torch.arange(16.0).view(1, 1, 4, 4), []

    def scores(view):
        seen.append(view)
        return view.flatten(1)[:, :2]

    found = of_views(scores, x)
    wide = functional.pad(x, (1, 1, 1, 1), "reflect")
    parts = (x, wide[..., :4, :4], wide[..., 2:, 2:])
    plain, up, down = ((scores(p) + scores(p.flip(3))) / 2 for p in parts)
    torch.testing.assert_close(found, plain / 2 + up / 4 + down / 4)
    assert all(view.is_contiguous() for view in seen[:8])


def test_the_mean_is_a_moving_one_of_weights_and_statistics():
    net = torch.nn.BatchNorm2d(1)
    mean = Mean(net, 0.5)
    want = 1.0
    for step in range(1, 30):
        net.weight.data.fill_(float(step))
        net.running_mean.fill_(2.0 * step)
        mean.add()
        keeps = min(0.5, step / (step + 9))
        want = keeps * want + (1 - keeps) * step
    with mean.there():
        assert net.weight.item() == pytest.approx(want)
        assert net.running_mean.item() != 58
    assert (net.weight.item(), net.running_mean.item()) == (29, 58)
    other = Mean(net, 0.5)
    other.load(mean.steps, mean.values)
    other.stay()
    assert net.weight.item() == pytest.approx(want)


@pytest.mark.parametrize("shape", [(3, 4, 6), (2, 6, 4), (2, 5, 5)])
def test_matrices_become_nearly_orthogonal(shape):
    torch.manual_seed(0)
    x = torch.randn(shape)
    values = torch.linalg.svdvals(orthogonal(x))
    assert values.min() > 0.6
    assert values.max() < 1.3
    own, found = torch.linalg.svd(x, full_matrices=False), orthogonal(x)
    near = own.U @ own.Vh
    assert (found * near).sum() / found.norm() / near.norm() > 0.95


@pytest.mark.parametrize("device", DEVICES, indirect=True)
def test_muon_is_sgd_but_for_1x1_convolutions(device):  # noqa: F811  the fixture
    torch.manual_seed(0)
    makes = ((4, 3, 1, 1), (4, 3, 1, 1), (5, 1, 3, 3), (7,), (6, 2))
    own = [torch.nn.Parameter(torch.randn(shape, device=device)) for shape in makes]
    other = [torch.nn.Parameter(p.detach().clone()) for p in own]
    sgd = torch.optim.SGD(other[2:], 0.1, momentum=0.9, weight_decay=0.01, nesterov=True)
    muon = Muon(own, 0.1, 0.9, 0.01, 2.0)
    update, places = Update(muon, 1e9), [torch.zeros_like(p) for p in own]
    momenta = [torch.zeros_like(p) for p in other[:2]]
    for p, place in zip(own, places, strict=True):
        p.grad = place
    for step in range(4):
        for mine, plain in zip(own, other, strict=True):
            mine.grad.copy_(torch.randn_like(mine))
            plain.grad = mine.grad.clone()
        for group in (*sgd.param_groups, *muon.param_groups):
            group["lr"] = 0.1 / (1 + step)
        sgd.step()
        with torch.no_grad():
            for p, momentum in zip(other, momenta, strict=False):
                momentum.mul_(0.9).add_(p.grad)
                (turn,) = orthogonal((p.grad + 0.9 * momentum).flatten(1)[None])
                p.mul_(4**0.5 / p.norm()).sub_(turn.view_as(p), alpha=2.0 * 0.1 / (1 + step))
        update(places)
        torch.testing.assert_close(own, other)
    assert update.graphed


def test_a_loss_is_smoothed_in_retraining_alone():
    part = images().train
    for kind in ("found", "exact"):
        passes: Passes = built(kind, False, smoothing=0.2)
        loss, scores = passes.of_weights(part)
        smoothing = 0.2 if kind == "found" else 0.0
        torch.testing.assert_close(
            loss, functional.cross_entropy(scores, part.labels, label_smoothing=smoothing)
        )


def test_retraining_with_all_of_them_learns_and_goes_on_from_its_checkpoint(tmp_path):
    sizes = {"retrain_epochs": 12, "retrain_C": 4, "retrain_lr": 0.1, "drop_path": 0.0, "cutout": 0}
    preset: Preset = dataclasses.replace(LEAST, warmup=0, epochs=1, **sizes, **ALL)
    straight = Trainer(images(), preset, seed=1)
    rows = list(straight.run())
    assert rows[-1]["held_out_accuracy"] == 1.0
    assert isinstance(straight.optimizer, Muon)
    first = Trainer(images(), preset, seed=1)
    for _, _ in zip(range(3), first.run(tmp_path), strict=False):
        pass
    second = Trainer.restore(tmp_path / "checkpoint.pt", images())
    list(second.run())
    assert same(state(second), state(straight))
    with straight.mean.there():
        assert same(dict(straight.net.state_dict()), dict(second.net.state_dict())), "the mean stays"


@pytest.mark.usefixtures("_least")
def test_a_remedy_and_settings_are_the_presets(tmp_path, trainer_has):  # noqa: F811
    seen, steps = [], Trainer.steps
    trainer_has(steps=lambda t: (seen.append(t.preset), steps(t))[1])
    words = ("--set", "retrain_C=4", "--set", "retrain_muon=1", "--set", "retrain_views=true")
    run("-o", tmp_path / "it", "--remedy", "skip_decay", *words)
    preset = seen[0]
    assert (preset.remedy, preset.retrain_C, preset.retrain_muon) == ("skip_decay", 4, 1)
    assert preset.retrain_views is True


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "retrain_C"), "set must be NAME=VALUE .* got 'retrain_C'"),
        (("--set", "retrain_C=1.5"), "set must be NAME=VALUE .* got 'retrain_C=1.5'"),
        (("--set", "mode=3"), "set must be NAME=VALUE .* got 'mode=3'"),
        (("--remedy", "cure"), "remedy must be one of none, .* got 'cure'"),
    ],
)
@pytest.mark.usefixtures("_least")
def test_what_the_command_refuses(words, message):
    with pytest.raises(InvalidInputError, match=message):
        run(*words)
