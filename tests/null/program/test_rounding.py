"""An audit tells another rounding of a deep network's numbers from a fault."""

import copy
import random
import re
import weakref

import pytest
import torch
from torch import nn

from nxcore.program import replay, rounding
from nxcore.program.audit import Audits, audited
from nxcore.program.replay import State
from tests.nn.tape import Tape
from tests.null.program.nets import MET, replays
from tests.table import for_each

DEPTH = 6


class Deep(nn.Module):
    """Layers in half precision; ``how`` says what is other than in a plain one."""

    def __init__(self, how=""):
        super().__init__()
        self.how = how
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(DEPTH))
        self.norms = nn.ModuleList(nn.BatchNorm1d(32) for _ in range(DEPTH))
        self.scale = nn.Parameter(torch.full((32,), 8.0))

    def forward(self, x):
        if self.how == "a stale input":
            x = x.roll(1, 0)
        for i, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            weight, at = layer.weight, i == DEPTH // 2
            with torch.autocast("cpu", enabled=not (at and self.how == "another rounding")):
                x = norm(nn.functional.linear(x.to(weight.dtype), weight, layer.bias)).tanh()
        scale = self.scale.detach() + 0 * self.scale if self.how == "a dropped gradient" else self.scale
        return x * scale * (1.06 if self.how == "a scaled result" else 1)


def audit(how):
    """Return why a model with the weights of a plain one is convicted, and the audits."""
    torch.manual_seed(0)
    plain, ours = Deep(), Deep(how)
    for mine, its in zip(ours.modules(), plain.modules(), strict=True):
        mine._parameters, mine._buffers = its._parameters, its._buffers
    x, whys, audits = torch.randn(64, 32), [], Audits()
    before = [copy.deepcopy(t.detach()) for t in (*plain.parameters(), x)]
    drawn = torch.get_rng_state(), random.getstate()
    leaves = [*plain.parameters(), x]
    with torch.autocast("cpu", torch.bfloat16):
        out = audited(lambda: plain(x), lambda: ours(x), leaves, plain.buffers(), Tape(), audits, whys.append)
    out.float().square().sum().backward()
    torch.testing.assert_close(leaves, before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert random.getstate() == drawn[1]
    assert {int(n.num_batches_tracked) for n in plain.norms} == {1}
    return whys, audits.skipped


def test_another_rounding_is_no_fault_and_leaves_all_as_it_was(monkeypatch):
    assert audit("") == audit("another rounding") == ([], 0)
    monkeypatch.setattr(rounding, "fault", lambda *_: "it is looked at")
    assert re.match(
        "a replay differs from plain torch by 0.0[1-9]+ of its gradients", audit("another rounding")[0][0]
    )


FAULTS = {
    "a stale input": "by 1.[0-9]+ of its results$",
    "a scaled result": "by 0.06 of its results, where rounding alone makes 0.0[0-9]+$",
    "a dropped gradient": "of its gradients, and by 1 of one tensor, where rounding alone makes 0.0[0-9]+$",
}


@for_each("how", FAULTS)
def test_a_fault_is_convicted_with_both_figures(how):
    ((why,), skipped) = audit(how)
    assert re.search(FAULTS[how], why), why
    assert not skipped


@pytest.mark.parametrize(("factor", "state"), [(1.02, State.OURS), (1.2, State.REFUSED)])
def test_a_recording_is_compared_by_what_rounding_makes_too(compiled, monkeypatch, factor, state):
    class Rough(replay.Recording):
        def backward(self, grads):
            return [g if g is None else factor * g for g in super().backward(grads)]

    monkeypatch.setattr(replay, "Recording", Rough)
    torch.manual_seed(0)
    model = Deep()
    call = compiled(model)
    for _ in range(MET + 2):
        with torch.autocast("cpu", torch.bfloat16):
            out = call(torch.randn(64, 32))
        out.float().square().sum().backward()
    (found,) = replays(model)
    assert found.state is state, found.report


def test_without_memory_for_a_second_run_the_audit_is_left_out(monkeypatch):
    def short(self):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(rounding.Rounded, "_round", short)
    assert audit("a scaled result") == ([], 2)


def test_where_plain_torch_runs_out_of_memory_what_it_has_computed_is_freed_before_a_replay():
    made, seen = [], []

    def plain():
        computed = torch.ones(2)
        made.append(weakref.ref(computed))
        raise torch.OutOfMemoryError

    def ours():
        seen.append([there() is None for there in made])
        return torch.zeros(1)

    assert audited(plain, ours, [], [], Tape(), Audits(), made.append) == 0
    assert seen == [[], [True]]
