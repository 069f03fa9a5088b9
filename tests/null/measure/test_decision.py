"""Choosing is a pure function, tried here on machines that nobody has."""

import math
import random
import re
import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nxcore.measure.decision import (
    Candidate,
    Decision,
    Interval,
    compare,
    decide,
    interval,
    settled,
    signed_rank,
    winners,
)
from nxcore.measure.timing import REGIMES, Timing
from nxcore.spec.kernel import Code, Refusal
from tests.null import fakes
from tests.table import for_each

NO = Refusal(Code.OTHER, "no")


def blocks(us: float, n: int = 20, noise: float = 0.0, seed: int = 0) -> list[float]:
    dice = random.Random(f"{us} {seed}")
    return [us * math.exp(dice.gauss(0, noise)) for _ in range(n)]


def one(label: str, us: float, n: int = 20, noise: float = 0.001, seed: int = 0, **how) -> Candidate:
    backend = "torch" if label.startswith("torch") else label
    return Candidate(label, backend, timing=fakes.timing(blocks(us, n, noise, seed)), **how)


def again(us: float = 100, noise: float = 0.001):
    return fakes.timing(blocks(us, noise=noise, seed=99))


def test_a_clear_winner_is_chosen_and_says_by_how_much():
    found = decide([one("torch", 100), one("fast", 50)], again())
    assert (found.chosen, found.rule) == ("fast", "measured")
    assert found.reason.startswith("50")
    assert "against torch's 100" in found.reason.replace("99.99", "100").replace("100.0", "100")
    assert found["fast"].ratio.median == pytest.approx(2, rel=0.01)
    assert found["torch"].ratio.median == pytest.approx(1, rel=0.01)
    assert found["fast"].p_value == pytest.approx(2.0**-20)


def test_where_another_idiom_wins_the_reason_tells_of_a_kernel_that_seemed_faster_still():
    candidates = [one("torch", 100), one("torch-other", 60), one("kernel", 59.5, seed=1)]
    found = decide(candidates, again())
    assert found.chosen == "torch-other"
    assert re.search(r"; closest: kernel, 1\.01x .*required 2\.0%: p = 1, needs p < 0\.01$", found.reason)
    slower = decide([*candidates[:2], one("kernel", 70, seed=1)], again())
    assert slower.chosen == "torch-other"
    assert "kernel" not in slower.reason


def test_the_same_speed_is_the_reference():
    found = decide([one("torch", 100), one("other", 100, seed=1)], again())
    assert (found.chosen, found.rule) == ("torch", "reference")
    assert found.reason.startswith("no kernel is measurably faster than torch; ")
    assert re.search(r"\bother\b.* 1\.00x", found.reason)
    assert re.search(r"the required 2\.0%: p = [0-9.e-]+, needs p < 0\.01$", found.reason), found.reason


@for_each(
    ("us", "chosen"),
    [((99,), "torch"), ((95,), "a"), ((110,), "torch"), ((60, 40, 50), "b")],
    ids=["one percent faster", "five percent faster", "slower", "the fastest of several"],
)
def test_the_median_decides(us, chosen):
    others = (one(label, time) for label, time in zip("abc", us, strict=False))
    assert decide([one("torch", 100), *others], again()).chosen == chosen


def test_faster_on_average_and_scattered_is_the_reference():
    times = [60, 140] * 10
    wild = Candidate("wild", "wild", timing=fakes.timing(times))
    assert decide([one("torch", 104), wild], again(104)).chosen == "torch"


def test_nobody_else_is_the_reference():
    found = decide([one("torch", 100), Candidate("a", "a", refusal=NO)], again())
    assert found.chosen == "torch"
    assert found.reason == "no kernel of another backend can run this call"


def test_nothing_measured_is_the_reference():
    found = decide([Candidate("torch", "torch"), Candidate("a", "a")])
    assert (found.chosen, found.noise) == ("torch", 0.0)


def test_the_median_counts_and_not_the_mean():
    times = [50.0] * 17 + [5000.0] * 3
    spiky = Candidate("spiky", "spiky", timing=fakes.timing(times))
    found = decide([one("torch", 100), spiky], again())
    assert statistics.fmean(times) > 100
    assert found.chosen == "torch"  # in doubt: three blocks of twenty were 50 times slower
    assert found["spiky"].ratio.median == pytest.approx(2, rel=0.01)


def test_the_slower_of_host_and_device_counts():
    timing = fakes.Timing(device_us=(10.0,) * 20, host_us=(120.0,) * 20)
    assert decide([one("torch", 100), Candidate("a", "a", timing=timing)], again()).chosen == "torch"


def both(label: str, host_us: float, device_us: float, **how) -> Candidate:
    backend = "torch" if label.startswith("torch") else label
    timing = Timing(tuple(blocks(device_us, noise=0.001)), tuple(blocks(host_us, noise=0.001)))
    return Candidate(label, backend, timing=timing, **({"graph_safe": True} | how))


def chosen(machine):
    return {r: decide(machine, both("torch", 8, 4).timing, r).chosen for r in REGIMES}


def test_a_kernel_that_costs_the_host_much_loses_in_eager_and_wins_under_capture():
    machine = [both("torch", 8, 4), both("late", 40, 2)]
    assert chosen(machine) == {"eager": "torch", "captured": "late"}
    captured = decide(machine, both("torch", 8, 4).timing, "captured")
    assert re.match(r"2\.0 us against torch's 4\.0 us", captured.reason)


def test_a_kernel_that_costs_the_host_little_wins_in_eager_and_loses_under_capture():
    assert chosen([both("torch", 40, 4), both("light", 8, 5)]) == {"eager": "light", "captured": "torch"}


def test_a_winner_that_is_not_graph_safe_gives_way_under_capture_alone():
    machine = [both("torch", 40, 9), both("best", 8, 2, graph_safe=False), both("next", 9, 3)]
    assert chosen(machine) == {"eager": "best", "captured": "next"}
    found = decide(machine, regime="captured")
    assert found["best"].refusal.reason == "doesn't claim to be graph_safe"
    assert chosen(machine[:2]) == {"eager": "best", "captured": "torch"}


def test_the_fastest_of_torchs_ways_is_another_one_under_capture():
    machine = [both("torch", 20, 9), both("torch-loop", 30, 5), both("other", 19, 7)]
    assert chosen(machine) == {"eager": "other", "captured": "torch-loop"}


def test_settled_asks_of_every_regime():
    machine = [both("torch", 8, 4), both("late", 40, 4)]
    unclear = replace(machine[1], timing=Timing(tuple([3.5, 4.5] * 10), machine[1].timing.host_us))
    assert settled([machine[0], unclear], regimes=["eager"])
    assert not settled([machine[0], unclear], regimes=REGIMES)


def test_a_tie_of_winners_goes_to_the_smaller_error():
    a, b = one("a", 50.0, error=1e-6), one("b", 50.5, error=1e-8)
    assert decide([one("torch", 100), a, b], again()).chosen == "b"
    assert decide([one("torch", 100), a, one("b", 52, error=1e-8)], again()).chosen == "a"


def test_a_tie_of_winners_goes_to_torchs_own():
    found = decide([one("torch", 100), one("torch-dot", 50.5), one("a", 50, error=0.0)], again())
    assert found.chosen == "torch-dot"
    assert found.rule == "measured"


def test_the_baseline_is_torchs_fastest_idiom():
    found = decide([one("torch", 100), one("torch-dot", 50), one("a", 50, seed=3)], again())
    assert found.chosen == "torch-dot"
    assert found["a"].ratio.median == pytest.approx(1, rel=0.01)
    assert found["torch"].ratio.median == pytest.approx(0.5, rel=0.01)
    assert decide([one("torch", 100), one("torch-dot", 50), one("a", 40)], again()).chosen == "a"


def test_holm_asks_more_of_the_best_of_many():
    n = 7
    base = Candidate("torch", "torch", timing=fakes.timing([100.0] * n))
    clear = Candidate("clear", "clear", timing=fakes.timing([50.0] * n))
    others = [Candidate(f"s{i}", f"s{i}", timing=fakes.timing([200.0] * n)) for i in range(2)]
    assert decide([base, clear]).chosen == "clear"  # p = 2^-7 < 0.01
    assert decide([base, clear, *others]).chosen == "torch"  # and not < 0.01 / 3


def test_holm_steps_down():
    def judged(*ps):
        return [Candidate(str(p), "x", p_value=p) for p in ps]

    assert [c.p_value for c in winners(judged(0.009, 0.004))] == [0.004, 0.009]
    assert winners(judged(0.009, 0.006)) == []
    assert [c.p_value for c in winners(judged(0.006, 0.5, 0.001))] == [0.001]


def test_a_dropped_candidate_has_fewer_blocks_and_never_wins():
    dropped = Candidate("fast", "fast", timing=fakes.timing([10.0, 10.0, 10.0]))
    found = decide([one("torch", 100), dropped], again())
    assert found.chosen == "torch"
    assert found["fast"].p_value == 2.0**-3


def test_noise_of_the_reference_against_itself_widens_the_margin():
    faster = one("a", 92)
    assert decide([one("torch", 100), faster], again()).chosen == "a"
    noisy = decide([one("torch", 100), faster], again(noise=0.2))
    assert noisy.noise > 0.04
    assert noisy.chosen == "torch"


def test_the_noise_is_the_half_width_of_the_row():
    torch_row = Candidate("torch", "torch", timing=fakes.timing([100.0] * 5))
    _, noise = compare([torch_row], fakes.timing([90.0, 100.0, 100.0, 100.0, 130.0]))
    assert noise == pytest.approx(0.2)


@pytest.mark.parametrize("how", [{"simulated": True}, {"refusal": NO}], ids=["simulated", "refused"])
def test_what_may_not_serve_is_never_chosen_however_fast(how):
    found = decide([one("torch", 100), one("a", 1, **how)], again())
    assert found.chosen == "torch"
    assert found["a"].p_value is None
    assert decide([one("torch", 100), one("torch-dot", 1, **how), one("a", 50)], again()).chosen == "a"


def test_settled_when_every_verdict_is_clear():
    assert settled([one("torch", 100), one("a", 50), one("b", 200)], again())
    assert settled([one("torch", 100)], again())


def test_settled_without_a_verdict_on_what_left_the_race():
    raced = [one("torch", 100), one("a", 10), one("b", 50, n=3)]
    assert not settled(raced, again())
    assert settled(raced, again(), left={"b"})


def test_not_settled_while_one_may_still_win():
    maybe = one("a", 97.5, noise=0.02)
    assert not settled([one("torch", 100), maybe], again())


def test_a_decision_finds_its_candidates_by_label():
    found = Decision("a", "pinned", "", (Candidate("a", "a"),))
    assert found["a"].label == "a"
    with pytest.raises(KeyError, match="b"):
        found["b"]


def test_a_decision_is_plain_data():
    found = decide([one("torch", 100), one("a", 50)], again()).to_dict()
    assert set(found) == {"chosen", "rule", "reason", "noise", "candidates", "captured"}
    assert found["candidates"][1]["ratio"][0] == pytest.approx(2, rel=0.01)
    assert found["candidates"][1]["timing"]["median_us"] == pytest.approx(50, rel=0.01)


def test_an_interval_reads_short():
    assert str(Interval(1.5, 1.25, 2)) == "1.50x [1.25, 2.00]"


def test_an_interval_is_the_textbooks():
    found = interval(range(1, 21))  # the 6th and 15th of 20: confidence 95.9%
    assert found == Interval(10.5, 6, 15)
    assert interval([3, 1, 2]) == Interval(2, 1, 3)
    assert interval([7]) == Interval(7, 7, 7)


@pytest.mark.parametrize("n", [6, 12, 20, 40])
def test_an_interval_covers_the_median_as_often_as_it_says(n):
    dice = random.Random(n)
    hits = 0
    for _ in range(2000):
        found = interval([dice.expovariate(1) for _ in range(n)])
        hits += found.low <= math.log(2) <= found.high
    assert 0.94 <= hits / 2000 <= 0.99


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-(10**6), 10**6).filter(bool), min_size=1, max_size=25, unique_by=abs))
def test_signed_rank_is_scipys(values):
    from scipy.stats import wilcoxon  # a second, which other tests' processes needn't wait for

    assert signed_rank(values) == pytest.approx(wilcoxon(values, alternative="less", method="exact").pvalue)


def test_signed_rank_shares_the_ranks_of_ties():
    # |values| = 1, 1, 2: ranks 1.5, 1.5, 3; of 8 sign patterns those with W+ <= 1.5 are {}, {1}, {1'}.
    assert signed_rank([1, -1, -2]) == 3 / 8


def test_signed_rank_drops_zeros_and_nan():
    assert signed_rank([0.0, math.nan, -1, -2, -3]) == 1 / 8
    assert signed_rank([0.0]) == signed_rank([]) == 1.0


def test_a_fast_idiom_does_not_hide_a_faster_kernel(monkeypatch):
    """Torch's idiom is more than twice as slow as the kernel, and must stay in the race."""
    times = {"torch": 100, "torch-idiom": 90, "fast": 30}
    session = fakes.scripted(fakes.Clock(), monkeypatch, "softmax_sum", times)
    found = session.explain("softmax_sum", [torch.ones(5)] * 2, torch.ones(2)).decision
    assert found.chosen == "fast"
    assert "against torch-idiom's 90" in found.reason
    assert len(found["torch-idiom"].timing.call_us) == 12


def test_the_noise_is_of_the_way_that_raced_itself_and_not_of_a_slow_reference():
    """A reference of 222 ms that stutters, beside torch's own way of 7 ms, which doesn't."""
    slow = one("torch", 222_000, noise=0.8)
    idiom, kernel = one("torch-idiom", 7_000), one("kernel", 3_500)
    twin = replace(fakes.timing(blocks(7_000, noise=0.001, seed=99)), repeats="torch-idiom")
    found = decide([slow, idiom, kernel], twin)
    assert found.noise < 0.01
    assert not found.noisy
    assert found.chosen == "kernel"
    twin = fakes.timing(blocks(222_000, noise=0.8, seed=99))
    assert decide([slow, idiom, kernel], twin).noise > 0.3, "beside the reference it is noise"


def test_above_a_fifth_of_noise_a_race_has_no_verdict_and_goes_on():
    candidates = [one("torch", 100), one("a", 50)]
    noisy = fakes.timing([60.0, 180.0] * 10)
    found = decide(candidates, noisy)
    assert found.noise > 0.2
    assert found.noisy
    assert not settled([one("torch", 100), one("slow", 110)], noisy), "no win is ruled out by noise alone"
    assert not decide(candidates, again()).noisy


def test_noise_does_not_hide_a_win_by_far():
    """A kernel 16 times as fast was learnt anew in the next process, which captured nothing until then."""
    noisy = fakes.timing([85.0, 140.0] * 10)
    torchs = one("torch", 100)
    far, near = [torchs, one("a", 6)], [torchs, one("a", 40)]
    found = decide(far, noisy)
    assert found.noise > 0.2
    assert not found.noisy
    assert settled(far, noisy)
    assert decide([torchs, one("a", 100 / 1.4)], noisy).noisy, "within the margin, which grows with noise"
    assert not settled([torchs, one("a", 100 / 1.4)], noisy)
    assert settled(near, noisy)
    assert not settled([*far, one("b", 6.1)], noisy), "which of two winners is the faster isn't known"
    assert decide([torchs, one("torch-idiom", 20)], fakes.timing([85.0, 140.0] * 10)).noisy


def test_where_no_kernel_wins_torchs_fastest_verified_way_serves():
    """1.5% faster: too little for a kernel, and torch's own is asked no margin."""
    found = decide([one("torch", 100), one("torch-idiom", 98.5), one("kernel", 98.4)], again())
    assert (found.chosen, found.rule) == ("torch-idiom", "measured")
    assert re.match(r"1\.0\dx .* the speed of torch's reference, verified; no kernel is ", found.reason)
    assert found["torch-idiom"].ratio.median == 1
    scattered = Candidate("torch-idiom", "torch", timing=fakes.timing([90.0, 109.0] * 10))
    assert decide([one("torch", 100), scattered], again()).chosen == "torch", "its interval says nothing"
    refused = one("torch-idiom", 50, refusal=NO)
    assert decide([one("torch", 100), refused], again()).chosen == "torch"
