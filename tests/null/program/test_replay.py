"""A graph of dynamo's: its steps are replayed with the numbers of plain ones, or run, and it says why."""

import gc
import weakref

import pytest
import torch
from torch import nn

from nxcore.program import audit, front, replay
from nxcore.program.replay import State
from tests.null import fakes
from tests.null.program.nets import MET, Net, agree, loss_of, pair, replays, step
from tests.stand_ins import stand_in

replay_has = stand_in(replay)


def recorded(compiled, make=Net, **kwargs):
    """Return a plain model, one that is replayed, and its compiled form."""
    plain, ours = pair(make)
    call = compiled(ours)
    agree(call, ours, plain, MET + 2, **kwargs)
    assert [r.state for r in replays(ours)] == [State.OURS], [r.report for r in replays(ours)]
    return plain, ours, call


def test_steps_are_replays_with_the_numbers_of_plain_ones(compiled, tape):
    plain, ours, call = recorded(compiled)
    before = tape.replayed
    agree(call, ours, plain, 3)
    assert tape.replayed == before + 3 * 2
    assert replays(ours)[0].report.startswith("replays, 2.0x: ")


def test_a_loss_within_the_model_is_the_only_result_that_is_differentiated(compiled, tape):
    plain, ours, call = recorded(compiled, target=torch.tensor([0, 1, 2, 0, 1]))
    before = tape.replayed
    agree(call, ours, plain, 2, target=torch.tensor([2, 1, 2, 0, 0]))
    assert tape.replayed == before + 2 * 2


def test_results_that_a_caller_holds_are_not_overwritten(compiled):
    _, _, call = recorded(compiled)
    found = [call(torch.randn(5, 4))["scores"].detach() for _ in range(3)]
    held = [t.clone() for t in found]
    call(torch.randn(5, 4))
    torch.testing.assert_close(found, held)


def test_a_second_call_before_the_first_ones_backward_pass_runs(compiled, tape):
    plain, ours, call = recorded(compiled)
    before = tape.replayed
    for net, model in ((call, ours), (plain, plain)):
        torch.manual_seed(1)
        model.zero_grad()
        (loss_of(net(torch.ones(5, 4))) + loss_of(net(torch.zeros(5, 4)))).backward()
    torch.testing.assert_close([p.grad for p in ours.parameters()], [p.grad for p in plain.parameters()])
    assert tape.replayed == before + 2
    for net in (call, plain):  # a call without a backward pass, whose results are gone
        net(torch.ones(5, 4))
    gc.collect()
    agree(call, ours, plain)
    assert tape.replayed == before + 2 + 1 + 2


def test_a_second_backward_pass_and_a_second_derivative_run_again(compiled):
    plain, ours, call = recorded(compiled, Smooth)
    x, found = torch.randn(5, 4), []
    for net, model in ((call, ours), (plain, plain)):
        torch.manual_seed(1)
        model.zero_grad()
        loss = loss_of(net(x))
        loss.backward(retain_graph=True)
        loss.backward()
        grads = torch.autograd.grad(loss_of(net(x)), [*model.parameters()], create_graph=True)
        sum(g.square().sum() for g in grads).backward()
        found.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*found)


def test_a_weight_written_before_its_backward_pass_is_an_error_as_of_torch(compiled):
    _, ours, call = recorded(compiled)
    loss = loss_of(call(torch.ones(5, 4)))
    with torch.no_grad():
        ours.head.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_evaluation_and_inference_are_replayed_in_the_memory_of_the_training(compiled, tape):
    plain, ours, call = recorded(compiled)
    for model in (plain, ours):
        model.eval()
    for guard in (torch.no_grad, torch.inference_mode):
        for _ in range(MET + 3):
            x = torch.randn(5, 4)
            with guard():
                torch.testing.assert_close(call(x), plain(x))
    found = replays(ours)
    assert [r.state for r in found] == [State.OURS] * len(found), [r.report for r in found]
    assert len({r.memory for r in found}) == 1
    assert len({id(pool) for pool in tape.pools}) == 1
    for model in (plain, ours):
        model.train()
    agree(call, ours, plain, 2)


def test_a_last_smaller_batch_runs_and_a_frequent_second_size_is_replayed(compiled):
    plain, ours, call = recorded(compiled)
    for seed in range(24):
        agree(call, ours, plain, shape=(3, 4) if seed % 12 == 11 else (5, 4))
    assert {r.state for r in replays(ours)} == {State.OURS, State.WAITING}
    for seed in range(24):
        agree(call, ours, plain, shape=(3, 4) if seed % 2 else (5, 4))
    assert {r.state for r in replays(ours)} == {State.OURS}


def test_a_recording_that_is_dropped_is_gone_though_a_result_of_it_is_held(compiled, tape):
    plain, ours, call = recorded(compiled)
    (found,) = replays(ours)
    graphs = [weakref.ref(graph) for graph in (found._recording._there, found._recording._back)]
    tape._made.clear()
    losses = []
    for net, model in ((call, ours), (plain, plain)):
        torch.manual_seed(1)
        model.zero_grad()
        losses.append(loss_of(net(torch.ones(5, 4))))
    found.end("enough")
    assert [graph() for graph in graphs] == [None, None]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close([p.grad for p in ours.parameters()], [p.grad for p in plain.parameters()])


def test_what_is_recorded_again_is_so_at_the_next_call(compiled, tape):
    plain, ours = pair()
    call = compiled(ours, dynamic=False)
    for seed in range(24):  # of a signature that comes in few calls
        agree(call, ours, plain, shape=(5, 4) if seed < 4 or seed % 3 == 0 else (3, 4))
    before, (found, _) = tape.captured, replays(ours)
    found.renew()
    agree(call, ours, plain)
    assert tape.captured == before + 2
    assert found.state is State.OURS
    assert found.audits.calls == 1


def test_losses_of_other_results_are_recorded_again_until_they_change_too_often(compiled, tape):
    plain, ours, call = recorded(compiled)
    for turn, key in enumerate(["hidden"] * (MET + 3) + ["scores"] * 4 + ["hidden", "scores"] * 4):
        if turn == MET + 3:
            assert replays(ours)[0].state is State.OURS
        found = []
        for net, model in ((call, ours), (plain, plain)):
            torch.manual_seed(4)
            model.zero_grad()
            net(torch.ones(5, 4))[key].sum().backward()
            found.append([p.grad for p in model.parameters()])
        torch.testing.assert_close(*found)
    assert replays(ours)[0].report == "runs: plain: its losses use other results than before"
    assert tape.captured == 3 * 2


def test_a_loss_of_more_calls_than_a_backward_pass_is_waited_for(compiled):
    plain, ours = pair()
    call = compiled(ours)
    for _ in range(4):
        found = []
        for net, model in ((call, ours), (plain, plain)):
            torch.manual_seed(4)
            model.zero_grad()
            sum(loss_of(net(torch.randn(5, 4))) for _ in range(replay.UNUSED + 2)).backward()
            found.append([p.grad for p in model.parameters()])
        torch.testing.assert_close(*found)
    assert replays(ours)[0].state is State.OURS


class Smooth(nn.Module):
    """A network whose second derivatives are no numerical riddle."""

    def __init__(self):
        super().__init__()
        self.layer, self.drop, self.head = nn.Linear(4, 6), nn.Dropout(0.4), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.drop(self.layer(x).tanh()))


class Writes(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x.add_(1))


class Returned(Writes):
    def forward(self, x):
        y = self.layer(x)
        return {"loss": None, "scores": y, "again": y[:2]}


class OnHost(Writes):
    def forward(self, x):
        return self.layer(x) * torch.rand(1)


@pytest.mark.parametrize(
    ("make", "why"), [(Writes, "it writes into an argument"), (Returned, "its results share memory")]
)
def test_what_a_replay_cannot_do_runs(compiled, make, why):
    plain, ours = pair(make)
    call = compiled(ours)
    for _ in range(MET + 2):
        x = torch.randn(5, 4)
        torch.testing.assert_close(step(call, ours, x.clone()), step(plain, plain, x.clone()))
    (found,) = replays(ours)
    assert found.state is State.REFUSED
    assert why in found.why


def test_what_the_host_computes_is_no_constant_of_a_recording():
    graphs = []
    torch.compile(OnHost(), backend=lambda gm, _: graphs.append(gm) or gm.forward)(torch.ones(2, 4))
    assert "is computed on 'cpu'" in front.refusal(graphs[0], torch.device("cuda"))


def test_a_replay_that_is_no_faster_is_dropped(compiled, tape):
    tape.slow = 1e-3
    plain, ours = pair()
    agree(compiled(ours), ours, plain, MET + 2)
    (found,) = replays(ours)
    assert found.state is State.PLAIN
    assert found.why.startswith("replaying is no faster: ")


def test_without_memory_a_call_runs(compiled, replay_has):
    replay_has(Recording=fakes.raising(torch.OutOfMemoryError))
    plain, ours = pair()
    agree(compiled(ours), ours, plain, MET + 2)
    (found,) = replays(ours)
    assert (found.state, found.why) == (State.PLAIN, "there was too little memory for a recording")
    replay_has(roomy=lambda _: False)
    other = pair()[1]
    agree(compiled(other), other, pair()[0], MET + 2)
    assert replays(other)[0].why == "there is too little memory for a recording"


@pytest.mark.parametrize("what", ["results", "gradients"])
def test_a_replay_that_is_wrong_is_refused_and_its_caller_has_the_plain_result(
    compiled, what, monkeypatch, replay_has
):
    plain, ours = pair()
    call = compiled(ours)
    agree(call, ours, plain, MET)
    made = replay.Recording

    class Wrong(made):
        def forward(self, inputs):
            found = super().forward(inputs)
            return [2 * t if what == "results" and self.wrong else t for t in found]

        def backward(self, grads):
            found = super().backward(grads)
            return [g if g is None or what == "results" or not self.wrong else 2 * g for g in found]

        wrong = False

    replay_has(Recording=Wrong)
    monkeypatch.setattr(audit, "EVERY", 2)
    agree(call, ours, plain, 2)
    assert replays(ours)[0].state is State.OURS
    Wrong.wrong = True
    served = []
    for _ in range(8):  # between two audits a wrong replay is served: no test can see it sooner
        x = torch.randn(5, 4)
        found = step(call, ours, x)
        served.append(all(torch.allclose(a, b) for a, b in zip(found, step(plain, plain, x), strict=True)))
        for own, other in zip(ours.buffers(), plain.buffers(), strict=True):
            own.data.copy_(other)
    (found,) = replays(ours)
    assert found.state is State.REFUSED
    assert f"of its {what}" in found.why
    assert served[-1]


def test_audits_come_at_a_rate_that_never_ends():
    audits = audit.Audits()
    due = [i for i in range(1, 40_000) if audits.due()]
    assert due[:4] == [1, 5, 25, 125]
    assert {b - a for a, b in zip(due[-4:], due[-3:], strict=False)} == {audit.EVERY}


def test_other_modes_of_torch_run(compiled, tape):
    _, ours, call = recorded(compiled)
    before = tape.replayed
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        loss_of(call(torch.ones(5, 4))).backward()
    with torch.autograd.set_detect_anomaly(mode=True, check_nan=False):
        loss_of(call(torch.ones(5, 4))).backward()
    assert tape.replayed == before
    assert replays(ours)[0].state is State.OURS


def test_an_audit_without_memory_is_left_out_or_ends_in_a_replay(compiled, monkeypatch, replay_has):
    replay_has(spare=lambda *_: False)
    plain, ours, call = recorded(compiled)
    agree(call, ours, plain)
    assert replays(ours)[0].report.endswith("; 1 audits left out, as memory is short")
    monkeypatch.undo()
    found = replays(ours)[0]
    found.audits._next = 0
    run = found.run

    def short(*inputs):
        inputs[3].add_(1)  # a statistic of the norm
        raise torch.OutOfMemoryError

    found.run = short
    agree(call, ours, plain)
    found.run = run
    agree(call, ours, plain)
    assert found.state is State.OURS


class Joined(Writes):
    def forward(self, a, b):
        return self.layer(a).tanh() * b


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo reads it
def test_an_argument_may_be_computed_of_another_one(compiled, monkeypatch):
    monkeypatch.setattr(audit, "EVERY", 2)
    plain, ours = pair(Joined)
    call = compiled(ours)
    for again in [False] * (MET + 6) + [True] * 2:
        x, found = torch.randn(5, 4), []
        for net, model in ((call, ours), (plain, plain)):
            model.zero_grad()
            start = x.clone().requires_grad_()
            first = start * 2
            loss = net(first, first.sin()).square().sum()
            if again:
                loss.backward(retain_graph=True)
            loss.backward()
            found.append([start.grad, *(p.grad for p in model.parameters())])
        torch.testing.assert_close(*found)
    (replay_of,) = replays(ours)
    assert replay_of.state is State.OURS, replay_of.report
