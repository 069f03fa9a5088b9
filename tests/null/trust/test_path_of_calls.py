"""Verdicts are those of one path of calls, times count on both."""

import dataclasses
import gc

import pytest

pytest.importorskip("numba")

import nxcore_numba

from nxcore.spec import launched
from nxcore.store.files import Store
from nxcore.trust import identity
from nxcore.trust.identity import Identities
from tests.null import fakes

BACKEND = nxcore_numba.nxcore_backend()
KERNEL = next(k for k in BACKEND.kernels if k.op == "add" and not k.variant)


@pytest.mark.parametrize("replay", [True, False])
def test_a_verdict_is_that_of_the_path_where_launches_are_repeated(replay, tmp_path, monkeypatch):
    kernel = KERNEL if replay else dataclasses.replace(KERNEL, replay="")
    found = {}
    for path, runs in {"python": [], "compiled": [lambda call, again: call]}.items():
        monkeypatch.setattr(launched, "_runs", runs)
        for _ in range(2):  # the second is read from the store
            made = Identities(Store(tmp_path)).of(BACKEND, kernel, fakes.SPECS["add"])
            assert found.setdefault(path, made) == made
    assert all(made.verified and made.kernel for made in found.values())
    assert found["python"].kernel == found["compiled"].kernel
    assert (found["python"].verified != found["compiled"].verified) is replay


def test_garbage_is_not_collected_while_sources_are_parsed(tmp_path, monkeypatch):
    """Half of the time that a cold process takes for identities went there."""
    made, enabled = Identities(Store(tmp_path)), []
    closure = made._sources.closure
    monkeypatch.setattr(
        made._sources, "closure", lambda *args, **how: enabled.append(gc.isenabled()) or closure(*args, **how)
    )
    assert made.of(BACKEND, KERNEL, fakes.SPECS["add"]).kernel
    assert enabled == [False, False]
    assert gc.isenabled()


def test_what_other_rules_left_in_a_store_is_computed_again(tmp_path, monkeypatch):
    for rules, parsed in ((identity.KEPT, True), (identity.KEPT, False), (identity.KEPT + 1, True)):
        monkeypatch.setattr(identity, "KEPT", rules)
        made, asked = Identities(Store(tmp_path)), []
        closure = made._sources.closure
        monkeypatch.setattr(
            made._sources,
            "closure",
            lambda *a, asked=asked, of=closure, **how: asked.append(a) or of(*a, **how),
        )
        assert made.of(BACKEND, KERNEL, fakes.SPECS["add"]).kernel
        assert bool(asked) is parsed, rules
