"""A result with the right numbers that isn't what torch returns reaches no caller, whoever looks first."""

import pytest
import torch

from nxcore.context import KernelWarning
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.testing import examine
from tests.hostile.grammar import HOWS, part
from tests.hostile.use import marked
from tests.null import fakes
from tests.null.fakes import SPECS

X = torch.randn(6, 50)


def of_inference(right):
    with torch.inference_mode():
        return right.clone()


def with_node(right):
    with torch.enable_grad():
        return right.detach().requires_grad_() * 1


FORMS = {
    "requires_grad": (lambda right: right.requires_grad_(), "require a gradient"),
    "grad_fn": (with_node, "require a gradient"),
    "inference": (of_inference, "inference tensor"),
    "negative bit": (lambda right: torch._neg_view(-right), "negative bit"),
    "names": (lambda right: HOWS["names"](right.clone(), None, {}), "names"),
    "offset": (lambda right: part(right, 1, 0), "memory of its own size"),
    "larger storage": (lambda right: part(right, 0, 1), "memory of its own size"),
    "part of a pool": (lambda right: part(right, 64, 4096), "memory of its own size"),
    "parameter": (lambda right: torch.nn.Parameter(right, requires_grad=False), "plain tensor"),
}

LATE = [name for name in FORMS if name != "names" or hasattr(torch.Tensor, "names")]
"""Without what this version of torch no longer has."""


def hostile(name, turned):
    change, _ = FORMS[name]

    def call(*args):
        right = SPECS["sum"].reference(*args)
        return change(right) if turned and right.numel() else right

    return fakes.backend("hostile", fakes.kernel("sum", call, dtypes=(torch.float32,)))


def plain(result):
    graded = result.requires_grad or result.grad_fn or result.is_inference()
    return type(result) is torch.Tensor and not (graded or marked(result))


@pytest.mark.parametrize("name", LATE)
def test_the_gate_refuses_it(name):
    session = fakes.session(hostile(name, [True]))
    result = session.op("sum")(X, 1)
    assert plain(result)
    torch.testing.assert_close(result, X.sum(1))
    (entry,) = session.gate.quarantine
    assert (entry.kind, FORMS[name][1] in entry.reason) == ("wrong", True), entry.reason


@pytest.mark.parametrize("name", LATE)
def test_a_watched_call_convicts_it_and_gives_the_caller_torchs(name):
    turned = []
    session = fakes.session(hostile(name, turned))
    with session.use("hostile"):
        session.op("sum")(X, 1)
        turned.append(True)
        with pytest.warns(KernelWarning, match="is in quarantine: wrong in a call on"):
            result = session.op("sum")(X, 1)
    assert plain(result)
    (entry,) = session.gate.quarantine
    assert FORMS[name][1] in entry.reason


@pytest.mark.parametrize("name", ["requires_grad", "grad_fn", "inference", "negative bit"])
def test_the_first_run_of_a_plan_refuses_it_where_nothing_is_watched(name):
    turned = []
    backend = hostile(name, turned)
    session = Session(Settings(policy="measure", audit=False), fakes.registry(backend), fakes.QUICK)
    with session.use("hostile"):
        session.op("sum")(X, 1)
        turned.append(True)
        assert plain(session.op("sum")(X[:5], 1))


@pytest.mark.parametrize("name", LATE)
def test_the_kit_names_its_rule(name):
    (row,) = examine(fakes.registry(hostile(name, [True])), ops=["sum"])
    assert "has_torchs_layout" in row.rules, row.broken


def test_in_inference_mode_results_are_inference_tensors_and_convict_nobody():
    session = fakes.session(hostile("inference", []))
    with session.use("hostile"), torch.inference_mode():
        results = [session.op("sum")(X, 1) for _ in range(3)]
    assert all(r.is_inference() for r in results)
    assert not list(session.gate.quarantine)
