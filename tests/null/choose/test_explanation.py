"""Who runs a call, since when, and what would change it."""

import json
import math
import time

import pytest
import torch

from nxcore.choose.explanation import BY_RULE, Explanation, ago
from nxcore.choose.learn.budget import Pace
from nxcore.choose.learn.exploration import MET
from nxcore.cli.tables import described
from nxcore.errors import InvalidInputError
from nxcore.measure.decision import Candidate, Decision, decide
from nxcore.spec.kernel import no, simulated
from nxcore.spec.problem import Problem
from nxcore.store.wisdom import digest, key
from tests.null import fakes
from tests.null.cli.commands import command
from tests.null.fakes import SPECS
from tests.table import for_each

X = torch.arange(12.0).view(3, 4)
PROBLEM = Problem.of(SPECS["add"], (X, X, 1, None))
BLOCKS = 12


def decided(**us):
    """Decide between kernels of so many microseconds a block, or one figure for all blocks."""
    candidates = [
        Candidate(label, label, timing=fakes.timing(t if isinstance(t, list) else [t] * BLOCKS))
        for label, t in us.items()
    ]
    return Explanation(PROBLEM, decide(candidates, candidates[0].timing))


@pytest.mark.parametrize(
    ("us", "label", "change"),
    [
        ({"torch": 100, "near": 105}, "near", "would have to be 7% faster"),
        ({"torch": 100, "far": 300}, "far", "would have to be 3.1 times as fast"),
        ({"torch": 100, "fast": 50, "second": 60}, "second", "would have to be 20% faster"),
        ({"torch": 100, "fast": 50, "tied": 50.5}, "tied", "as fast within 2%; the smaller error against"),
        ({"torch": 100, "moody": [80, 120] * 6}, "moody", "unclear (p = "),
    ],
)
def test_it_tells_what_a_kernel_would_need(us, label, change):
    assert decided(**us).changes[label].startswith(change)


def test_nothing_is_asked_of_torch_and_of_who_was_chosen():
    assert set(decided(torch=100, fast=50).changes) == set()


@pytest.mark.parametrize("rule", BY_RULE)
def test_a_choice_without_figures_says_what_would_change_it(rule):
    found = Explanation(PROBLEM, Decision("torch", rule, "so it is"))
    assert found.change
    assert "{" not in found.change
    assert f"to change it: {found.change}" in str(found)
    assert found.to_dict()["change"] == found.change


@pytest.fixture
def machine(monkeypatch):
    """A session with kernels that can't serve, each for another reason."""
    fakes.identified(monkeypatch)
    add = fakes.kernel("add")
    return fakes.session(
        fakes.backend("fake", add),
        fakes.backend(
            "away", fakes.kernel("add"), probe=lambda: no("no GPU", hint="pip install nxcore-away")
        ),
        fakes.backend("picky", fakes.kernel("add", accepts=lambda p: no("needs CUDA tensors, got cpu"))),
        fakes.backend("played", fakes.kernel("add"), probe=lambda: simulated("in an interpreter")),
        fakes.replace(fakes.backend("later", fakes.kernel("add")), on_request="compiles for seconds"),
    )


def test_a_kernel_that_can_not_serve_says_what_would_let_it(machine):
    suspect = machine.gate.suspect(
        machine.registry.backends["fake"], machine.registry.backends["fake"].kernels[0], X.device, X.dtype
    )
    machine.gate.quarantine.add(suspect, "wrong", "NaN must stand")
    found = machine.explain("add", X, X)
    assert str(found).count("nxcore quarantine clear add --kernel fake") == 1
    assert found.changes == {
        "fake": "nxcore quarantine clear add --kernel fake",
        "away": "pip install nxcore-away",
        "picky": "needs CUDA tensors, got cpu",
        "played": "it runs in a simulator here; backend='played' requests it",
        "later": "only on request: compiles for seconds; request it by backend='later'",
    }


def test_the_age_and_the_policy_of_figures_are_told(machine, monkeypatch):
    found = machine.explain("add", X, X)
    page = machine.wisdom.read(PROBLEM)
    monkeypatch.setattr(time, "time", lambda: page.date + 119)
    assert str(found.origin) == f"measured 1 minute ago by policy 'measure' with torch {torch.__version__}"
    monkeypatch.undo()
    fakes.identified(monkeypatch)
    page = machine.wisdom.read(PROBLEM)
    versions = {**page.versions, "torch": "2.13"}
    earlier = time.time() - 3 * 86_400 - 5
    machine.wisdom.write(PROBLEM, fakes.replace(page, date=earlier, policy="online", versions=versions))
    found = machine.explain("add", X, X)
    text = "measured 3 days ago by policy 'online' with torch 2.13; stale: "
    text += f"torch was 2.13, is {torch.__version__}"
    assert str(found.origin) == text
    assert text in str(found)
    assert found.to_dict()["origin"]["text"] == text


def test_what_was_kept_still_has_its_ratios(machine, monkeypatch):
    monkeypatch.setattr("nxcore.measure.decision.NOISY", math.inf)  # else a busy machine's race is held again
    first = machine.explain("add", X, X).decision["fake"]
    machine.chooser.choices.clear()
    again = machine.explain("add", X, X).decision["fake"]
    assert again.ratio == first.ratio is not None
    assert again.p_value == first.p_value is not None


@for_each(
    ("seconds", "text"),
    [
        (0.2, "less than a second ago"),
        (5, "5 seconds ago"),
        (119, "1 minute ago"),
        (125, "2 minutes ago"),
        (60, "1 minute ago"),
        (7300, "2 hours ago"),
        (86_400, "1 day ago"),
        (1e6, "11 days ago"),
    ],
)
def test_an_age_in_words(seconds, text):
    assert ago(seconds) == text


def test_it_tells_who_runs_as_things_are_without_measuring(machine):
    found = machine.explain("add", X, X, decide=False)
    assert found.decision.rule == "prior"
    assert machine.wisdom.read(PROBLEM) is None
    assert machine.explain("add", X, X).origin is not None, "and it decides where it is asked to"


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ("measure", "the policy is 'measure', which measures it at its first call, not for an explanation"),
        ("auto", "the policy is 'auto', which explores it beside its calls, once it comes back"),
        ("frozen", "it was never measured, and the policy is 'frozen'"),
    ],
)
def test_without_a_decision_the_policy_in_force_is_named(machine, policy, text):
    with machine.policy(policy):
        found = machine.explain("add", X, X, decide=False)
    assert found.decision.reason.endswith(text)


def test_a_pool_with_a_gradient_is_served_by_torch_while_its_kernels_are_raced():
    """The result of torch's pool with indices, the fastest, is no result of the operator."""
    session = fakes.session(fakes.backend("fake", fakes.kernel("max_pool2d_with_offsets")))
    x = torch.randn(1, 2, 8, 8, requires_grad=True)
    with session.policy("auto"):
        for _ in range(MET + 1):
            session.op("max_pool2d")(x, 3)
        found = session.explain("max_pool2d", x, 3, decide=False)
    assert (found.decision.chosen, found.decision.rule) == ("torch", "exploring")
    assert "its kernels are measured beside its first calls, once they are ready" in str(found)


def test_who_takes_turns_is_told_with_progress():
    session = fakes.session(fakes.backend("fake", fakes.kernel("add")))
    with session.policy("auto"):
        session.chooser.learner.keep_to(Pace(float("inf")))
        for _ in range(MET):
            session.op("add")(X, X)
        session.chooser.learner.settle(30)
        found = session.explain("add", X, X, decide=False)
    assert found.decision.rule == "exploring"
    assert found.decision.reason.endswith(": 0 of at most 12 rounds are complete")


# ---- the command line


@for_each("op", sorted(SPECS))
def test_two_problems_that_differ_never_look_the_same(op):
    spec, texts = SPECS[op], {}
    for sample in spec.samples:
        if "huge" not in sample.tags:
            problem = Problem.of(spec, sample.build(spec, torch.device("meta"), torch.float32))
            for how in ({}, {"needs_grad": True}, {"aliased": True}):
                filed = key(fakes.replace(problem, **how))
                texts.setdefault(described(filed), set()).add(digest(filed))
    assert texts
    assert {text: len(names) for text, names in texts.items() if len(names) > 1} == {}


def test_a_problem_tells_what_is_not_as_usual():
    def text(dilation, layout=torch.contiguous_format):
        x = torch.zeros(2, 4, 9, 9).contiguous(memory_format=layout)
        args = (x, torch.zeros(4, 1, 3, 3), 1, 2, dilation)
        return described(key(Problem.of(SPECS["depthwise_conv2d"], args)))

    assert text(1) == "float32[2, 4, 9, 9], float32[4, 1, 3, 3], padding=2"
    assert text(2) == "float32[2, 4, 9, 9], float32[4, 1, 3, 3], padding=2, dilation=2"
    assert text(2, torch.channels_last).startswith("float32[2, 4, 9, 9] strides [324, 1, 36, 4], ")


@pytest.fixture
def default(machine, as_default):
    as_default(machine)
    return machine


def run(*words, status=0):
    return command("explain", *words, status=status).stdout


def test_the_command_shows_age_and_what_would_change_it(default):
    text = run("add", "--sample", "prime", "--device", "cpu")
    for word in (
        "why not chosen",
        "needs CUDA tensors",
        "fixes: nxcore doctor",
        "ago by policy 'measure'",
        "to measure it again: nxcore tune add --sample prime --dtype float32 --device cpu --again",
    ):
        assert word in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("op", "shape"),
    [("add", "64,16,3,2"), ("add", "5"), ("softmax_sum", "3,4,5"), ("max_pool2d", "2,3,9,9"), ("sum", "6x7")],
)
def test_a_shape_that_is_nobodys_sample(default, op, shape):
    found = json.loads(run(op, "--shape", shape, "--device", "cpu", "--json"))
    wanted = [int(n) for n in shape.replace("x", ",").split(",")]
    values = [
        v for value in found["problem"].values() for v in (value if isinstance(value, list) else [value])
    ]
    assert next(v["shape"] for v in values if isinstance(v, dict)) == wanted


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (
            ["depthwise_conv2d", "--shape", "3"],
            "doesn't fit the other arguments of any sample of depthwise_conv2d",
        ),
        (["add", "--shape", "3,a"], "--shape must be sizes such as 64,16,32,32, got '3,a'"),
        (["add", "--device", "H300"], "device must be cpu or cuda, got 'H300'"),
    ],
)
def test_what_can_not_be_asked_is_refused(default, words, match):
    with pytest.raises(InvalidInputError, match=match):
        run(*words, status=2)
