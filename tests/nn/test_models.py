"""What serves the modules of a model, why, and what it saves."""

import json
import sys

import pytest
import torch
from torch import nn

import nxcore
from nxcore.errors import InvalidInputError
from nxcore.measure.decision import Candidate, Decision
from nxcore.measure.timing import Timing
from nxcore.nn import exchange, steps
from nxcore.nn.served import IDLES
from tests.nn.test_survey import X, network, run, session
from tests.stand_ins import stand_in

sys_has = stand_in(sys)

__all__ = ["session"]  # a fixture


def made() -> tuple[nn.Module, torch.Tensor]:
    return network(), X


def rows(found):
    return {row.name: row for row in found.rows}


@pytest.mark.usefixtures("session")
def test_each_module_has_its_kernel_its_reason_and_what_it_saves() -> None:
    model = network()
    nxcore.accelerate(model)
    with nxcore.policy("measure"):
        model(X).sum().backward()
        model(X).sum().backward()
    found = nxcore.explain(model, X)
    assert list(rows(found)) == ["0", "1", "3", "4"]
    assert found.left == {"2": "no operator for Dropout"}
    first = rows(found)["0"]
    assert (first.module, first.state, first.kernels, first.watched) == ("Conv2d", "kernel", ("fake",), True)
    assert first.saved_us == pytest.approx(900, abs=60)  # without the bridge to the gradient
    assert "fake" not in rows(found)["4"].kernels
    assert rows(found)["1"].state in ("torch", "unknown")
    assert rows(found)["1"].saved_us is None
    assert all(p.grad is not None for p in model.parameters())
    text = str(found)
    assert max(len(line) for line in text.splitlines() if " modules: " not in line) <= 80  # in full below
    assert text.splitlines()[0].split() == ["module", "class", "served", "by", "saved", "watch", "why"]
    assert "modules: 4 replaced, 1 left" in text
    assert json.loads(json.dumps(found.to_dict()))["rows"][0]["kernels"] == ["fake"]


@pytest.mark.parametrize(
    ("chosen", "state", "saved"), [("torch", "torch", None), ("fake + fake", "kernel", 20)]
)
def test_a_call_and_its_gradient_are_told_by_what_both_take(
    chosen, state, saved, session, monkeypatch
) -> None:
    """The forward kernel is a millisecond faster than torch's, and both ways together are what is run."""
    model = network()
    nxcore.accelerate(model)
    with nxcore.policy("measure"):
        model(X).sum().backward()
        model(X).sum().backward()
    timings = {label: Timing([us] * 9, [us] * 9) for label, us in (("torch", 120.0), ("fake + fake", 100.0))}
    candidates = [Candidate(label, label, graph_safe=True, timing=t) for label, t in timings.items()]
    decision = Decision(chosen, "measured", "120 us against 100", tuple(candidates))
    pairs = session.chooser.pairs
    monkeypatch.setattr(pairs, "of", lambda p: decision if p.op == "depthwise_conv2d" else None)
    found = rows(nxcore.explain(model, X))["0"]
    assert (found.state, found.saved_us) == (state, saved)
    assert found.reason == "with its gradient: 120 us against 100"


@pytest.mark.usefixtures("session")
def test_without_an_input_only_the_modules_are_known() -> None:
    model = network()
    assert nxcore.explain(model).rows == ()
    assert "nxcore.accelerate(model)" in str(nxcore.explain(model))
    nxcore.accelerate(model)
    model.eval()
    found = nxcore.explain(model)
    assert [row.state for row in found.rows] == ["operator", "rests", "operator", "operator"]
    assert rows(found)["1"].reason == IDLES.format("evaluation")
    assert "nxcore.explain(model, input)" in str(found)
    assert "next" not in str(nxcore.explain(nn.Flatten()))  # accelerate would do nothing for it


@pytest.mark.usefixtures("session")
def test_an_explanation_measures_nothing(session) -> None:
    model = network()
    nxcore.accelerate(model)
    found = nxcore.explain(model, X)
    assert {row.state for row in found.rows} == {"unknown"}
    assert all(row.saved_us is None for row in found.rows)
    assert session.chooser.made == 0


@pytest.mark.usefixtures("session")
def test_a_fused_block_is_one_row() -> None:
    layers = nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4, bias=False), nn.Conv2d(4, 4, 1, bias=False)
    model = nn.Sequential(nn.Sequential(*layers, nn.BatchNorm2d(4)), nn.Flatten())
    nxcore.accelerate(model)
    found = rows(nxcore.explain(model, X))
    assert found["0"].module == "Sequential"
    assert found["0"].state == "unknown"


@pytest.mark.usefixtures("session")
def test_the_watch_is_in_it_and_its_block_is_left() -> None:
    model = network()
    nxcore.accelerate(model)
    assert nxcore.explain(model).steps == ("waits for calls",)
    watch = exchange.watch_of(model)
    mode = steps.Mode(given=frozenset({"Conv2d"}))
    watch._modes[True, False] = watch._mode = mode
    mode.end("given back: 0.79x")
    watch._apply(model, mode.given)
    found = nxcore.explain(model)
    assert found.steps == ("training: given back: 0.79x",)
    assert rows(found)["0"].reason == "it rests: the model's steps are faster without it"
    assert not rows(found)["4"].watched
    nxcore.accelerate(model, watch=False)
    assert nxcore.explain(model).steps == ()


@pytest.mark.usefixtures("session")
def test_rows_that_torch_serves_save_nothing() -> None:
    model = network()
    nxcore.accelerate(model)
    with nxcore.policy("measure"):
        found = nxcore.status(model, X)
    assert {row.saved_us for row in found.rows if row.state != "kernel"} == {0.0}
    assert "-0.0" not in str(found)


@pytest.mark.usefixtures("session")
def test_the_command_accelerates_and_explains_a_model(sys_has) -> None:
    sys_has(path=list(sys.path))
    text = run("--model", "tests.nn.test_models:made")
    assert "not measured" in text
    found = json.loads(run("--model", "tests.nn.test_models:network", "--json"))
    assert [row["state"] for row in found["rows"]] == ["unknown"] * 4


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("tests.nn.test_models", "must be module:callable"),
        ("tests.nn.test_models:absent", "must be module:callable"),
        ("no_such_module:make", "must be module:callable"),
        ("tests.nn.test_models:dict", "must be module:callable"),
        ("builtins:dict", r"must return a torch.nn.Module, or a tuple with one first, got dict"),
    ],
)
def test_what_is_no_model_is_refused(given: str, why: str, sys_has) -> None:
    sys_has(path=list(sys.path))
    with pytest.raises(InvalidInputError, match=why):
        run("--model", given)
    with pytest.raises(InvalidInputError, match="give an operator, or --from-trace"):
        run("add", "--model", given)


@pytest.mark.usefixtures("session")
def test_reasons_that_are_cut_are_told_in_full_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    model = network()
    nxcore.accelerate(model)
    found = nxcore.explain(model, X)
    told, whole = str(found), found.table(1 << 30).splitlines()[1:]
    cut = [row.reason for row, text in zip(found.rows, whole, strict=True) if len(text) > 80]
    assert cut
    for reason in cut:
        assert f"{cut.count(reason)} modules: {reason}" in told.splitlines()
    monkeypatch.setenv("COLUMNS", "1000")
    assert " modules: " not in str(found), "the table has room for them"
