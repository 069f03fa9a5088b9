"""A race may end early where every decision is clear by far."""

from nxcore.measure.decision import decide, settled
from tests.null.measure.test_decision import again, one


def test_settled_by_far_asks_for_more_than_a_win():
    twice, narrow = one("a", 50, n=7), one("a", 70, n=7)
    assert settled([one("torch", 100, n=7), twice], again(), by_far=True)
    assert settled([one("torch", 100, n=7), narrow], again())
    assert not settled([one("torch", 100, n=7), narrow], again(), by_far=True), "1.43x is no win by far"
    assert settled([one("torch", 100, n=7), one("a", 130, n=7)], again(), by_far=True), "slower is clear"


def test_settled_by_far_knows_which_of_two_winners_is_faster():
    raced = [one("torch", 100, n=9), one("a", 40, n=9), one("b", 40.4, n=9, seed=1)]
    assert not settled(raced, again(), by_far=True)
    assert settled([*raced[:2], one("b", 48, n=9)], again(), by_far=True)


def test_seven_blocks_are_enough_for_one_kernel_and_too_few_for_two():
    assert decide([one("torch", 100, n=7), one("a", 40, n=7)], again()).chosen == "a"
    two = [one("torch", 100, n=7), one("a", 40, n=7), one("b", 60, n=7)]
    assert not settled(two, again(), by_far=True)
    assert decide(two, again()).chosen == "torch"
