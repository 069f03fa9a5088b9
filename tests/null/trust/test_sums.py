"""Sums: results that depend on much are audited by blocks, and convicted by torch's own."""

import itertools
import random

import pytest
import torch

from nxcore.context import KernelWarning
from nxcore.trust.sums import BLOCKS, sums
from tests.null.choose.learn.test_watch import NOW, arm, watching
from tests.null.fakes import SPECS
from tests.table import for_each

X = torch.randn(2_000_000)
CALLS = {
    "sum": (X + 1, lambda y: y / 2),
    "mean": (X + 1, torch.zeros_like),
    "amax": (X, lambda y: y - 5),
    "amin": (X, lambda y: y + 5),
    "any": (torch.arange(5_000_000) % 2 > 0, torch.logical_not),
    "all": (torch.arange(5_000_000) % 2 > 0, torch.logical_not),
}
DICE = random.Random(0).randrange


@for_each("op", CALLS)
def test_blocks_suspect_what_is_far_off_and_nothing_that_is_right(op):
    """They are a thousandth of a call on the CPU."""
    spec, (x, wrong) = SPECS[op], CALLS[op]
    args = spec.bind(x)
    right = spec.reference(*args)
    for found in [sums(spec, args, DICE) for _ in range(20)]:
        blocks = found.of(args)
        assert blocks[0].nbytes <= max(x.nbytes / 1000, BLOCKS * 1000)
        for native in (None, right):
            assert not found.strays(spec, blocks, right, native)
            assert found.strays(spec, blocks, wrong(right), native)
        assert spec.exact or found.strays(spec, blocks, right * 1.01, right)


def test_columns_have_blocks_and_few_elements_or_integers_have_none():
    columns = SPECS["sum"].bind(X.view(-1, 4), 0)
    assert sums(SPECS["sum"], columns, DICE).of(columns)[0].shape == (62 * BLOCKS, 4)
    for x in (torch.ones(BLOCKS), torch.ones(2_000_000, dtype=torch.int32)):
        assert sums(SPECS["sum"], SPECS["sum"].bind(x), DICE) is None


@for_each(("op", "first"), [*itertools.product(CALLS, (0, 1))])
def test_what_is_wrong_from_some_call_on_is_convicted_without_memory_for_copies(op, first):
    """The first call is compared as a whole, later ones by blocks."""
    x, wrong = CALLS[op]
    calls = itertools.count()

    def call(given, *rest):
        right = SPECS[op].reference(given, *rest)
        return wrong(right) if given.shape == x.shape and next(calls) > first else right  # 0 is the gate's

    session, _ = watching(op, call=call, dtypes=(x.dtype,))
    session.chooser.watches.room = lambda *_: False
    right = SPECS[op].reference(*SPECS[op].bind(x))
    with session.use("watched"), pytest.warns(KernelWarning, match="wrong in a call .* own is"):
        found = [session.op(op)(x) for _ in range(first + 1)]
    assert all(torch.equal(y, right) for y in found)


def test_numbers_of_which_blocks_say_too_little_convict_nobody():
    """Nearly all of this sum is in one element, which a block may have or not."""
    x = torch.zeros(2_000_000)
    x[-1] = x[77] = 1e6
    session, _ = watching("sum")
    session.chooser.watches.room = lambda *_: False
    with session.use("watched"):
        for _ in range(20):
            assert session.op("sum")(x) == 2e6
            NOW[0] += 1
            arm(session)
    assert not list(session.gate.quarantine)
