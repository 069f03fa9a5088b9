"""Gains: what ``accelerate`` would replace, and how much faster that is by the records of this device."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from nxcore.nn.swap import Swap, accelerate, standing
from nxcore.offline.fitting import fits, operators
from nxcore.offline.models import explain
from nxcore.session import Session, default
from nxcore.store.pages import Page
from nxcore.store.wisdom import PAIR, environment


def dry_run(model: nn.Module, inputs: tuple[Any, ...] | None = None) -> Swap:
    """Return what ``accelerate(model)`` would do, with gains; see ``nxcore.accelerate``.

    With ``inputs``, a copy of the model is accelerated and called, and nothing is measured: each module's
    gain is that of its own problems. Without them, it is the geometric mean over the records that fit it.
    """
    swap = standing(model, would=True)
    if inputs is not None:
        other = copy.deepcopy(model)
        accelerate(other, watch=False, graphs=False)
        gains = {row.name: row.gain for row in explain(other, *inputs).rows}
        return replace(swap, gains={name: gains.get(name) for name in swap.replaced})
    modules = dict(model.named_modules())
    session, device = default(), next((p.device for p in model.parameters()), torch.device("cpu"))
    return replace(swap, gains={name: _on_record(session, modules[name], device) for name in swap.replaced})


def _on_record(session: Session, module: nn.Module, device: torch.device) -> float | None:
    """Return the mean gain of the records that fit a module; in training, those with the gradient if any."""
    both = list(_pages(session, module, device, PAIR)) if module.training else []
    found = [gain for page in both or _pages(session, module, device, "") if (gain := _gain(page))]
    return math.exp(sum(map(math.log, found)) / len(found)) if found else None


def _pages(session: Session, module: nn.Module, device: torch.device, end: str) -> Iterator[Page]:
    facts = environment(device)
    for op in operators(module):
        for of, page in session.wisdom.shelf(facts, f"{op}{end}").values():
            if fits(module, of["forward"] if end else of):
                yield page


def _gain(page: Page) -> float | None:
    """Return how many times as fast as torch's best the winner is; None where it wasn't timed."""
    decision = page.decision
    timed = {c.label: c.timing.median_us for c in decision.candidates if c.timing}
    torchs = [timed[c.label] for c in decision.candidates if c.backend == "torch" and c.label in timed]
    mine = timed.get(decision.chosen)
    if decision.chosen == "torch" or not mine or not torchs:
        return 1.0 if decision.chosen == "torch" else None
    return min(torchs) / mine
