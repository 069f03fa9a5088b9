"""A part of a network that is replayed gives what running it gives."""

import copy
import pickle

import pytest
import torch
from torch import nn

from nxcore.graphs.graphed import deciding
from nxcore.graphs.late import LATE
from nxcore.graphs.part import LIMIT, SETTLED
from nxcore.graphs.recorder import Order
from tests.nn.parts import Pair, blended
from tests.nn.tape import Tape

pytestmark = pytest.mark.usefixtures("decided")


@pytest.fixture
def pair():
    found = Pair()
    found.met()
    assert found.part.state.startswith("replays, 2.0x: 1e+03 ms replayed, 2e+03 ms run"), found.part.state
    return found


def test_once_met_a_part_is_replayed_and_gives_what_running_it_gives():
    pair = Pair()
    assert pair.part.state == "runs: no call in training yet"
    pair.agree()
    assert pair.part.state == "runs: calls so far: 1"
    for _ in range(SETTLED - 2):
        pair.agree()
    assert pair.tape.captured == 0
    pair.agree()
    assert pair.tape.captured == 2
    assert pair.part.captured == 1
    before = pair.tape.replayed
    for _ in range(3):
        pair.agree()
    assert pair.tape.replayed == before + 6, "there and back"
    assert pair.module[1].num_batches_tracked == SETTLED + 3


def test_what_a_replay_returned_is_the_callers_own(pair):
    results = [pair.step(torch.randn(2, 3, 5, 5)) for _ in range(3)]
    for run, replayed in results:
        torch.testing.assert_close(run, replayed)


def test_weights_may_learn_between_replays(pair):
    for module in (pair.plain, pair.module):
        with torch.no_grad():
            module[0].weight.mul_(-0.5)
    before = pair.tape.replayed
    pair.agree()
    assert pair.tape.replayed == before + 2


def test_gradients_add_up_in_leaves(pair):
    x = torch.randn(2, 3, 5, 5, requires_grad=True)
    for module, call in ((pair.plain, blended), (pair.module, pair.part)):
        for _ in range(3):
            call(module, x, pair.weight).square().sum().backward()
    torch.testing.assert_close(pair.module[0].weight.grad, pair.plain[0].weight.grad)


def test_who_waits_for_a_weights_gradient_sees_each_once():
    """As a reducer does, or an optimizer that steps within the backward pass; a capture is no step."""
    pair, seen = Pair(), []
    pair.module[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    x = torch.randn(2, 3, 5, 5, requires_grad=True)
    for turn in range(1, SETTLED + 3):
        pair.part(pair.module, x, pair.weight).square().sum().backward()
        assert len(seen) == turn
    assert pair.part.captured == 1
    blended(pair.plain, x, pair.weight).square().sum().backward()
    torch.testing.assert_close(seen[-1], (SETTLED + 2) * pair.plain[0].weight.grad)


def test_a_second_backward_pass_where_a_tensor_is_computed_of_another_one(pair):
    pair.met()
    found, start = [], torch.randn(2, 3, 5, 5)
    for module, call in ((pair.plain, pair.run), (pair.module, pair.part)):
        x = start.clone().requires_grad_()
        image = x * 2
        out = call(module, image, image.mean().sin()).square().sum()
        each = [torch.autograd.grad(out, [x, *module.parameters()], retain_graph=True) for _ in range(2)]
        found.append([out.detach(), *each[0], *each[1]])
    torch.testing.assert_close(*found)


def test_while_somebody_may_go_back_a_second_call_is_run(pair):
    x = torch.randn(2, 3, 5, 5, requires_grad=True)
    before = pair.tape.replayed
    y = (2 * x).detach().requires_grad_()
    outs = [pair.part(pair.module, t, pair.weight) for t in (x, y)]
    assert pair.tape.replayed == before + 1
    want = [blended(pair.plain, t, pair.weight) for t in (x, y)]
    for got, expected in zip(outs, want, strict=True):
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(
            torch.autograd.grad(got.square().sum(), pair.weight),
            torch.autograd.grad(expected.square().sum(), pair.weight),
        )
    dropped = pair.part(pair.module, x, pair.weight)
    del dropped
    before = pair.tape.replayed
    pair.part(pair.module, x, pair.weight)
    assert pair.tape.replayed == before + 1, "nobody can go back through what is gone"


def test_going_back_twice_is_right_even_after_another_call(pair):
    x = torch.randn(2, 3, 5, 5, requires_grad=True)
    out = pair.part(pair.module, x, pair.weight).square().sum()
    first = torch.autograd.grad(out, pair.module[0].weight, retain_graph=True)
    second = torch.autograd.grad(out, pair.module[0].weight, retain_graph=True)
    before = pair.tape.replayed
    pair.part(pair.module, (3 * x).detach().requires_grad_(), pair.weight)
    assert pair.tape.replayed == before + 1
    running = pair.module[1].running_mean.clone()
    third = torch.autograd.grad(out, pair.module[0].weight)
    for found in (second, third):
        torch.testing.assert_close(found, first)
    torch.testing.assert_close(pair.module[1].running_mean, running)


def test_parts_are_replayed_in_the_order_of_their_captures_and_back():
    """What a part keeps may lie in memory that those captured before use for a while."""
    tape = Tape()
    pairs = [Pair(tape=tape) for _ in range(2)]
    for pair in pairs:
        pair.met()
    x = torch.randn(2, 3, 5, 5)

    def there(i):
        found = []
        for module, call in ((pairs[i].module, pairs[i].part), (pairs[i].plain, blended)):
            mine = x.clone().requires_grad_()
            found.append((call(module, mine, pairs[i].weight).square().sum(), mine))
        return found

    def back(ways):
        got, want = (torch.autograd.grad(out, mine) for out, mine in ways)
        torch.testing.assert_close(got, want)

    before = tape.replayed
    first, second = there(0), there(1)
    assert tape.replayed == before + 2
    back(second)
    back(first)
    assert tape.replayed == before + 4
    second, first = there(1), there(0)
    assert tape.replayed == before + 5, "the first is run while the second is kept"
    back(first)
    back(second)
    assert tape.replayed == before + 6
    first, second = there(0), there(1)
    back(first)
    assert tape.replayed == before + 8, "it goes back through a run"
    back(second)
    assert tape.replayed == before + 9


def test_out_of_order_a_replay_would_write_where_another_keeps(monkeypatch):
    tape = Tape()
    pairs = [Pair(tape=tape) for _ in range(2)]
    for pair in pairs:
        pair.met()
    monkeypatch.setattr(Order, "permits", lambda self, place: True)
    x = torch.randn(2, 3, 5, 5, requires_grad=True)
    outs = [pair.part(pair.module, x, pair.weight) for pair in reversed(pairs)]
    gradients = [torch.autograd.grad(out.square().sum(), x)[0] for out in outs]
    assert [bool(g.isnan().any()) for g in gradients] == [True, False], "that is what the order is for"


def test_one_that_comes_out_of_turn_is_captured_anew(monkeypatch):
    tape = Tape()
    pairs = [Pair(tape=tape) for _ in range(2)]
    for pair in pairs:
        pair.met()

    def step():
        """Go through both, and back; return how many replays that was."""
        before, x = tape.replayed, torch.randn(2, 3, 5, 5)
        found = []
        for first, second in ((p.plain for p in pairs), (p.module for p in pairs)):
            mine = x.clone().requires_grad_()
            calls = (blended, blended) if first is pairs[0].plain else (pairs[0].part, pairs[1].part)
            y = calls[0](first, mine, pairs[0].weight)
            z = calls[1](second, mine, pairs[1].weight)
            found.append(torch.autograd.grad((y * z).sum(), mine))
        torch.testing.assert_close(*found)
        return tape.replayed - before

    assert step() == 4
    for module in (pairs[0].plain, pairs[0].module):
        module[2] = nn.Tanh()
    assert [step() for _ in range(SETTLED)][:-1] == [2] * (SETTLED - 1)
    assert pairs[0].part.captured == 1
    monkeypatch.setattr("nxcore.graphs.part.AGAIN", 3)
    assert [step() for _ in range(3 + SETTLED)][:-1] == [2] * (2 + SETTLED)
    assert step() == 4


def test_second_derivatives_and_batched_gradients_run(pair):
    x = torch.randn(2, 3, 5, 5)
    found = []
    for module, call in ((pair.plain, blended), (pair.module, pair.part)):
        mine = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(call(module, mine, pair.weight).square().sum(), mine, create_graph=True)
        out = call(module, mine, pair.weight)
        batch = torch.stack([torch.ones_like(out), 2 * torch.ones_like(out)])
        found.append(
            [
                *torch.autograd.grad(grad.square().sum(), [mine, pair.weight]),
                *torch.autograd.grad(out, pair.weight, batch, is_grads_batched=True),
            ]
        )
    torch.testing.assert_close(*found)


def test_weights_that_learn_in_turn_with_others_are_two_captures(pair):
    for turn in range(2 * SETTLED + 4):
        for module in (pair.plain, pair.module):
            module.requires_grad_(turn % 2 == 0)
        x = torch.randn(2, 3, 5, 5)
        before = pair.tape.replayed
        found = []
        for module, call in ((pair.plain, blended), (pair.module, pair.part)):
            mine = x.clone().requires_grad_()
            call(module, mine, pair.weight).square().sum().backward()
            found.append([mine.grad, module[0].weight.grad])
        torch.testing.assert_close(*found)
    assert pair.part.captured == 2
    assert pair.tape.replayed == before + 2


def test_other_shapes_are_other_captures_and_too_many_are_run(pair):
    for n in range(1, LIMIT + 2):
        for _ in range(SETTLED + 1):
            pair.agree(n, 3, 6, 6)
    assert pair.part.captured == LIMIT
    assert pair.part.state.count("replays") == LIMIT


def test_a_whole_step_that_is_captured_needs_no_parts(pair):
    with deciding():
        pair.agree()
    assert pair.part.captured == 0


def test_a_capture_leaves_statistics_dice_and_gradients_alone():
    pair = Pair()
    torch.manual_seed(2)
    pair.module[0].weight.grad = torch.ones_like(pair.module[0].weight)
    for _ in range(SETTLED):
        pair.part(pair.module, torch.ones(2, 3, 5, 5), pair.weight)
    assert pair.tape.captured == 2
    torch.testing.assert_close(pair.module[0].weight.grad, torch.ones_like(pair.module[0].weight))
    drawn = torch.rand(1)
    torch.manual_seed(2)
    assert torch.rand(1) == drawn
    assert pair.module[1].num_batches_tracked == SETTLED
    assert isinstance(pair.module[0].weight, nn.Parameter)


def test_a_copy_of_a_part_begins_anew(pair):
    for again in (copy.deepcopy(pair.part), pickle.loads(pickle.dumps(pair.part))):
        assert again.state == "runs: no call in training yet"
        assert again.run is blended
    again = copy.deepcopy(pair.part)
    assert again._record(torch.device("cpu")) is pair.tape


class Peculiar(nn.Module):
    """Fails, or returns something else, where updates of running statistics wait."""

    def __init__(self, raises):
        super().__init__()
        self.norm, self.raises = nn.BatchNorm2d(3), raises

    def forward(self, x):
        if LATE.get() is None:
            return self.norm(x)
        if self.raises:
            raise RuntimeError("not like this")
        return 2 * self.norm(x)


@pytest.mark.parametrize(
    ("raises", "why"),
    [
        (True, "RuntimeError: not like this"),
        (False, "CaptureError: a run with its bookkeeping together differs from the first, by"),
    ],
)
def test_what_can_not_have_its_bookkeeping_together_is_replayed_with_each_by_itself(raises, why):
    pair = Pair(lambda: Peculiar(raises))
    pair.met()
    assert pair.part.state.startswith("replays, 2.0x")
    assert f"; bookkeeping one by one: {why}" in pair.part.state
    replays = pair.tape.replayed
    for _ in range(3):
        pair.agree()
    assert pair.tape.replayed == replays + 6
