"""Cells and mixed operations in training: replayed where they can be, with the numbers of a run."""

import copy
from types import SimpleNamespace

import pytest
import torch

import nxcore
from nxcore import nas
from nxcore.graphs import branches, graphed, together
from nxcore.graphs.late import late
from nxcore.graphs.part import MET
from nxcore.nas import whole
from nxcore.nas.watch import PART
from nxcore.nn import modules, sequential
from nxcore.spec.sums import sums_of
from tests.nas import darts
from tests.nas.switches import switch
from tests.nas.test_network import SMALL, step
from tests.nn.parts import outcome
from tests.nn.tape import Tape
from tests.stand_ins import stand_in

modules_has = stand_in(modules)
branches_has = stand_in(branches)
together_has = stand_in(together)
graphed_has = stand_in(graphed)

pytestmark = pytest.mark.usefixtures("decided")


class Reminded(darts.Cell):
    """Takes more than tensors."""

    def forward(self, s0, s1, weights, drop_prob=0.0):
        return super().forward(s0, s1, weights)


class Forgetful(darts.Cell):
    """Depends on a tensor that nobody told of."""

    def forward(self, s0, s1, weights):
        return super().forward(s0, s1, weights) * SCALE


SCALE = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)


def taped(net):
    """Have all parts of ``net`` captured by one tape."""
    tape = Tape()
    for module in net.modules():
        if part := vars(module).get(PART):
            part._record = lambda device: tape
    return tape


def networks(make=darts.Cell, graphs=True):
    torch.manual_seed(0)
    plain = darts.Network().double()
    for i, cell in enumerate(plain.cells):
        cell.__class__ = make if i == 1 else type(cell)
    patched = copy.deepcopy(plain)
    nas.patch(patched, graphs=graphs)
    return plain, patched


def agree(plain, other, times):
    for _ in range(times):
        x, logits = torch.randn(2, 3, 8, 8).double(), torch.randn(2, 5, 8).double()
        for got, want in zip(step(other, x, logits), step(plain, x, logits), strict=True):
            torch.testing.assert_close(got, want)
    torch.testing.assert_close(other.state_dict(), plain.state_dict())


@pytest.mark.slow
def test_cells_of_a_patched_network_are_replayed_and_not_what_is_inside():
    plain, patched = networks()
    tape = taped(patched)
    agree(plain, patched, MET + 2)
    states = nas.replays(patched)
    assert {n for n, s in states.items() if s.startswith("replays")} == {f"cells.{i}" for i in range(3)}
    assert states["cells.0._ops.0"] == "runs: an enclosing part is captured"
    assert tape.captured == 3 * 2
    nas.unpatch(patched)
    assert nas.replays(patched) == {}
    agree(plain, patched, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "why"),
    [(Reminded, "runs: it takes more than tensors"), (Forgetful, "runs: it reads SCALE, a Tensor")],
)
def test_where_a_cell_can_not_be_its_mixed_operations_are(make, why):
    plain, patched = networks(make)
    if make is Reminded:
        for net in (plain, patched):
            net.cells[1].register_forward_pre_hook(lambda module, args: (*args, 0.5))
    taped(patched)
    agree(plain, patched, 2 * MET + 1)
    states = nas.replays(patched)
    assert states["cells.1"].startswith(why)
    assert states["cells.1._ops.0"].startswith("replays")
    assert states["cells.0._ops.0"].startswith("runs")


def test_without_graphs_nothing_is_replayed():
    _, patched = networks(graphs=False)
    assert nas.replays(patched) == {}


@pytest.mark.slow
def test_our_own_network_is_replayed_until_another_rule_is_set(monkeypatch):
    switch(monkeypatch, whole, on=True)
    torch.manual_seed(0)
    plain, own = darts.Network().double(), nas.SearchNetwork(**SMALL).double()
    own.load_state_dict(plain.state_dict())
    tape = taped(own)
    agree(plain, own, MET + 2)
    states = nas.replays(own)
    assert states.pop("").startswith("replays")
    assert all(state.startswith("runs: an enclosing part is captured") for state in states.values())
    before = tape.replayed
    own.set_rule("argmax")
    assert nas.replays(own) == {}
    x, logits = torch.randn(2, 3, 8, 8).double(), torch.randn(2, 5, 8).double()
    own(x, *logits)
    assert tape.replayed == before
    own.set_rule("exact")
    own.load_state_dict(plain.state_dict())  # which that call has changed
    tape = taped(own)
    agree(plain, own, MET + 2)
    assert nas.replays(own)[""].startswith("replays")
    assert tape.replayed
    other = copy.deepcopy(own)
    assert all(state == "runs: no call in training yet" for state in nas.replays(other).values())


def launches(tape, name):
    return sum(name in str(func) for lines in tape.lines for func, *_ in lines)


@pytest.fixture
def ours(branches_has, modules_has):
    """The operators serve all norms, and sum gradients, as kernels do."""
    modules_has(by_kernel=lambda module, operator, *args: operator(*args))
    branches_has(_sum=lambda: SimpleNamespace(by_kernel=nxcore.op("weighted_sum")))


@pytest.mark.slow
def test_a_replayed_cell_has_one_update_of_all_statistics_and_one_sum_a_tensor(ours):
    plain, net = networks()
    tape = taped(net)
    agree(plain, net, MET + 2)
    assert all(nas.replays(net)[f"cells.{i}"].startswith("replays") for i in range(3))
    assert launches(tape, "_foreach_lerp_") == 3, "one a cell"
    assert launches(tape, "_foreach_add_.Scalar") == 3
    norms = sum(isinstance(m, torch.nn.BatchNorm2d) for cell in net.cells for m in cell.modules())
    assert norms > 3 * 30
    assert launches(tape, "aten.add_.Tensor") == 0
    assert launches(tape, "select_backward") == 0
    assert launches(tape, "aten.add.Tensor") <= 3 * 15, "5 edges of a cell, 6 additions each, were more"


@pytest.mark.slow
@pytest.mark.parametrize("reduction", [False, True])
def test_a_cell_of_four_nodes_has_each_pool_once_and_one_sum_a_state(branches_has, modules_has, reduction):
    modules_has(by_kernel=lambda module, operator, *args: operator(*args))
    summed = []

    def total(grads, weights):
        summed.append(len(grads))
        return nxcore.op("weighted_sum")(grads, weights)

    branches_has(_sum=lambda: SimpleNamespace(by_kernel=total))
    torch.manual_seed(0)
    plain = torch.nn.Sequential(darts.Cell(4, 8, 8, 4, reduction, False)).double()
    patched = copy.deepcopy(plain)
    nas.patch(patched)
    norms = [m for m in plain.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    tape = taped(patched)
    before = 0
    for turn in range(MET + 1):
        given = [torch.randn(2, 8, 8, 8).double() for _ in range(2)] + [torch.rand(14, 8).double()]
        before = len(summed) if turn == MET - 2 else before
        for got, want in zip(*(outcome(net[0], *given) for net in (patched, plain)), strict=True):
            torch.testing.assert_close(got, want)
    torch.testing.assert_close(patched.state_dict(), plain.state_dict())
    assert nas.replays(patched)["0"].startswith("replays")
    assert launches(tape, "aten.max_pool2d_with_indices.default") == 5, "14 edges leave five states"
    assert launches(tape, "aten.avg_pool2d.default") == 5
    assert launches(tape, "aten.native_batch_norm.default") == len(norms) - 2 * (14 - 5)
    assert launches(tape, "aten._foreach_lerp_") == 1
    strided = 8 if reduction else 0  # both convolutions of a factorized reduction read one tensor
    forward = 14  # the cell's own
    assert launches(tape, "aten.add.Tensor") == forward + strided + 5, (
        "12 before readers' gradients were one sum"
    )
    assert summed.count(6) == 2 * 2, (
        "of both inputs: four edges and two pools; of the last run and the capture"
    )


class Block(torch.autograd.Function):
    """sep_conv2d_batch_norm, whose kernel leaves two rows of shares of both weights' gradients."""

    @staticmethod
    def forward(ctx, x, dw, pw, *rest):
        found = nxcore.op("sep_conv2d_batch_norm").spec.reference(x, dw, pw, *rest)
        ctx.save_for_backward(x, dw, pw, *found[1:])
        ctx.rest = rest
        ctx.mark_non_differentiable(*found[1:])
        return found

    @staticmethod
    def backward(ctx, grad, *_):
        x, dw, pw, *kept = ctx.saved_tensors
        *window, weight, _, eps = ctx.rest
        backward = nxcore.op("sep_conv2d_batch_norm_backward").spec.reference
        x_grad, *grads = backward(grad, x, dw, pw, *kept, weight, *window, eps)[:3]
        flat = torch.cat([g.flatten() for g in grads])
        shares = torch.stack([0.25 * flat, 0.75 * flat])

        def finish():
            of_dw, of_pw = shares.sum(0).split([dw.numel(), pw.numel()])
            return of_dw.view(dw.shape), of_pw.view(pw.shape)

        sums = sums_of(dw, pw)
        found = finish() if sums is None else sums.leave(shares, (dw, pw), finish)
        return x_grad, *found, *(None for _ in ctx.rest)


class Known(Tape):
    """Tells whether it captures."""

    captures = False

    def capture(self, work, pool=None):
        self.captures = True
        try:
            return super().capture(work, pool)
        finally:
            self.captures = False


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [False, True])
def test_a_replayed_cell_has_one_sum_of_all_weights_gradients(monkeypatch, together_has, chosen):
    torch.manual_seed(0)
    plain = torch.nn.Sequential(darts.Cell(2, 8, 8, 4, False, False)).double()
    patched, tape, summed = copy.deepcopy(plain), Known(), []
    nas.patch(patched)
    vars(patched[0])[PART]._record = lambda device: tape

    def by_kernel(xs):
        summed.append(len(xs))
        return nxcore.op("column_sums")(xs) if chosen else None

    monkeypatch.setattr(sequential, "_block", SimpleNamespace(by_kernel=Block.apply))
    together_has(_sums=lambda: SimpleNamespace(by_kernel=by_kernel), capturing=lambda shares: tape.captures)
    for _ in range(MET + 2):
        given = [torch.randn(2, 8, 8, 8).double() for _ in range(2)] + [torch.rand(5, 8).double()]
        for got, want in zip(*(outcome(net[0], *given) for net in (patched, plain)), strict=True):
            torch.testing.assert_close(got, want)
    state = nas.replays(patched)["0"]
    assert state.startswith("replays")
    assert state.endswith("; 60 weights' gradients are one sum") is chosen
    assert summed == [30, 30], "of the run before the capture, and of the capture"


def test_operations_that_write_into_their_input_are_given_the_tensor_itself():
    torch.manual_seed(0)
    plain = darts.MixedOp(4, 1).double()
    plain._ops[0] = torch.nn.ReLU(inplace=True)
    patched = torch.nn.Sequential(copy.deepcopy(plain))
    assert nas.patch(patched).replaced["0"] == "MixedOp"
    x, weights = torch.randn(2, 4, 6, 6).double().requires_grad_(), torch.rand(8).double()
    with late():
        got, want = (torch.autograd.grad(m(2 * x, weights).sum(), x)[0] for m in (patched[0], plain))
    torch.testing.assert_close(got, want)
    nas.unpatch(patched)
    assert not [name for name in vars(patched[0]) if name.startswith("_nxcore")]


@pytest.mark.slow
def test_a_compiler_sees_a_patched_cell_as_it_is():
    plain, patched = networks()
    s, logits = torch.randn(2, 12, 8, 8).double(), torch.randn(5, 8).double()
    want = plain.cells[0](s, s, logits)
    got = torch.compile(patched.cells[0], backend="eager", fullgraph=True)(s, s, logits)
    torch.testing.assert_close(got, want)


@pytest.mark.slow
@pytest.mark.parametrize("own", [None, "whole", {"checkpoint": True}])
def test_a_captured_step_has_the_bookkeeping_of_each_cell_together(
    ours, own, monkeypatch, graphed_has, cuda_answers
):
    tape = Tape()
    switch(monkeypatch, whole, on=own == "whole")
    graphed_has(_device=lambda fn, leaves, spec: torch.device("cpu"), recorder_of=lambda device: tape)
    cuda_answers(is_current_stream_capturing=lambda: False)
    plain, net = networks()
    if isinstance(own, dict):
        net = nas.SearchNetwork(**SMALL, **own).double()
        net.load_state_dict(plain.state_dict())
    logits = torch.randn(2, 5, 8).double().requires_grad_()

    def learn(net, x):
        scores = net(x, *logits.unbind(0))
        grads = torch.autograd.grad(scores.square().sum(), [logits, *net.parameters()])
        return [scores.detach(), *grads]

    run = nxcore.graphed(lambda x: learn(net, x), state=net.buffers())
    for _ in range(2):
        x = torch.randn(2, 3, 8, 8).double()
        for got, want in zip(run(x), learn(plain, x), strict=True):
            torch.testing.assert_close(got, want)
        torch.testing.assert_close(net.state_dict(), plain.state_dict())
    assert tape.captured == 1
    if own == {"checkpoint": True}:  # under hooks on saved tensors torch serves
        return
    stem = launches(tape, "aten.add_.Tensor")
    assert stem <= 1, "the one norm outside of cells"
    assert launches(tape, "_foreach_lerp_") == 3 + stem
    assert launches(tape, "select_backward") == 0
