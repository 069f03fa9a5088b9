"""Processes that start one after another on one machine, with kernels of scripted speed and one cache."""

import functools

import torch

from nxcore.choose.contenders import AGAIN
from nxcore.measure import race as racing
from nxcore.session import Session
from nxcore.settings import Settings
from tests.null import fakes
from tests.null.fakes import SPECS

ADD = SPECS["add"].reference
X = torch.arange(12.0).view(3, 4)


def noisy(timing, by):
    """Return an A/A row whose half-width is more: by so much."""
    us = [t * (1 + by if i % 2 else 1 - min(by, 0.9)) for i, t in enumerate(timing.call_us)]
    return fakes.replace(timing, device_us=tuple(us), host_us=tuple(us))


class Machine:
    """A machine on which processes start one after another, with backends of so many microseconds."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.clock = folder, fakes.Clock()
        self.makes, self.raced, self.accepts, self.noise = {}, [], {}, 0.0
        race = functools.partial(racing.race, clock=self.clock)

        def noted(calls, *args, **how):
            self.raced.append(sorted(set(calls) - {AGAIN}))
            found = race(calls, *args, **how)
            found[AGAIN] = noisy(found[AGAIN], self.noise)
            return found

        fakes.raced(monkeypatch, noted)
        fakes.identified(monkeypatch, lambda _, kernel: self.makes.get(kernel.target.partition(":")[0], "1"))

    def process(self, asked=(), **us):
        """Return a session that has seen nothing, in which each label takes so long for an add.

        Those that are ``asked`` take part on request only.
        """
        self.raced.clear()
        specs = fakes.addition(self.clock, us.pop("torch", 100))
        backends = [
            fakes.backend(
                label,
                fakes.kernel(
                    "add",
                    self.clock.costing(time, ADD),
                    target=f"{label}:plan",
                    accepts=self.accepts.get(label, lambda p: fakes.YES),
                ),
            )
            for label, time in us.items()
        ]
        backends = [fakes.replace(b, on_request="slow" if b.name in asked else "") for b in backends]
        return Session(
            Settings(cache=self.folder, policy="measure"), fakes.registry(*backends, specs=specs), fakes.QUICK
        )

    def chosen(self, **us):
        return self.process(**us).explain("add", X, X).decision
