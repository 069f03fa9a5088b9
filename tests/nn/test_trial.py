"""Blocks of steps and the steps around them: what is compared, and what follows from it."""

import random

import pytest

from nxcore.nn.blocks import AROUND, WARM, WITHIN, Pair
from nxcore.nn.trial import CLEARLY, FRUITLESS, LOOKS, Found, Timed, Trial, paired

NONE, ALL = frozenset(), frozenset({"BatchNorm2d", "Conv2d"})


def steps(*seconds: float, key: object = "") -> list[Timed]:
    return [(key, s) for s in seconds]


def fed(ratios: list[float], trial: Trial | None = None) -> Trial:
    trial = trial or Trial(NONE, ALL)
    for ratio in ratios:
        if not trial.verdict:
            trial.add(Found(ratio, 0.0))
    return trial


def test_a_block_is_compared_with_the_steps_around_it() -> None:
    found = paired(steps(1.0, 1.0, 3.0, 3.0), steps(3.0, 3.0), steps(9.0))
    assert found.ratio == pytest.approx(1.5)
    assert found.extra == pytest.approx(1 + 1 + 7)


def test_two_kinds_of_steps_that_take_turns_are_compared_as_a_whole() -> None:
    assert paired(steps(1.0, 5.0, 1.0, 5.0), steps(2.0, 10.0)).ratio == pytest.approx(2.0)


def test_only_alike_steps_are_compared() -> None:
    around = [*steps(1.0, 1.0, key="small"), *steps(4.0, key="large")]
    within = [*steps(8.0, key="large"), *steps(100.0, key="huge")]
    assert paired(around, within).ratio == pytest.approx(2.0)
    assert paired(around, steps(1.0, key="huge")).ratio is None


def test_a_pair_records_its_phases() -> None:
    pair, now = Pair(skipped=2), 0
    for _ in range(2 + AROUND):
        pair.begin("k", now)
        now += 1
        pair.end(now)
    assert pair.complete
    pair.enter()
    for _ in range(WARM + WITHIN):
        assert not pair.complete
        pair.begin("k", now)
        now += 10
        pair.end(now)
    pair.leave()
    for _ in range(WARM + AROUND):
        assert not pair.complete
        pair.begin("k", now)
        now += 1
        pair.end(now)
    assert pair.complete
    phases = [(s.phase, s.timed) for s in pair.steps]
    assert phases.count(("before", True)) == phases.count(("after", True)) == AROUND
    assert phases.count(("within", True)) == WITHIN
    assert phases.count(("within", False)) == phases.count(("after", False)) == WARM
    found = pair.found(lambda a, b: float(b - a))
    assert found == Found(10.0, 9.0 * (WARM + WITHIN))
    following = pair.next(1)
    assert [s.phase for s in following.steps] == ["before"] * AROUND
    following.begin("k", now)
    assert following.complete


@pytest.mark.parametrize(
    ("ratios", "verdict", "pairs"),
    [
        ([5.7] * 99, "present", CLEARLY),
        ([0.79] * 99, "other", CLEARLY),
        ([0.95, 0.96, 0.97] * 99, "other", LOOKS[0]),
        ([1.03, 1.05, 1.01] * 99, "present", LOOKS[0]),
        ([1.5, 1.01, 0.99, 0.5] * 99, "unclear", LOOKS[-1]),
    ],
)
def test_a_verdict(ratios: list[float], verdict: str, pairs: int) -> None:
    trial = fed(ratios)
    assert trial.verdict == verdict
    assert len(trial.ratios) == pairs


@pytest.mark.parametrize(
    ("seed", "mean", "noise", "trials", "share"),
    [(0, 1.0, 0.05, 300, (0.0, 0.03)), (1, 0.97, 0.03, 50, (0.96, 1.0))],  # 0.03: three looks at one percent
)
def test_noise_gives_little_back_and_hides_no_small_loss(seed, mean, noise, trials, share) -> None:
    dice = random.Random(seed)
    ratios = ([mean + dice.gauss(0, noise) for _ in range(LOOKS[-1])] for _ in range(trials))
    lost = sum(fed(each).verdict == "other" for each in ratios)
    assert share[0] <= lost / trials <= share[1]


def test_steps_that_are_never_alike_end_a_trial() -> None:
    trial = Trial(NONE, ALL)
    for _ in range(FRUITLESS):
        assert trial.verdict == ""
        trial.add(Found(None, 1.0))
    assert trial.verdict == "unclear"
    assert trial.summary == "not compared: no two steps are alike"


def test_a_summary_is_of_nxcores_speed_beside_plain_steps() -> None:
    assert fed([2.0] * 3).summary == (
        "pays: 2.00x [2.00, 2.00] the speed of plain steps, 3 blocks, BatchNorm2d, Conv2d"
    )
    assert fed([0.5] * 3).summary.startswith("given back: 0.50x")
    one = Trial(ALL, frozenset({"Conv2d"}))
    assert (
        fed([0.5] * 3, one).summary
        == "taken back: 2.00x [2.00, 2.00] the speed of plain steps, 3 blocks, BatchNorm2d"
    )
    assert fed([2.0] * 3, Trial(ALL, NONE)).summary.startswith("given back: 0.50x")
    assert fed([1.5, 1.01, 0.99, 0.5] * 10).summary.startswith("kept, as there is no clear difference: ")
