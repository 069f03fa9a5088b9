"""What lies below the session finds it, and an observer hears of gradients where it says that it wants to."""

import pickle

import pytest
import torch

import nxcore
from nxcore import context
from nxcore.context import PREFERENCE
from tests import fresh
from tests.null import fakes


class Listener:
    """An observer of a class of its own."""

    def __init__(self, both: bool) -> None:
        self.sees_both_ways, self.pairs = both, []

    def observing(self, problem, label, call):
        return call

    def paired(self, forward, backward, **how):
        self.pairs.append((forward.op, backward.op))


@pytest.mark.parametrize("both", [True, False])
def test_an_observer_hears_of_gradients_where_it_sees_both_ways(both):
    found, listener = fakes.session(fakes.backend()), Listener(both)
    x, w = torch.randn(1, 2, 6, 6), torch.randn(2, 1, 3, 3, requires_grad=True)
    token = PREFERENCE.set(PREFERENCE.get()._replace(observers=(listener,), policy="auto"))
    try:
        for _ in range(40):
            found.op("depthwise_conv2d")(x, w).square().sum().backward()
    finally:
        PREFERENCE.reset(token)
    assert set(listener.pairs) == ({("depthwise_conv2d", "depthwise_conv2d_backward")} if both else set())


def test_the_default_session_is_found_from_below(as_default):
    found = fakes.session()
    as_default(found)
    assert context.default() is found


@pytest.mark.parametrize(
    "code",
    ["from nxcore.ops import add as found", "import pickle\nfound = pickle.loads(given)"],
    ids=["an attribute", "a pickle"],
)
def test_an_operator_is_found_where_nothing_has_made_a_session(code):
    given = pickle.dumps(nxcore.op("add"))
    text = f"given = {given!r}\n{code}\nimport nxcore\nassert found is nxcore.op('add')"
    done = fresh.run("-c", text)
    assert done.returncode == 0, done.stderr
