"""Under ``measure`` a model's capture has unknown problems measured beside the program, not in its call."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import nxcore
from nxcore.nn import exchange, modules, renewal, whole
from nxcore.spec.tally import tally
from tests.nn.tape import MET, Tape
from tests.nn.test_whole import agree
from tests.null import fakes
from tests.stand_ins import stand_in

whole_has = stand_in(whole)

SHAPE = (2, 4, 4, 4)
"""That of the images of the network."""


@pytest.fixture
def survey(monkeypatch, whole_has, as_default):
    """What stands in for the survey of a session in which ``fake`` is faster than torch."""
    times = {"torch": 1000.0, "fake": 100.0}
    found = fakes.scripted(fakes.Clock(), monkeypatch, "depthwise_conv2d", times)
    as_default(found)
    for name in ("add", "avg_pool2d", "batch_norm", "depthwise_conv2d"):
        monkeypatch.setattr(modules, f"_{name}", found.op(name))
    tape = Tape()
    whole_has(available=lambda: True, recorder_of=lambda _: tape, LOOK=2)
    survey = SimpleNamespace(open=0, asked=[], stays={}, captured=set(), able=True, spare=0)
    survey.spares = lambda: survey.spare > 0
    survey.takes = lambda problem: survey.able and problem not in survey.stays

    def ask(problem):
        survey.asked.append(problem)
        survey.open = len(survey.asked)

    survey.ask = ask
    monkeypatch.setattr(found.chooser, "survey", survey)
    monkeypatch.setattr(
        found.chooser.recall.wisdom, "has", lambda _: True
    )  # a few problems are measured at once
    return survey


def network():
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)  # torch alone computes it here
    return nn.Sequential(nn.Conv2d(4, 4, 3, groups=4, bias=False), norm, nn.Flatten(), nn.Linear(16, 3))


@pytest.mark.parametrize("policy", ["measure", "auto"])
def test_a_capture_races_nothing_and_is_made_again(survey, policy):
    plain = network()
    ours = copy.deepcopy(plain)
    nxcore.accelerate(ours, watch=False)
    before = tally().races
    with nxcore.policy(policy):
        agree(plain, ours, MET, SHAPE)
        part = exchange.watch_of(ours).whole
        assert part.state.startswith("replays")
        assert [p.op for p in survey.asked] == ["depthwise_conv2d"]
        ours[0](torch.randn(2, 4, 4, 4))
        agree(plain, ours, 3, SHAPE)
        first = next(iter(part._captures.values()))[0]
        survey.stays, survey.open = dict.fromkeys(survey.asked, "no kernel is faster"), 0
        agree(plain, ours, 3, SHAPE)
        assert part.captured == 1
        assert next(iter(part._captures.values()))[0] is not first
    assert tally().races == before


def test_without_a_process_beside_the_program_the_capture_races(survey):
    survey.able = False
    plain = network()
    ours = copy.deepcopy(plain)
    nxcore.accelerate(ours, watch=False)
    before = tally().races
    with nxcore.policy("measure"):
        agree(plain, ours, MET - 1, SHAPE)
        assert tally().races == before
        agree(plain, ours, 1, SHAPE)
    assert tally().races > before
    assert not survey.asked


def captured():
    """Return a plain model, an accelerated one, its replays and their capture."""
    plain = network()
    ours = copy.deepcopy(plain)
    nxcore.accelerate(ours, watch=False)
    agree(plain, ours, MET + 1, SHAPE)
    part = exchange.watch_of(ours).whole
    ((capture,),) = part._captures.values()
    return plain, ours, part, capture


@pytest.mark.parametrize("times", [[1.0, 2.0], [2.0, 1.0], None, "waits"])
def test_the_faster_of_two_captures_is_kept(survey, monkeypatch, whole_has, times):
    """Without times the second one fails, or has to wait."""
    with nxcore.policy("auto"):
        plain, ours, part, old = captured()
        monkeypatch.setattr(renewal, "compared", lambda _, *works: [work() for work in works] and times)
        if times is None:
            whole_has(Capture=lambda *_, **__: 1 / 0)
        if times == "waits":
            part._unsettled = lambda _: "a choice is being made"
        survey.stays, survey.open = dict.fromkeys(survey.asked, "no kernel is faster"), 0
        part._looked = whole.LOOK - 1  # the next call looks
        agree(plain, ours, 3, SHAPE)
        ((new,),) = part._captures.values()
        assert (new is old) == (times != [2.0, 1.0])
        assert not part._older
        assert part.early == (times == "waits")
        before = ours[1].num_batches_tracked.clone()
        agree(plain, ours, 2, SHAPE)
        assert ours[1].num_batches_tracked == before + 2


def test_without_memory_for_two_captures_there_is_one(survey, whole_has):
    with nxcore.policy("auto"):
        plain, ours, part, old = captured()
        whole_has(roomy=lambda *_: False)
        survey.stays, survey.open = dict.fromkeys(survey.asked, "no kernel is faster"), 0
        part._looked = whole.LOOK - 1
        agree(plain, ours, 3, SHAPE)
        assert next(iter(part._captures.values()))[0] is old
