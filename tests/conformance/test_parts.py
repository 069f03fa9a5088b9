"""nxcore.nn.Part on a CUDA device: a search network that replays its cells learns what a plain one learns."""

import copy
import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import nxcore
from nxcore import nas
from nxcore.graphs import together
from nxcore.graphs.part import MET
from nxcore.nas import mixed, whole
from nxcore.nn import Part
from tests.nas import darts
from tests.nas.switches import switch
from tests.nn.parts import outcome
from tests.stand_ins import stand_in

part_has = stand_in(Part)

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def _served_by_torch() -> Any:
    """Nothing is compiled or measured, which takes longer than all else; a capture doesn't ask who serves."""
    with nxcore.use("torch"), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def _networks() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    plain = darts.Network().to(CUDA)
    patched = copy.deepcopy(plain)
    nas.patch(patched)
    return plain, patched


def _step(net: nn.Module, x: Tensor, y: Tensor, logits: Tensor) -> tuple[Tensor, ...]:
    loss = cross_entropy(net(x, *logits.unbind(0)), y)
    return loss.detach(), *torch.autograd.grad(loss, [logits, *net.parameters()])


def _batch() -> tuple[Tensor, Tensor, Tensor]:
    x, y = torch.randn(8, 3, 16, 16, device=CUDA), torch.randint(3, (8,), device=CUDA)
    return x, y, torch.randn(2, 5, 8, device=CUDA, requires_grad=True)


@pytest.fixture(autouse=True)
def _cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells are replayed one by one, except in tests of a whole network."""
    switch(monkeypatch, whole, on=False)


def test_replayed_cells_learn_what_plain_ones_learn() -> None:
    plain, patched = _networks()
    _learn(plain, patched, MET + 6)
    states = nas.replays(patched)
    assert all(states[f"cells.{i}"].startswith("replays") for i in range(3)), states


def test_the_weights_of_a_replayed_cell_have_one_sum_of_their_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    batches, found = [_batch() for _ in range(MET + 3)], []
    with nxcore.use("cuda"):
        for on in (False, True):
            monkeypatch.setattr(together, "MOST", 2**28 if on else -1)
            _, net = _networks()
            found += [_step(net, *batch) for batch in batches][-1:]
            states = nas.replays(net)
            for name in ("cells.0", "cells.2"):
                cell = net.get_submodule(name)
                weights = sum(isinstance(m, nn.Conv2d) for m in cell.modules())
                assert states[name].startswith("replays"), states
                assert (f"; {weights} weights' gradients are one sum" in states[name]) is on, states
    for one, other in zip(*found, strict=True):
        assert float((one - other).norm()) <= 1e-4 * float(other.norm()) + 1e-6


def _learn(plain: nn.Module, patched: nn.Module, turns: int) -> None:
    """Train both networks on the same batches; hold their results and gradients against each other."""
    for turn in range(turns):
        batch = _batch()
        (one, *mine), (other, *theirs) = (_step(net, *batch) for net in (patched, plain))
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        size = torch.stack([g.square().sum() for g in theirs]).sum()
        off = torch.stack([(g - h).square().sum() for g, h in zip(mine, theirs, strict=True)]).sum()
        assert float(off) <= 1e-4 * float(size), f"in turn {turn}"
        with torch.no_grad():
            for net in (plain, patched):
                for p, gradient in zip(net.parameters(), theirs[1:], strict=True):
                    p.sub_(gradient, alpha=0.01)
    for (name, mine), (_, theirs) in zip(patched.named_buffers(), plain.named_buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4, msg=name)


def test_a_network_that_is_replayed_whole_learns_what_a_plain_one_learns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    switch(monkeypatch, whole, on=True)
    torch.manual_seed(0)
    plain = darts.Network().to(CUDA)
    patched = copy.deepcopy(plain)
    nas.patch(patched, watch=False)
    _learn(plain, patched, MET + 3)
    states = nas.replays(patched)
    assert states[""].startswith("replays"), states
    assert not any("replays" in state for name, state in states.items() if name), states
    for net in (plain, patched):  # a replay begins, and is undone
        net.cells[1].preprocess1.op[2].register_forward_hook(lambda module, args, out: 1.5 * out)
    _learn(plain, patched, 2)
    assert "replays" not in nas.replays(patched)[""]


def test_gradients_add_up_in_leaves_and_hooks_of_a_reducer_see_them() -> None:
    _, patched = _networks()
    batch = _batch()
    for _ in range(MET + 1):
        _step(patched, *batch)
    seen: list[str] = []
    weight = dict(patched.named_parameters())["cells.0.preprocess1.op.1.weight"]
    weight.register_post_accumulate_grad_hook(lambda p: seen.append(type(p).__name__))
    for _ in range(2):
        cross_entropy(patched(batch[0], *batch[2].unbind(0)), batch[1]).backward()
    assert seen == ["Parameter", "Parameter"]
    once = torch.autograd.grad(cross_entropy(patched(batch[0], *batch[2].unbind(0)), batch[1]), weight)[0]
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, 2 * once, rtol=1e-3, atol=1e-5)


def _layers() -> nn.Module:
    """Return layers that are many and small enough for a replay to be faster, on whatever host."""
    return nn.Sequential(*[nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(12)]).to(
        CUDA
    )


def _allocated() -> int:
    """Return what is allocated, cuBLAS's workspaces aside: it keeps one for each stream that it has met."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()  # it has no public name
    return torch.cuda.memory_allocated()


def test_replays_on_two_streams_wait_for_each_other() -> None:
    layers = [_layers(), _layers()]
    parts = [Part(lambda module, x: module(x)) for _ in layers]
    inputs = [torch.full((64, 8, 64, 64), 1.0 + i, device=CUDA, requires_grad=True) for i in range(6)]
    for _ in range(MET + 1):
        for layer, part in zip(layers, parts, strict=True):
            part(layer, inputs[0]).sum().backward()
    assert all(part.captured == 1 for part in parts), [part.state for part in parts]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    found = []
    for i, x in enumerate(inputs):
        with torch.cuda.stream(streams[i % 2]):
            y = x
            for layer, part in zip(layers, parts, strict=True):
                y = part(layer, y)
            found.append((y.detach(), *torch.autograd.grad(y.square().sum(), x)))
            del y  # or parameters' nodes would be of this stream still when the next one uses them
    torch.cuda.synchronize()
    for x, (y, gradient) in zip(inputs, found, strict=True):
        want = layers[1](layers[0](x))
        torch.testing.assert_close(y, want)
        torch.testing.assert_close(gradient, *torch.autograd.grad(want.square().sum(), x))


def test_there_is_room_for_another_after_all_were_dropped() -> None:
    x = torch.randn(8, 8, 64, 64, device=CUDA, requires_grad=True)
    for turn in range(3):
        layer, part = _layers(), Part(lambda module, x: module(x))
        for _ in range(MET + 2):
            y = part(layer, x)
            y.sum().backward()
        assert part.captured == 1, (turn, part.state)
        torch.testing.assert_close(y, layer(x))
        del part, layer
        gc.collect()
    assert float(torch.rand(1, device=CUDA)) < 1, "a capture that doesn't begin leaves no numbers to draw"


def test_a_mixed_operation_by_itself_is_replayed() -> None:
    torch.manual_seed(0)
    own = mixed.Blend(8, 1).to(CUDA)
    plain = copy.deepcopy(own)
    nas.patch(own)
    plain.eval()  # in which nothing is replayed
    for m in plain.modules():
        m.training = isinstance(m, nn.BatchNorm2d)  # and all is as in training
    for turn in range(MET + 4):
        x = torch.randn(8, 8, 16, 16, device=CUDA)
        weights = torch.rand(8, device=CUDA)
        for got, want in zip(outcome(own, x, weights), outcome(plain, x, weights), strict=True):
            assert float((got - want).norm()) <= 1e-3 * float(want.norm()), f"in turn {turn}"
    assert nas.replays(own)[""].startswith("replays")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_networks_in_any_order_keep_what_is_theirs(order: tuple[int, int]) -> None:
    pairs = [_networks() for _ in range(2)]
    for _, patched in pairs:
        for _ in range(MET + 1):
            _step(patched, *_batch())
    x, y, logits = _batch()
    for _ in range(3):
        found = []
        for kind in (0, 1):
            losses = [cross_entropy(pairs[i][kind](x, *logits.unbind(0)), y) for i in order]
            weights = [w for i in order for w in pairs[i][kind].parameters()]
            gradients = torch.autograd.grad(losses[0] + losses[1], [logits, *weights])
            found.append(torch.cat([g.flatten() for g in gradients]))
        assert float((found[0] - found[1]).norm()) <= 1e-2 * float(found[0].norm())


def test_a_whole_step_that_is_captured_takes_the_parts_place_and_memory_comes_back() -> None:
    _, patched = _networks()
    batch = _batch()
    before = _allocated()
    for _ in range(MET + 1):
        want = _step(patched, *batch)
    assert "replays" in nas.replays(patched)["cells.0"]
    held = _allocated()
    whole = nxcore.graphed(lambda: _step(patched, *batch))
    got = whole()
    assert "replays" not in nas.replays(patched)["cells.0"]
    torch.testing.assert_close(got[0], want[0], rtol=1e-3, atol=1e-4)
    del whole, got, want
    assert _allocated() - before < 0.5 * (held - before)
