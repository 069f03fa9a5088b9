"""Kernels that win on record for a network's sizes are verified while torch serves its first calls."""

import functools
import sys

import pytest
import torch

from nxcore.choose import beforehand
from nxcore.context import Purpose, in_force
from nxcore.measure import race as racing
from nxcore.spec.compiling import UncompiledError
from nxcore.store.lock import Lock
from tests.null import fakes
from tests.null.choose.learn.test_exploration import X, learning


@pytest.fixture
def recorded(monkeypatch, raced_by, tmp_path):
    """Return a function that returns a session with a record, and the kernels that its gate verifies."""
    clock = fakes.Clock()
    monkeypatch.setattr(beforehand, "DEVICES", ("cpu",))
    fakes.identified(monkeypatch)
    monkeypatch.setattr(fakes, "Clock", lambda: clock)
    raced_by(functools.partial(racing.race, clock=clock))

    def made(**us):
        with in_force(purpose=Purpose.DECIDE):
            learning(folder=tmp_path, **us)[0].op("add")(X, X)
        session, verified = learning(folder=tmp_path, **us)[0], []
        session.tuner.gate.verify = lambda backend, kernel, problem: verified.append((backend.name, problem))
        return session, verified

    return made


def expected(session, like, policy="auto"):
    """Let a network be called with a tensor, and its kernels be verified."""
    with in_force(policy=policy):
        session.chooser.expect(like)
    if session.chooser.beforehand.thread:
        session.chooser.beforehand.thread.join(30)


def test_the_winner_is_verified_once(recorded):
    session, verified = recorded(torch=100, fast=50, slow=70)
    before, switching, verify = sys.getswitchinterval(), [], session.tuner.gate.verify
    session.tuner.gate.verify = lambda *args: switching.append(sys.getswitchinterval()) or verify(*args)
    for _ in range(2):
        expected(session, torch.ones(X.shape))
    assert [name for name, _ in verified] == ["fast"]
    assert switching == [pytest.approx(beforehand.SWITCH_S)], "the program has the interpreter soon"
    assert sys.getswitchinterval() == before
    assert verified[0][1].tensors[0].shape == X.shape


@pytest.mark.parametrize(
    ("like", "policy"),
    [
        (torch.ones(X.shape[0] + 1, *X.shape[1:]), "auto"),
        (torch.ones(X.shape, dtype=torch.float64), "auto"),
        (torch.ones(()), "auto"),
    ],
    ids=["another batch", "another dtype", "no batch"],
)
def test_other_networks_have_none(recorded, like, policy):
    session, verified = recorded(torch=100, fast=50)
    expected(session, like, policy)
    assert verified == []


@pytest.mark.parametrize("locked", [False, True])
def test_a_frozen_record_has_one_unless_a_lock_is_alone(recorded, locked):
    session, verified = recorded(torch=100, fast=50)
    if locked:
        session.chooser.hold(Lock({}), session.settings)
    expected(session, torch.ones(X.shape), "frozen")
    assert [name for name, _ in verified] == ([] if locked else ["fast"])


def test_there_is_none_where_torch_wins(recorded):
    session, verified = recorded(torch=50, slow=100)
    expected(session, torch.ones(X.shape))
    assert verified == []


def test_a_capture_ends_it(recorded):
    session, verified = recorded(torch=100, fast=50)
    session.chooser.beforehand.end()
    expected(session, torch.ones(X.shape))
    assert verified == []


def test_what_must_be_compiled_or_fails_is_left_to_the_call(recorded):
    session, _ = recorded(torch=100, fast=50)
    session.tuner.gate.verify = fakes.raising(UncompiledError("add"))
    expected(session, torch.ones(X.shape))
    assert not session.chooser.beforehand.thread.is_alive()
