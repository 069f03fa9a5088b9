"""Our supernet is the paper's: names, numbers, gradients, running statistics."""

import copy
import io

import pytest
import torch

import nxcore
from nxcore import nas
from nxcore.errors import InvalidInputError
from nxcore.nas import (
    OPS,
    PRIMITIVES,
    ArchitectureParameters,
    EvalNetwork,
    Genotype,
    MixedOp,
    SearchNetwork,
    Temperature,
)
from tests.nas import darts
from tests.table import for_each

SMALL = {"C": 4, "num_classes": 3, "layers": 3, "steps": 2, "multiplier": 2}


def pair(dtype=torch.float64):
    """Return ours and the plain one with the same weights."""
    torch.manual_seed(0)
    ours, plain = SearchNetwork(**SMALL).to(dtype), darts.Network().to(dtype)
    plain.load_state_dict(ours.state_dict())
    return ours, plain


def step(net, x, logits):
    normal, reduce = (row.clone().requires_grad_() for row in logits)
    scores = net(x, normal, reduce)
    scores.square().sum().backward()
    return scores, [normal.grad, reduce.grad], [p.grad for p in net.parameters()]


def test_its_state_has_the_names_of_the_papers_code():
    ours, plain = pair()
    assert list(ours.state_dict()) == list(plain.state_dict())
    assert "cells.0._ops.0._ops.4.op.1.weight" in ours.state_dict()


def test_scores_gradients_and_running_statistics_are_the_plain_networks():
    ours, plain = pair()
    x, logits = torch.randn(2, 3, 8, 8, dtype=torch.float64), torch.randn(2, 5, 8, dtype=torch.float64)
    for got, want in zip(step(ours, x, logits), step(plain, x, logits), strict=True):
        torch.testing.assert_close(got, want)
    torch.testing.assert_close(ours.state_dict(), plain.state_dict())
    counts = [v for k, v in ours.state_dict().items() if k.endswith("num_batches_tracked")]
    assert counts
    assert all(int(c) == 1 for c in counts)


def classes(net):
    return [type(m) for m in net.modules()]


def test_its_code_is_torchs_which_a_patch_makes_fast_and_a_copy_from_a_file_is_patched_too():
    net, held = SearchNetwork(**SMALL), io.BytesIO()
    fast = classes(net)
    torch.save(net, held)
    for other in (copy.deepcopy(net), torch.load(io.BytesIO(held.getvalue()), weights_only=False)):
        assert classes(other) == fast
        assert nas.replays(other).keys() == nas.replays(net).keys()
    swap = nas.unpatch(net)
    assert {"cells.0", "cells.0._ops.0", "cells.0._ops.0._ops.1.0"} <= swap.replaced.keys()
    plain = {cls for cls in classes(net) if not cls.__module__.startswith("nxcore.nas.")}
    assert all(cls.__module__.startswith("torch.nn.") for cls in plain)


def test_whatever_a_network_becomes_is_patched():
    whole, alone = set(nas.replays(SearchNetwork(**SMALL))), nas.SearchNetwork(**SMALL, checkpoint=True)
    assert {f"cells.{i}" for i in range(3)} < whole
    assert nas.replays(alone) == {}, "a replay runs no code"
    net = SearchNetwork(**SMALL)
    net.insert(1)
    assert set(nas.replays(net)) == whole | {name.replace("cells.2", "cells.3") for name in whole}
    net.set_rule("top_k")
    assert nas.replays(net) == {}
    assert classes(net.cells[0]._ops[0]) == classes(alone.cells[0]._ops[0])


def test_in_float32_it_is_as_near_to_the_truth_as_the_plain_network():
    (ours, plain), (_, exact) = pair(torch.float32), pair()
    x, logits = torch.randn(2, 3, 8, 8, dtype=torch.float64), torch.randn(2, 5, 8, dtype=torch.float64)
    exact.load_state_dict(
        {k: v.double() if v.is_floating_point() else v for k, v in plain.state_dict().items()}
    )
    truth = step(exact, x, logits)
    errors = []
    for net in (ours, plain):
        scores, alphas, weights = step(net, x.float(), logits.float())
        errors.append([_error(scores, truth[0]), _error(alphas, truth[1]), _error(weights, truth[2])])
    for mine, theirs in zip(*errors, strict=True):
        assert mine <= 2 * theirs + 1e-6


def _error(got, want):
    got, want = (v if isinstance(v, list) else [v] for v in (got, want))
    flat = [torch.cat([t.detach().double().flatten() for t in v]) for v in (got, want)]
    return float((flat[0] - flat[1]).norm() / flat[1].norm())


@for_each("name", OPS)
@for_each("stride", [1, 2])
def test_every_operation_keeps_its_channels_and_divides_by_its_stride(name, stride):
    x = torch.randn(2, 4, 8, 8)
    assert OPS[name](4, stride, True)(x).shape == (2, 4, 8 // stride, 8 // stride)


def test_nothing_times_nan_is_nan():
    x = torch.full((1, 2, 2, 2), torch.nan)
    assert OPS["none"](2, 1, False)(x).isnan().all()


def test_weights_are_the_factors_and_logits_come_before_softmax():
    mixed, x, logits = (
        MixedOp(4, 1).double(),
        torch.randn(2, 4, 6, 6, dtype=torch.float64),
        torch.randn(8).double(),
    )
    torch.testing.assert_close(mixed(x, logits), mixed(x, weights=torch.softmax(logits, 0)))
    scaled = mixed(x, weights=2 * torch.softmax(logits, 0))
    torch.testing.assert_close(scaled, 2 * mixed(x, logits))


def test_a_weight_of_zero_has_its_gradient():
    mixed, x = MixedOp(2, 1).double(), torch.randn(1, 2, 4, 4, dtype=torch.float64)
    weights = torch.zeros(8, dtype=torch.float64, requires_grad=True)
    mixed(x, weights=weights).sum().backward()
    outputs = [op(x).sum() for op in mixed._ops]
    torch.testing.assert_close(weights.grad, torch.stack(outputs))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "exactly one of logits .* got neither"),
        ({"logits": torch.zeros(8), "weights": torch.zeros(8)}, "got both"),
        ({"logits": torch.zeros(3)}, r"logits must be \(8,\), one for each operation, got \(3,\)"),
        ({"weights": torch.zeros(2, 8)}, r"weights must be \(8,\), one for each operation, got \(2, 8\)"),
    ],
)
def test_what_a_mixed_operation_refuses(given, message):
    with pytest.raises(InvalidInputError, match=message):
        MixedOp(2, 1)(torch.zeros(1, 2, 4, 4), **given)


def test_top_k_runs_the_strongest_alone_and_renormalises():
    torch.manual_seed(0)
    mixed, x = MixedOp(4, 1, mode="top_k", k=2).double(), torch.randn(2, 4, 6, 6, dtype=torch.float64)
    logits = torch.tensor([0.0, 3, 0, 2, 0, 0, 0, 0], dtype=torch.float64, requires_grad=True)
    got = mixed(x, logits)
    p = torch.softmax(logits[[1, 3]], 0)
    torch.testing.assert_close(got, p[0] * mixed._ops[1](x) + p[1] * mixed._ops[3](x))
    got.sum().backward()
    assert logits.grad.nonzero().flatten().tolist() == [1, 3], "its bias: what was dropped learns nothing"


def test_argmax_is_the_strongest_that_is_not_none_as_it_is():
    mixed, x = MixedOp(4, 1, mode="argmax"), torch.randn(2, 4, 6, 6)
    logits = torch.tensor([9.0, 0, 0, 5, 0, 0, 0, 0])
    assert torch.equal(mixed(x, logits), x)


def test_a_genotype_takes_two_edges_a_node_and_never_none():
    arch = ArchitectureParameters(steps=2, multiplier=2)
    with torch.no_grad():
        arch.logits.zero_()
        arch.logits[..., 0] = 9.0
        arch.logits[0, 0, 4] = 1.0
        arch.logits[0, 1, 3] = 2.0
        arch.logits[0, 4, 7] = 3.0
        arch.logits[0, 2, 1] = 2.0
    found = arch.genotype()
    # Node 3's edges start at row 2: state 2 is row 4.
    assert found.normal == (
        ("skip_connect", 1),
        ("sep_conv_3x3", 0),
        ("dil_conv_5x5", 2),
        ("max_pool_3x3", 0),
    )
    assert found.normal_concat == (2, 3)
    assert all(name != "none" for name, _ in found.reduce)


def test_a_found_architecture_trains():
    genotype = Genotype(
        (("sep_conv_3x3", 0), ("skip_connect", 1), ("dil_conv_3x3", 0), ("max_pool_3x3", 2)),
        (2, 3),
        (("avg_pool_3x3", 0), ("sep_conv_5x5", 1), ("skip_connect", 0), ("max_pool_3x3", 1)),
        (2, 3),
    )
    net = EvalNetwork(genotype, C=4, num_classes=3, layers=3)
    net.drop_path_prob = 0.3
    scores = net(torch.randn(2, 3, 8, 8))
    scores.sum().backward()
    assert scores.shape == (2, 3)
    assert all(p.grad is not None for p in net.classifier.parameters())


def test_samples_are_of_the_softmax():
    torch.manual_seed(0)
    arch = ArchitectureParameters(steps=1)
    with torch.no_grad():
        arch.logits[:] = torch.linspace(0, 2, 8)
    drawn = torch.stack([torch.stack(arch.sample(hard=True)) for _ in range(2000)])
    assert set(drawn.unique().tolist()) <= {0.0, 1.0} or drawn.sub(drawn.round()).abs().max() < 1e-6
    torch.testing.assert_close(
        drawn.mean((0, 1, 2)), torch.softmax(arch.logits[0, 0], 0).detach(), atol=0.02, rtol=0
    )
    arch.sample(hard=True)[0][0, 3].backward()
    assert arch.logits.grad[0, 0].abs().min() > 0, "straight through: every logit learns"


@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
def test_a_sample_of_all_edges_is_one_call_and_torchs_for_the_same_state(hard):
    arch, tau = ArchitectureParameters(), torch.tensor(0.5)
    torch.manual_seed(1)
    with nxcore.profile() as found, nxcore.use("torch"):
        drawn = torch.stack(arch.sample(tau, hard=hard))
    torch.manual_seed(1)
    want = torch.nn.functional.gumbel_softmax(arch.logits, 0.5, hard=hard)
    torch.testing.assert_close(drawn, want, rtol=1e-5, atol=1e-6)
    assert [(row.name, row.count) for row in found.rows] == [("gumbel_softmax", 1)]


def test_entropy_is_that_of_the_softmax():
    arch = ArchitectureParameters()
    with torch.no_grad():
        arch.logits.zero_()
    assert arch.entropy().item() == pytest.approx(torch.tensor(float(len(PRIMITIVES))).log().item())
    with torch.no_grad():
        arch.logits[..., 2] = torch.inf
        arch.logits[..., 2] = 1e4
    assert arch.entropy().item() == pytest.approx(0.0, abs=1e-6)


def test_entropies_are_each_edges():
    arch = ArchitectureParameters(steps=1).double()
    p = torch.softmax(torch.linspace(0, 3, 8).double(), 0)
    with torch.no_grad():
        arch.logits.zero_()
        arch.logits[1, 0] = p.log()
    found = arch.entropies()
    assert found.shape == (2, 2)
    torch.testing.assert_close(found[1, 0], -(p * p.log()).sum())
    torch.testing.assert_close(found[0], torch.full((2,), 8.0).double().log())


def test_dominant_operations_are_each_edges_strongest():
    arch = ArchitectureParameters(steps=1)
    with torch.no_grad():
        arch.logits[0, 1, 0] = 1.0
        arch.logits[1, 0, 5] = 1.0
    normal, reduce = arch.dominant()
    assert normal[1] == "none"
    assert reduce[0] == "sep_conv_5x5"
    assert len(normal) == len(reduce) == 2


def test_a_temperature_falls_exponentially_and_goes_on_where_it_was():
    schedule = Temperature(start=8.0, end=0.5, steps=4)
    tau, found = schedule.tau, []
    for step in range(6):
        if step == 2:
            state = schedule.state_dict()
        found.append(tau.item())
        schedule.step()
    assert found == pytest.approx([8.0, 4.0, 2.0, 1.0, 0.5, 0.5])
    other = Temperature(start=8.0, end=0.5, steps=4)
    same = other.tau
    other.load_state_dict(state)
    other.step()
    assert same.item() == found[3]
    torch.manual_seed(0)
    soft = ArchitectureParameters(steps=1).sample(same)[0]
    torch.manual_seed(0)
    torch.testing.assert_close(soft, ArchitectureParameters(steps=1).sample(1.0)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 0.0}, "start must be above 0, got 0.0"),
        ({"end": -1.0}, "end must be above 0, got -1.0"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
    ],
)
def test_what_a_schedule_refuses(options, message):
    with pytest.raises(InvalidInputError, match=message):
        Temperature(**options)


@pytest.mark.parametrize("tau", [0.0, -1.0])
def test_a_temperature_is_above_zero(tau):
    with pytest.raises(InvalidInputError, match=f"tau must be above 0, got {tau}"):
        ArchitectureParameters().sample(tau)
