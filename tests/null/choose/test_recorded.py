"""Recorded: what is on record about an operator."""

import pytest
import torch

from nxcore.expression.activations import ACTIVATIONS
from nxcore.measure.decision import Candidate, Decision
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.problem import Problem
from nxcore.store.pages import Page
from tests.null import fakes

SPECS = [*fakes.SPECS.values(), *ACTIVATIONS["relu"].specs("relu")]
PROBLEM = Problem.of(SPECS[-2], (torch.ones(4), None))


def page(chosen):
    candidates = tuple(
        Candidate(label, label.partition("-")[0]) for label in dict.fromkeys(("torch", chosen))
    )
    return Page(Decision(chosen, "measured", "in a test", candidates), None, {})


def process(folder):
    return Session(Settings(cache=folder, policy="auto"), fakes.registry(specs=SPECS))


@pytest.mark.parametrize("chosen", ["torch", "torch-idiom", "fake"])
def test_a_kernel_has_won_where_a_record_says_so(chosen, tmp_path):
    first = process(tmp_path)
    assert not first.chooser.recorded.won("relu")
    first.wisdom.write(PROBLEM, page(chosen))
    later = process(tmp_path).chooser.recorded
    assert later.won("relu") == (chosen == "fake")
    assert not later.won("add")


def test_an_operator_that_was_not_made_yet_is_read_too(tmp_path):
    process(tmp_path).wisdom.write(PROBLEM, page("fake"))
    session = Session(Settings(cache=tmp_path, policy="auto"), fakes.registry(specs=SPECS[:-2]))
    added = []
    session.registry.latent["relu"] = lambda: added.append(session.registry.add_ops(SPECS[-2:], fakes.CORE))
    assert session.chooser.recorded.won("relu")
    assert len(added) == 1
