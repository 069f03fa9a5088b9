"""Fifty steps of an accelerated model in each mode that a program has: with a plain one's numbers."""

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import nxcore
from tests.nn.tape import part
from tests.table import for_each

STEPS = 50


@dataclasses.dataclass
class Scores:
    scores: torch.Tensor
    hidden: torch.Tensor | None = None


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.drop = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.3)

    def forward(self, x):
        return x + self.drop(self.norm(self.layer(x)).relu())


class Net(nn.Module):
    """Two blocks and a head; ``form`` is that of its result, ``saves`` lets blocks run again."""

    def __init__(self, form="tensor", saves=""):
        super().__init__()
        self.first, self.blocks, self.head = (
            nn.Linear(4, 6),
            nn.ModuleList([Block(), Block()]),
            nn.Linear(6, 3),
        )
        self.form, self.saves, self.rate = form, saves, 1.0

    def forward(self, x, *, scale=1.0, mask=None):
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.saves else block(x)
        x = x * scale * self.rate
        scores = self.head(x if mask is None else x * mask)
        if self.form == "dataclass":
            return Scores(scores, x)
        if self.form == "dictionary":
            return {"scores": scores, "hidden": [x, None]}
        return scores


def tensors(found):
    if dataclasses.is_dataclass(found):
        found = vars(found)
    return [t for t in pytree.tree_leaves(found) if isinstance(t, torch.Tensor)]


def x_of(number, count=5):
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(number))


class Loop:
    """A program's loop: what a step of it does, in ways that a row changes."""

    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(
            [p for p in model.parameters() if p.requires_grad], 0.05, momentum=0.9
        )
        self.found = []

    def call(self, number, **kwargs):
        return self.model(x_of(number), **kwargs)

    def step(self, number):
        out = tensors(self.call(number))
        self.optimizer.zero_grad()
        sum(t.square().mean() for t in out).backward()
        self.optimizer.step()
        self.found += [t.detach() for t in out]


class Evaluated(Loop):
    """Each fifth step evaluates, without gradients and in inference mode in turns."""

    def step(self, number):
        super().step(number)
        if number % 5 == 4:
            self.model.eval()
            with torch.no_grad() if number % 2 else torch.inference_mode():
                self.found += [self.model(x_of(i)).clone() for i in range(3)]
            self.model.train()


class Keywords(Loop):
    def call(self, number):
        given = {"scale": 0.5, "mask": torch.ones(6)} if number % 2 else {"mask": torch.ones(6), "scale": 0.5}
        return super().call(number, **given)


class Sizes(Loop):
    """Two sizes of batches, and an epoch's last one."""

    def call(self, number):
        return self.model(x_of(number, 2 if number % 12 == 11 else 4 + number % 2))


class Accumulated(Loop):
    def step(self, number):
        self.optimizer.zero_grad()
        for i in range(3):
            out = self.model(x_of(3 * number + i))
            (out.square().mean() / 3).backward()
            self.found.append(out.detach())
        self.optimizer.step()


class Averaged(Loop):
    def __init__(self, model):
        super().__init__(model)
        self.mean = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def step(self, number):
        super().step(number)
        self.mean.update_parameters(self.model)
        if number % 10 == 9:
            self.found += [t.detach().clone() for t in self.mean.state_dict().values()]
            with torch.no_grad():
                self.found.append(self.mean.eval()(x_of(number)))


class Scheduled(Loop):
    """An attribute that changes each epoch, as a schedule of drop paths does."""

    def step(self, number):
        self.model.rate = 1.0 - 0.1 * (number // 10)
        super().step(number)


class Hooked(Loop):
    """Hooks on a parameter and on a result, and one on a module for some steps."""

    def __init__(self, model):
        super().__init__(model)
        model.head.weight.register_post_accumulate_grad_hook(lambda p: self.found.append(p.grad.clone()))

    def step(self, number):
        seen = self.model.head.register_forward_hook(lambda *a: self.found.append(a[2].detach()))
        if not 20 <= number < 30:
            seen.remove()
        super().step(number)
        seen.remove()


class Thawed(Loop):
    """A part is frozen for the first half."""

    def step(self, number):
        self.model.first.requires_grad_(number >= STEPS // 2)
        self.model.first.zero_grad()
        super().step(number)


class Half(Loop):
    def call(self, number):
        with torch.autocast("cpu", torch.bfloat16):
            return super().call(number).float()


def tied():
    net = Net()
    net.blocks[1].layer.weight = net.blocks[0].layer.weight
    return net


def frozen():
    net = Net()
    net.first.requires_grad_(False)
    net.blocks[0].norm.eval()
    return net


def parametrized():
    net = Net()
    parametrizations.spectral_norm(net.head)
    return net


def weighed():
    net = Net()
    parametrizations.weight_norm(net.head)
    return net


def undrawn():
    """Return a net whose checkpoints neither draw nor count."""
    net = Net(saves="blocks")
    for block in net.blocks:
        block.norm, block.drop = nn.LayerNorm(6), nn.Identity()
    return net


ROWS = {
    "training": (Net, Loop),
    "a dataclass": (lambda: Net("dataclass"), Loop),
    "a dictionary": (lambda: Net("dictionary"), Loop),
    "evaluation": (Net, Evaluated),
    "keywords": (Net, Keywords),
    "sizes": (Net, Sizes),
    "accumulation": (Net, Accumulated),
    "checkpoints": (undrawn, Loop),
    "checkpoints that draw": (lambda: Net(saves="blocks"), Loop),
    "averages": (Net, Averaged),
    "a schedule": (Net, Scheduled),
    "hooks": (Net, Hooked),
    "shared weights": (tied, Loop),
    "frozen weights": (frozen, Loop),
    "parametrized weights": (parametrized, Loop),
    "weights with a norm": (weighed, Loop),
    "thawed weights": (Net, Thawed),
    "half precision": (Net, Half),
}

RUN = {
    "checkpoints that draw": "its checkpoint would run add_ twice, with other numbers or one count more",
    "parametrized weights": "its results share memory with each other, or with an argument",
}
"""Rows whose replay can't return what a run does: they run, and say why."""


@pytest.mark.slow
@for_each("mode", ROWS)
def test_fifty_steps_are_those_of_a_plain_model(mode, tape):
    torch._dynamo.reset()
    make, loop = ROWS[mode]
    torch.manual_seed(0)
    plain = make()
    ours = copy.deepcopy(plain)
    nxcore.accelerate(ours)
    before, found = tape.replayed, []
    for net in (plain, ours):
        torch.manual_seed(1)
        run = loop(net)
        for number in range(STEPS):
            run.step(number)
        grads = [p.grad for p in net.parameters()]
        found.append([run.found, grads, dict(net.state_dict()), torch.rand(2)])
    near = {"rtol": 2e-2, "atol": 2e-2} if mode == "half precision" else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(found[1], found[0], **near)
    assert (tape.replayed > before) is (mode not in RUN), part(ours).state
    assert RUN.get(mode, "") in part(ours).state
