"""A session whose operator and gradient take scripted times, and a step of it."""

import functools

import torch

from nxcore.choose.learn.budget import Pace
from nxcore.choose.learn.learner import Learner
from nxcore.measure import race
from nxcore.session import Session
from nxcore.settings import Settings
from tests.null import fakes
from tests.null.fakes import SPECS

FORWARD, BACKWARD = "weighted_sum", "weighted_sum_backward"


class Noisy(fakes.Clock):
    """A clock on which no time is exactly as long as the last one."""

    def __init__(self, noise):
        super().__init__()
        self.noise = noise

    def costing(self, us, call=lambda *args: None):
        @functools.wraps(call)
        def timed(*args):
            self.now += round(us * self.noise() * 1e3)
            return call(*args)

        return timed


def learning(forward, backward, policy="auto", cache=None, lock=None, noise=lambda: 1.0, us=100.0):
    """Return a session whose one backend takes so much of torch's ``us`` each way, and who ran.

    Each time is multiplied by ``noise()``.
    """
    clock, runs = Noisy(noise), []

    def noted(name, call, took):
        timed = clock.costing(took, call)

        def run(*args):
            runs.append(name)
            return timed(*args)

        return run

    def torchs(spec):
        """Return the reference, whose own autograd takes as long as it does."""
        forward, backward = clock.costing(us, spec.reference), clock.costing(us)

        @functools.wraps(spec.reference)
        def run(*args):
            result = forward(*args)
            if isinstance(result, torch.Tensor) and result.requires_grad:
                result.register_hook(backward)
            return result

        return run

    specs = [
        fakes.replace(spec, reference=torchs(spec), idioms={}) if spec.name in (FORWARD, BACKWARD) else spec
        for spec in SPECS.values()
    ]
    kernels = [
        fakes.kernel(op, noted(name, SPECS[op].reference, us * share), target=f"{name}:plan")
        for op, name, share in ((FORWARD, "forward", forward), (BACKWARD, "backward", backward))
        if share
    ]
    found = Session(
        Settings(audit=False, cache=cache, policy=policy, lock=lock),  # runs are counted
        fakes.registry(fakes.backend("fast", *kernels), specs=specs),
        fakes.QUICK,
    )
    found.chooser.learner = Learner(found.chooser.recall, found._forget, clock, Pace(float("inf")))
    return found, runs


XS = tuple(torch.randn(3, 4) for _ in range(2))


def step(session, *, back=True, settle=True, dense=False, device="cpu"):
    """Call and differentiate once; return whether the call went over the bridge."""
    xs = [x.to(device, copy=True).requires_grad_() for x in XS]
    weights = torch.tensor([0.25, 2.0], device=device, requires_grad=True)
    result = session.op(FORWARD)(xs, weights)
    if back:
        result.backward(torch.ones_like(result)) if dense else result.sum().backward()
        assert [x.grad.unique().item() for x in xs] == [0.25, 2.0]
        torch.testing.assert_close(weights.grad.cpu(), torch.stack([x.sum() for x in XS]))
    if settle:
        session.chooser.learner.settle(30)
    return result.grad_fn is not None and result.grad_fn.name() == "_JoinBackward"


def races(monkeypatch):
    """Return the list to which every race adds its labels."""
    seen, run = [], race.race
    fakes.raced(monkeypatch, lambda calls, *a, **k: seen.append([*calls]) or run(calls, *a, **k))
    return seen
