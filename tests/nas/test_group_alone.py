"""Separable convolutions that run by themselves though those of a state may be computed together, and why."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import nxcore
from nxcore.graphs.late import late
from nxcore.nas import chains, group, level
from tests.nas import darts
from tests.nas.grouped import BACKWARD, COUNTS, FORWARD, cell, cells, first, given, met, same
from tests.nas.switches import switch
from tests.stand_ins import stand_in

level_has = stand_in(level)

pytestmark = pytest.mark.usefixtures("decided")


def test_a_cell_whose_convolutions_are_off_has_none_noted(served, monkeypatch):
    switch(monkeypatch, group, on=False)
    plain, patched = cells(cell)
    met(plain, patched, given(5, 8))
    same(plain, patched, given(5, 8))
    assert served.forward == []
    assert patched[0] not in group._known


def hooked(net):
    first(net).op[1].register_forward_hook(lambda *_: None)


def evaluated(net):
    first(net).op[3].eval()


def rewritten(net):
    first(net).forward = lambda x: 2 * first(net).op(x)


class Doubled(darts.Op):
    def forward(self, x):
        return 2 * super().forward(x)


def another_class(net):
    first(net).__class__ = Doubled


def another_eps(net):
    first(net).op[3].eps = 0.1


def rectangular(net):
    conv = first(net).op[1]
    conv.padding, conv.dilation = (1, 2), (1, 2)


@pytest.mark.parametrize("changed", [hooked, evaluated, rewritten, another_class, rectangular])
def test_an_operation_that_is_no_chain_any_more_runs_by_itself(served, changed):
    plain, patched = cells(cell)
    met(plain, patched, given(5, 8))
    for net in (plain, patched):
        changed(net)
    same(plain, patched, given(5, 8))
    assert served.forward == [7, 3, *COUNTS[2:]]


def test_a_norm_of_another_eps_is_not_of_the_others_call(served):
    plain, patched = cells(cell)
    for net in (plain, patched):
        another_eps(net)
    met(plain, patched, given(5, 8))
    same(plain, patched, given(5, 8))
    assert served.forward == [7, 3, *COUNTS[2:]]


def test_an_operation_that_returns_something_else_than_its_layers_is_no_chain(served):
    plain, patched = cells(cell)
    for net in (plain, patched):
        another_class(net)
    met(plain, patched, given(5, 8))
    assert chains.chain_of(first(patched)) == ()
    assert len(chains.chain_of(patched[0]._ops[1]._ops[4])) == 2
    same(plain, patched, given(5, 8))
    assert served.forward == [7, 3, *COUNTS[2:]]


def test_layers_are_those_of_modules_and_no_other_holds_tensors():
    shared = nn.ReLU()
    op = darts.Op(nn.Sequential(shared, nn.Conv2d(2, 2, 3), nn.Sequential(shared, nn.Flatten())))
    assert chains._modules(op) == list(op.modules())
    op = darts.Op(*darts.block(4, 3, 1, 1))
    chains.try_out(op)
    assert len(chains.chain_of(op)) == 1
    op.register_parameter("scale", nn.Parameter(torch.ones(1)))
    assert chains.chain_of(op) == ()


class Skipping(darts.Cell):
    """Leaves out the edge from its second state to its last one, if it is told to."""

    left = False

    def forward(self, s0, s1, weights):
        states, edge = [self.preprocess0(s0), self.preprocess1(s1)], 0
        for _ in range(self.steps):
            into = []
            for x in states:
                if not (self.left and edge == 3):
                    into.append(self._ops[edge](x, weights[edge]))
                edge += 1
            states.append(sum(into))
        return torch.cat(states[2:], 1)


def test_the_results_of_an_edge_that_is_not_called_have_no_effect(served):
    plain, patched = cells(lambda: Skipping(2, 4, 4, 4, False, False))
    met(plain, patched, given(5, 8))
    args = given(5, 8)
    plain[0].left = patched[0].left = True
    x = [t.clone().requires_grad_() for t in args]
    with late(patched[0]):
        patched[0](*x).square().sum().backward()
    y = [t.clone().requires_grad_() for t in args]
    plain[0](*y).square().sum().backward()
    assert served.forward == COUNTS
    assert sorted(served.backward) == sorted([8, 4, 4, 2, 4, 2])
    for a, b in zip([*x, *patched.parameters()], [*y, *plain.parameters()], strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    torch.testing.assert_close(patched.state_dict(), plain.state_dict())


class Writing(Skipping):
    """Writes into a state between two of its edges."""

    def forward(self, s0, s1, weights):
        states, edge = [self.preprocess0(s0), self.preprocess1(s1) * 1], 0
        for i in range(self.steps):
            if i == 1 and self.left:
                states[1].add_(0)
            states.append(sum(self._ops[edge + j](x, weights[edge + j]) for j, x in enumerate(states)))
            edge += len(states) - 1
        return torch.cat(states[2:], 1)


def test_a_state_that_was_written_to_is_read_anew(served):
    plain, patched = cells(lambda: Writing(2, 4, 4, 4, False, False))
    args = given(5, 8)
    met(plain, patched, args)
    plain[0].left = patched[0].left = True
    with late(patched[0]):
        got = patched[0](*args)
    torch.testing.assert_close(got, plain[0](*args))
    assert served.forward == [8, 4, 8, 4, 4, 2, 4, 2], "the second edge of the state by a call of its own"
    torch.testing.assert_close(patched.state_dict(), plain.state_dict())


@pytest.mark.parametrize("name", [FORWARD, BACKWARD])
def test_where_torch_serves_each_convolution_runs_by_itself(served, name):
    served.refuses.add(name)
    plain, patched = cells(cell)
    met(plain, patched, given(5, 8))
    with late(patched[0]) as waiting:
        same(plain, patched, given(5, 8))
    assert served.forward == ([] if name == FORWARD else COUNTS)
    assert served.backward == []
    assert waiting.alone == ("no kernel was chosen for them" if name == FORWARD else "")


def test_second_halves_that_torch_serves_run_by_themselves(served, level_has):
    operator = level._operator

    def of_one_tensor(name):
        found = operator(name)
        refuses = name == FORWARD
        return SimpleNamespace(
            by_kernel=lambda xs, *rest: (
                None if refuses and len({*map(id, xs)}) > 1 else found.by_kernel(xs, *rest)
            )
        )

    level_has(_operator=of_one_tensor)
    plain, patched = cells(cell)
    met(plain, patched, given(5, 8))
    with late(patched[0]) as waiting:
        same(plain, patched, given(5, 8))
    assert served.forward == [8, 8, 4]
    assert waiting.groups == (
        "; 20 separable convolutions take 3 calls; separable convolutions by themselves: "
        "no kernel was chosen for them"
    )


def test_what_the_operator_refuses_runs_by_itself_and_says_why(served, level_has):
    def refuse(*_):
        raise nxcore.errors.InvalidInputError("xs must be of another kind", argument="xs")

    plain, patched = cells(cell)
    met(plain, patched, given(5, 8))
    level_has(_operator=lambda name: SimpleNamespace(by_kernel=refuse))
    with late(patched[0]) as waiting:
        same(plain, patched, given(5, 8))
    assert waiting.groups.endswith("by themselves: xs must be of another kind")


def test_a_first_call_that_is_captured_has_no_group(served):
    plain, patched = cells(cell)
    with late(patched[0]) as waiting:
        same(plain, patched, given(5, 8))
    assert served.forward == []
    assert waiting.groups.endswith("the readers of a state are not known from an earlier call")


def test_with_hooks_on_saved_tensors_each_runs_by_itself(served):
    plain, patched = cells(cell)
    args = given(5, 8)
    met(plain, patched, args)
    with late(patched[0]) as waiting, torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        patched[0](*args)
    assert waiting.alone == "there are hooks on saved tensors"
    patched.eval()
    with late(patched[0]) as waiting:
        patched[0](*args)
    assert served.forward == []
