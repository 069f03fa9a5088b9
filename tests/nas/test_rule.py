"""What the modes compute, how far each is from the exact blend, and how often they wait for the device."""

import pytest
import torch

from nxcore.errors import InvalidInputError
from nxcore.nas import ArchitectureParameters, MixedOp, Rule, SearchNetwork
from tests.waits import waits

TINY = {"C": 2, "num_classes": 2, "layers": 2, "steps": 1, "multiplier": 1}
DRAWS = 40_000
LOGITS = torch.tensor([0.0, 1.0, -1.0, 0.5], dtype=torch.float64)
ANSWERS = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)  # <g, o_i>, for a loss that is linear
P = torch.softmax(LOGITS, 0)
EXACT = P * (ANSWERS - P @ ANSWERS)


def drawn(logits=LOGITS, **options):
    """Return the output of each draw, and the gradient that each gives the logits."""
    torch.manual_seed(0)
    rows = logits.expand(DRAWS, -1).clone().requires_grad_()
    weights, kept = Rule("sampled", **options).draw(rows)
    # What doesn't run has no part, as in MixedOp.
    outputs = (weights * kept * ANSWERS[: len(logits)]).sum(1)
    (grads,) = torch.autograd.grad(outputs.sum(), rows)
    return outputs.detach(), grads, weights.detach(), kept


def far(draws, truth):
    """Return how many standard errors the mean of ``draws`` is from ``truth``."""
    error = draws.std(0) / len(draws) ** 0.5
    return ((draws.mean(0) - truth).abs() / (error + 1e-12)).max()


def test_gdas_is_unbiased_forward_and_biased_backward():
    outputs, grads, weights, kept = drawn(tau=1.0)
    assert torch.equal(weights * kept, kept.double()), "the factor is 1"
    assert far(outputs, P @ ANSWERS) < 4
    assert far(weights, P) < 4
    assert (grads != 0).all(), "straight through: every logit learns from every draw"
    assert far(grads, EXACT) > 20, "its bias"


def test_the_gradient_of_gdas_vanishes_with_the_temperature():
    tau, n = 1e4, len(LOGITS)
    _, grads, _, _ = drawn(tau=torch.tensor(tau))
    # The noisy softmax is flat there, and of the drawn operation alone: <g, o_k> (1[i=k] - 1/n) / (n tau).
    assert far(grads * tau, (P * ANSWERS - P @ ANSWERS / n) / n) < 4
    cold = drawn(tau=0.1)[1]
    assert cold.var(0).max() > 2 * drawn(tau=1.0)[1].var(0).max(), "and its variance grows as it falls"


def proxyless_expected(p, answers):
    expected = torch.zeros_like(p)
    for i in range(len(p)):
        for j in range(len(p)):
            if i != j:
                pair = p[i] * p[j] * (1 / (1 - p[i]) + 1 / (1 - p[j]))
                expected[i] += p[i] * p[j] * (answers[i] - answers[j]) * pair / (p[i] + p[j]) ** 2
    return expected


def test_proxyless_has_the_bias_that_it_tells():
    outputs, grads, weights, kept = drawn(estimator="proxyless")
    assert (kept.sum(1) == 2).all()
    assert torch.equal(weights.sum(1), torch.ones(DRAWS).double())
    assert torch.equal((grads != 0), kept), "two logits learn from a draw"
    assert far(grads, proxyless_expected(P, ANSWERS)) < 4
    assert far(grads, EXACT) > 20
    assert far(outputs, P @ ANSWERS) > 4


def test_proxyless_is_exact_for_two_and_a_multiple_for_equals():
    _, grads, _, _ = drawn(LOGITS[:2], estimator="proxyless")
    p = torch.softmax(LOGITS[:2], 0)
    assert far(grads[:, 0], p[0] * p[1] * (ANSWERS[0] - ANSWERS[1])) < 4
    outputs, grads, _, _ = drawn(torch.zeros(4).double(), estimator="proxyless")
    assert far(grads, 4 / 6 * (ANSWERS - ANSWERS.mean()) / 4) < 4
    assert far(outputs, ANSWERS.mean()) < 4


def test_proxyless_runs_one_operation_where_logits_need_no_gradient():
    torch.manual_seed(0)
    weights, kept = Rule("sampled", estimator="proxyless").draw(LOGITS.expand(DRAWS, -1))
    assert torch.equal(weights, kept.double())
    assert far(weights, P) < 4


@pytest.mark.parametrize("estimator", ["gdas", "proxyless"])
def test_equal_generators_draw_alike(estimator):
    rules = [
        Rule("sampled", estimator=estimator, generator=torch.Generator().manual_seed(5)) for _ in range(2)
    ]
    rows = LOGITS.expand(100, -1).clone().requires_grad_()
    (first, _), (second, _) = (rule.draw(rows) for rule in rules)
    assert torch.equal(first, second)
    assert not torch.equal(first, rules[0].draw(rows)[0])


def blended(mode, logits):
    torch.manual_seed(0)
    mixed, x = MixedOp(4, 1, mode=mode).double(), torch.randn(2, 4, 6, 6, dtype=torch.float64)
    outputs = torch.stack([op(x) for op in mixed._ops]).detach()
    leaf = logits.double().requires_grad_()
    torch.manual_seed(1)
    got = mixed(x, leaf)
    g = torch.randn(got.shape).double()
    got.backward(g)
    return got, leaf.grad, outputs, (outputs * g).flatten(1).sum(1)


@pytest.mark.parametrize("estimator", ["gdas", "proxyless"])
def test_a_sampled_edge_answers_what_was_drawn(estimator):
    logits = torch.tensor([-30.0, 0, 0, 0, 0, 0, 0, 0])  # not none, which teaches nothing
    got, grad, outputs, _ = blended(Rule("sampled", estimator=estimator), logits)
    (k,) = [i for i, o in enumerate(outputs) if torch.allclose(o, got)]
    if estimator == "gdas":
        assert (grad != 0).all()
        assert grad.sum().abs() < 1e-9
    else:
        i, j = grad.nonzero().flatten().tolist()
        assert k in (i, j)
        torch.testing.assert_close(grad[i], -grad[j])


def test_one_of_top_k_is_not_renormalised():
    logits = torch.tensor([0.0, 3, 0, 2, 0, 0, 0, 0], dtype=torch.float64)
    got, grad, outputs, answers = blended(Rule("top_k", k=1), logits)
    p = torch.softmax(logits.detach(), 0)
    torch.testing.assert_close(got, p[1] * outputs[1])
    torch.testing.assert_close(grad, p[1] * answers[1] * (torch.eye(8).double()[1] - p))


def test_threshold_lacks_what_is_off_and_nothing_else():
    logits = torch.linspace(0, 7, 8).double()
    mixed = MixedOp(4, 1, mode=Rule("threshold", low=0.05, high=0.1)).double()
    x, p = torch.randn(2, 4, 6, 6, dtype=torch.float64), torch.softmax(logits, 0)
    outputs = torch.stack([op(x) for op in mixed._ops]).detach()
    blend = torch.einsum("i,inchw->nchw", p, outputs)
    torch.testing.assert_close(mixed(x, logits), blend), "nothing was decided yet"
    on = [5, 6, 7]
    leaf = logits.clone().requires_grad_()
    got = mixed(x, leaf, active=on)
    off = torch.einsum("i,inchw->nchw", p[:5], outputs[:5])
    torch.testing.assert_close(got + off, blend)
    got.sum().backward()
    answers = outputs.flatten(1).sum(1)
    own = torch.where(torch.arange(8) < 5, 0.0, p * answers)
    torch.testing.assert_close(leaf.grad, own - p * (p[on] @ answers[on])), "the normaliser's part is kept"
    assert leaf.grad[0] != 0


def test_threshold_has_hysteresis_and_keeps_the_strongest():
    rule = Rule("threshold", low=0.1, high=0.3)
    names = ("a", "b", "c")
    first = rule.keep(torch.tensor([[0.05, 0.2, 0.75]]).log(), names)
    assert first.tolist() == [[False, True, True]]
    second = rule.keep(torch.tensor([[0.2, 0.2, 0.6]]).log(), names, first)
    assert second.tolist() == [[False, True, True]], "what is off comes on above high alone"
    third = rule.keep(torch.tensor([[0.35, 0.05, 0.6]]).log(), names, second)
    assert third.tolist() == [[True, False, True]]
    all_low = Rule("threshold", low=0.9, high=0.9).keep(torch.tensor([[0.3, 0.4, 0.3]]).log(), names)
    assert all_low.tolist() == [[False, True, False]]


@pytest.mark.parametrize(
    ("rule", "undecided", "decided"),
    [
        (Rule(), 0, 0),
        (Rule("threshold"), 0, 0),
        (Rule("top_k"), 1, 0),
        (Rule("argmax"), 1, 0),
        (Rule("sampled"), 1, 1),
        (Rule("sampled", estimator="proxyless"), 1, 1),
    ],
    ids=lambda v: f"{v.mode}-{v.estimator}" if isinstance(v, Rule) else None,
)
def test_a_step_never_reads_an_edge(monkeypatch, rule, undecided, decided):
    net, arch = SearchNetwork(**TINY, mode=rule).double(), ArchitectureParameters(1, multiplier=1).double()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)

    def step():
        net(x, *arch()).sum().backward()

    step()  # the first one chooses kernels
    assert waits(monkeypatch, step) == undecided
    assert waits(monkeypatch, lambda: net.decide(*arch())) == (1 if rule.decides else 0)
    assert waits(monkeypatch, step) == decided
    ran = net.statistics()
    assert ran.steps == (0 if rule.mode == "exact" else 3)
    assert ran.choices.shape == (2, 2, 8)
    active = {"threshold": 8, "top_k": 2, "argmax": 1}.get(rule.mode, 1 + (rule.estimator == "proxyless"))
    assert ran.steps == 0 or ran.active == active


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")  # torch calls it a prototype
@pytest.mark.parametrize("mode", ["exact", "threshold", "top_k", "argmax"])
def test_on_a_device_a_step_doesnt_wait(mode):
    net, arch = SearchNetwork(**TINY, mode=mode).cuda(), ArchitectureParameters(1, multiplier=1).cuda()
    x = torch.randn(2, 3, 8, 8, device="cuda")
    net.decide(*arch())
    for wait in ("default", "default", "error"):  # the first ones choose kernels
        try:
            torch.cuda.set_sync_debug_mode(wait)
            net(x, *arch()).sum().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    ran = net.statistics()
    assert ran.steps == (0 if mode == "exact" else 3)


def test_a_decision_stays_until_the_next():
    net = SearchNetwork(**TINY, mode=Rule("threshold", low=0.1, high=0.2)).double().eval()
    x, flat = torch.randn(2, 3, 8, 8).double(), torch.zeros(2, 8).double()
    steep = torch.linspace(0, 9, 8).double().repeat(2, 1)
    whole = net(x, steep, steep)
    net.decide(steep, steep)
    part = net(x, steep, steep)
    assert not torch.allclose(whole, part)
    net.decide(flat, flat)
    assert torch.equal(net(x, steep, steep), part), "an eighth is below high"
    net.set_rule("exact")
    torch.testing.assert_close(net(x, steep, steep), whole)
    assert [cell.rule.mode for cell in net.cells] == ["exact"] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "best"}, "mode must be one of exact, threshold, top_k, sampled, argmax, got 'best'"),
        ({"estimator": "snas"}, "estimator must be one of gdas, proxyless, got 'snas'"),
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"low": 0.3}, "low and high must satisfy 0 <= low <= high <= 1, got 0.3 and 0.02"),
        ({"tau": 0.0}, "tau must be above 0, got 0.0"),
    ],
)
def test_what_a_rule_refuses(options, message):
    with pytest.raises(InvalidInputError, match=message):
        Rule(**options)


def test_what_a_mixed_operation_refuses_of_a_rule():
    with pytest.raises(InvalidInputError, match="k must be 1 to 8, got 9"):
        MixedOp(2, 1, mode="top_k", k=9)
    with pytest.raises(InvalidInputError, match="active needs weights in mode 'sampled'"):
        MixedOp(2, 1, mode="sampled")(torch.zeros(1, 2, 4, 4), torch.zeros(8), active=[1])
    net = SearchNetwork(**TINY, mode="sampled")
    with pytest.raises(
        InvalidInputError, match=r"reduce must be \(2, 8\), one row for each edge, got \(14, 8\)"
    ):
        net(torch.zeros(2, 3, 8, 8), torch.zeros(2, 8), torch.zeros(14, 8))
    with pytest.raises(
        InvalidInputError, match=r"logits must be \(2, 8\), one row for each edge, got \(8,\)"
    ):
        net.cells[0](torch.zeros(2, 6, 8, 8), torch.zeros(2, 6, 8, 8), torch.zeros(8))
