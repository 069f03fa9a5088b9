"""Eager calls and captured ones have a winner each: chosen together, kept together, told together."""

import warnings

import pytest
import torch

from nxcore import session
from nxcore.call import wrappers
from nxcore.choose import contenders
from nxcore.choose.contenders import AGAIN
from nxcore.context import KernelWarning
from nxcore.measure.timing import REGIMES, Timing
from nxcore.session import Session
from nxcore.settings import Settings
from tests.null import fakes
from tests.null.fakes import SPECS

X = torch.arange(12.0).view(3, 4)
TIMES = {  # of the host, of the device: invented, as on a small tensor
    "torch": (8, 4),
    "light": (5, 6),
    "late": (40, 2),
    "swift": (50, 1),
}


class Machine:
    """A device that can capture, on which processes start one after another."""

    def __init__(self, folder):
        self.folder, self.capturing, self.raced = folder, False, 0
        self.calls = {label: fakes.Moody() for label in TIMES if label != "torch"}

    def race(self, calls, device, **how):
        self.raced += 1
        return {
            label: Timing(tuple([device] * 20), tuple([host] * 20))
            for label in (*calls, how["again"])
            for host, device in [TIMES["torch" if label == AGAIN else label]]
        }

    def process(self, **how):
        """Return a session that has seen nothing; ``swift`` alone may not be captured."""
        spec = fakes.replace(SPECS["add"], idioms={})
        backends = [
            fakes.backend(
                label, fakes.kernel("add", call, graph_safe=label != "swift", target=f"{label}:plan")
            )
            for label, call in self.calls.items()
        ]
        settings = Settings(**{"cache": self.folder, "policy": "measure"} | how)
        return Session(settings, fakes.registry(*backends, specs=fakes.specs_with(spec)), fakes.QUICK)

    def serving(self, op, *args):
        """Return who serves a call."""
        before = {label: call.calls for label, call in self.calls.items()}
        torch.testing.assert_close(op(*args), SPECS["add"].reference(*args, 1))
        (label,) = [n for n, call in self.calls.items() if call.calls != before[n]] or ["torch"]
        return label


@pytest.fixture
def machine(tmp_path, monkeypatch, cuda_answers, raced_by):
    found = Machine(tmp_path)
    raced_by(found.race)
    monkeypatch.setattr(contenders, "regimes", lambda problem: REGIMES)
    fakes.identified(monkeypatch)
    for module in (session, wrappers):
        monkeypatch.setattr(module, "capturing", lambda problem: found.capturing)
    cuda_answers(is_current_stream_capturing=lambda: found.capturing)
    return found


def each(machine, op, *args):
    """Return who serves an eager call and who a captured one, asked in turns."""
    op(*args)  # decides
    seen = []
    for capturing in (False, True, False, True):
        machine.capturing = capturing
        seen.append(machine.serving(op, *args))
    machine.capturing = False
    assert seen[:2] == seen[2:]
    return tuple(seen[:2])


def test_each_regime_is_served_by_its_own_winner(machine):
    assert each(machine, machine.process().op("add"), X, X) == ("light", "late")


def test_the_next_process_knows_both(machine):
    first = machine.process().explain("add", X, X).decision
    second = machine.process()
    assert each(machine, second.op("add"), X, X) == ("light", "late")
    assert machine.raced == 1
    again = second.explain("add", X, X)
    assert again.decision.captured == first.captured
    assert "captured: late (measured): 2.0 us against torch's 4.0 us" in str(again)
    assert again.to_dict()["decision"]["captured"]["chosen"] == "late"


def test_a_winner_in_both_is_called_without_a_question(machine, monkeypatch, cuda_answers):
    monkeypatch.setitem(TIMES, "light", (5, 1))
    op = machine.process().op("add")
    op(X, X)
    cuda_answers(is_current_stream_capturing=fakes.raising(AssertionError("asked")))
    assert machine.serving(op, X, X) == "light"


def test_torch_serves_where_it_alone_won(machine, monkeypatch):
    monkeypatch.setitem(TIMES, "late", (40, 5))
    assert each(machine, machine.process().op("add"), X, X) == ("light", "torch")
    assert each(machine, machine.process().op("add"), X, X) == ("light", "torch"), "recalled"
    monkeypatch.setitem(TIMES, "light", (9, 2))
    assert each(machine, machine.process(cache=None).op("add"), X, X) == ("torch", "light")


@pytest.mark.parametrize("torch_in", ["eager", "captured"])
def test_gradients_survive_whoever_serves(machine, monkeypatch, torch_in):
    monkeypatch.setitem(TIMES, "light", (9, 2) if torch_in == "eager" else (5, 6))
    monkeypatch.setitem(TIMES, "late", (40, 5))
    op = machine.process().op("add")
    for machine.capturing in (False, True):
        x = X.clone().requires_grad_()
        op(x, X).square().sum().backward()
        torch.testing.assert_close(x.grad, 2 * (x.detach() + X))


def test_a_strict_backend_is_the_same_in_both(machine):
    op = machine.process().op("add", backend="light")
    assert each(machine, op, X, X) == ("light", "light")


def test_a_failure_while_capturing_is_not_blamed_on_the_eager_winner(machine):
    op = machine.process().op("add")
    op(X, X)
    machine.calls["late"].error, machine.capturing = RuntimeError("not while capturing"), True
    with pytest.warns(KernelWarning, match="late, a kernel of 'add', raised RuntimeError: not while"):
        torch.testing.assert_close(op(X, X), 2 * X)
    machine.capturing = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert machine.serving(op, X, X) == "light"


def test_a_failure_of_the_eager_winner_leaves_the_captured_one(machine):
    op = machine.process().op("add")
    op(X, X)
    machine.calls["light"].error = RuntimeError("broken")
    with pytest.warns(KernelWarning, match="light, a kernel of 'add', raised"):
        op(X, X)
    machine.calls["light"].error = None
    assert each(machine, op, X, X) == ("torch", "late")
