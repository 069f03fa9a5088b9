"""nxcore.use: who is asked first, and who isn't asked at all."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.null import fakes

X = torch.arange(6.0)
ADD = fakes.SPECS["add"].reference


def test_preferences_are_tried_in_order():
    session = fakes.session(fakes.backend("a", fakes.kernel("add")), fakes.backend("b", fakes.kernel("add")))

    def chosen(*names):
        with session.use(*names):
            return session.explain("add", X, X).decision.chosen

    assert [chosen("a", "b"), chosen("b", "a"), chosen("torch", "a")] == ["a", "b", "torch"]
    with session.use("a"), session.use("b"):
        assert chosen("b") == session.explain("add", X, X).decision.chosen == "b"


def test_whoever_comes_after_the_preferred_one_is_not_made_ready():
    calls = [fakes.Counter(ADD), fakes.Counter(ADD)]
    backends = [fakes.backend(n, fakes.kernel("add", c)) for n, c in zip("ab", calls, strict=True)]
    session = fakes.session(*backends)
    with session.use("torch", "b"):
        assert session.explain("add", X, X).decision.chosen == "torch"
    assert [c.count for c in calls] == [0, 0]
    with session.use("b", "a"):
        found = session.explain("add", X, X).decision
    assert (found.chosen, found.rule) == ("b", "preferred")
    assert found.reason == "nxcore.use('b', 'a') is in force"
    why = "not considered: 'b' is preferred"
    assert {c.label: str(c.refusal or "") for c in found.candidates} == {"torch": why, "a": why, "b": ""}
    assert calls[0].count == 0


def test_where_none_of_the_preferred_can_serve_all_take_part():
    mine, other = fakes.backend("mine", fakes.kernel("sum")), fakes.backend("other", fakes.kernel("add"))
    session = fakes.session(mine, other)
    with session.use("mine"):
        found = session.explain("add", X, X).decision
    assert found.rule in ("measured", "reference")
    assert not found["other"].refusal
    assert found["other"].timing


def test_a_preference_that_can_not_serve_is_passed_over():
    session = fakes.session(fakes.backend("fake", fakes.kernel("sum")))
    with session.use("fake"):
        assert session.explain("add", X, X).decision.chosen == "torch"
        assert session.explain("sum", X).decision.rule == "preferred"


def test_a_preference_ends_with_its_block_even_after_an_error():
    session = fakes.session(fakes.backend("fake", fakes.kernel("add")))
    with pytest.raises(ValueError, match="out"), session.use("fake"):
        raise ValueError("out")
    assert session.explain("add", X, X).decision.rule != "preferred"


def test_a_preference_is_its_threads_own():
    session = fakes.session(fakes.backend("fake", fakes.kernel("add")))
    with session.use("fake"), ThreadPoolExecutor(1) as pool:
        there = pool.submit(lambda: session.explain("add", X, X).decision.rule).result()
        assert session.explain("add", X, X).decision.rule == "preferred"
    assert there != "preferred"
