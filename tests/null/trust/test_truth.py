"""Each gate refuses what it is there for, and no sample is blind."""

import math
from dataclasses import replace

import pytest
import torch

from nxcore import session
from nxcore.errors import VerificationError
from nxcore.plugin import Sample, rand
from nxcore.spec.problem import Problem, leaves
from nxcore.trust import samples
from nxcore.trust.truth import Agreement, Truth, agreement, require_telling, without_out
from tests.null import fakes
from tests.null.fakes import SPECS
from tests.stand_ins import stand_in
from tests.table import for_each

samples_has = stand_in(samples)

SUM, ADD, BLEND = SPECS["sum"], SPECS["add"], SPECS["softmax_sum"]


def refusal(call, op: str, sample: str | Sample, dtype=torch.float32) -> str:
    """Return why ``call`` fails on a sample; the reference must pass on it."""
    spec = SPECS[op]
    found = sample if isinstance(sample, Sample) else next(s for s in spec.samples if s.name == sample)
    args = found.build(spec, "cpu", dtype)
    assert agreement(spec.reference, spec, args).ok
    agreed = agreement(call, spec, args)
    assert not agreed.ok
    assert agreed.error > 0 or math.isinf(agreed.error)
    return agreed.reason


def with_one(change, at, value):
    """Return a kernel whose result has a value at one place."""

    def call(*args):
        result = change(*args)
        result.view(-1)[at] = value
        return result

    return call


def plus(x, y, alpha, out):
    return torch.add(x, y, alpha=alpha)


MISSING = "NaN must be where the reference has NaN: "
INFINITE = "infinities must be where the reference has them"
OFF = "elementwise error is "
PLAIN, ALPHA, INF = ("add", "power_of_two"), ("add", "alpha_dropped"), ("softmax_sum", "inf_in_candidates")
BLENDED = BLEND.reference
REFUSED = {
    "zeros": ("sum", "inner_axis", lambda x, *how: torch.zeros_like(torch.sum(x, *how)), OFF),
    "the mean": (*ALPHA, lambda *a: torch.full_like(a[0], float(plus(*a).mean())), OFF),
    "the input": (*ALPHA, lambda x, *_: x.clone(), OFF),
    "a dropped parameter": (*ALPHA, lambda x, y, *_: x + y, OFF),
    "a dropped NaN": ("sum", "nan", torch.nansum, f"{MISSING}0 outputs are NaN, "),
    "an added NaN": (*PLAIN, with_one(plus, 3, torch.nan), f"{MISSING}1 outputs are NaN, 0 should be"),
    "a moved infinity": (*INF, lambda *a: (y := BLENDED(*a)).where(~y.isinf(), 1.0), INFINITE),
    "an infinity's sign": (*INF, lambda *a: (y := BLENDED(*a)).where(~y.isinf(), -y), INFINITE),
    "an infinity out of nothing": (*PLAIN, with_one(plus, -1, torch.inf), INFINITE),
    "a dtype": (
        *PLAIN,
        lambda *a: plus(*a).double(),
        "dtype must be torch's torch.float32, got torch.float64",
    ),
    "a shape": (*PLAIN, lambda *a: plus(*a)[None], "shape must be torch's (4096,), got (1, 4096)"),
    "strides": (
        "add",
        "transposed",
        lambda *a: plus(*a).contiguous(),
        "strides must be torch's (1, 31), got (17, 1)",
    ),
    "a device": (*PLAIN, lambda *_: torch.empty(4096, device="meta"), "device must be torch's cpu, got meta"),
    "a missing output": (*PLAIN, lambda *_: None, "expected 1 outputs, got 0"),
    "past a thousand": ("add", "last_block_partly_filled", with_one(plus, slice(1024, None), 0), OFF),
    "a last element": ("softmax_sum", "last_block_partly_filled", with_one(BLENDED, -1, 0), OFF),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name):
    op, sample, call, why = REFUSED[name]
    assert refusal(call, op, sample).startswith(why)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_sixteen_bit_accumulator_is_refused(dtype):
    def narrow(x, dim, keepdim):
        total = x.new_zeros(x.shape[0])
        for column in x.unbind(1):
            total = total + column
        return total

    assert "error is" in refusal(narrow, "sum", "accumulator_drift", dtype)


def test_a_sixteen_bit_blend_is_refused():
    def narrow(xs, logits):
        weights = torch.softmax(logits.float(), 0).half()
        out = xs[0] * weights[0]
        for x, w in zip(xs[1:], weights[1:], strict=True):
            out = out + x * w
        return out

    assert "error is" in refusal(narrow, "softmax_sum", "accumulator_drift", torch.float16)


def test_tf32_over_a_long_sum_of_zero_mean_is_refused():
    """The elementwise gate alone is too wide for it: the norm of the error tells."""

    def truncated(x, dim, keepdim):
        return torch.sum((x.view(torch.int32) & ~0x1FFF).view(torch.float32), dim, keepdim)

    sample = Sample("long", (rand(16, 300_000), 1))
    assert "root mean square error is" in refusal(truncated, "sum", sample)


def test_the_norm_refuses_what_the_elementwise_gate_lets_pass():
    truth = Truth.of(ADD, ADD.bind(torch.zeros(4096), torch.zeros(4096)))
    exact = torch.linspace(1, 2, 4096, dtype=torch.float64)
    like = exact.float()
    truth = replace(truth, exact=(exact,), torch=(like,), scale=(exact * 1000,), terms=10_000)
    off = (exact + 1e-3).float()
    assert "root mean square error is" in truth.judge(off).reason
    assert truth.judge(like).ok


ULP = 2.0**-23  # of float32 at 1, two units of roundoff


def ones_off_by(ulps: int, where=slice(None)) -> torch.Tensor:
    y = torch.ones(4096)
    y[where] += ulps * ULP
    return y


def truth_of_ones(scale: float, theirs: int) -> Truth:
    """The truth is 1 everywhere; torch's own is off by ``theirs`` units in the last place."""
    exact = torch.ones(4096, dtype=torch.float64)
    return Truth((exact,), (ones_off_by(theirs),), (exact * scale,), terms=1, bitwise=False)


def test_one_element_may_be_off_by_four_roundings_and_no_more():
    assert truth_of_ones(0, 0).judge(ones_off_by(2, 7)).ok
    assert truth_of_ones(0, 0).judge(ones_off_by(3, 7)).reason == "elementwise error is 1.5 times its bound"


def test_the_accumulators_share_grows_with_the_scale():
    assert truth_of_ones(1, 0).judge(ones_off_by(4, 7)).ok
    assert "elementwise error is" in truth_of_ones(1, 0).judge(ones_off_by(5, 7)).reason


def test_the_norm_may_be_three_times_torchs_and_no_more():
    def judged(off: int) -> Agreement:  # a scale for (a) alone: 1000 terms of 1, so that (b) is what decides
        exact = torch.ones(4096, dtype=torch.float64)
        return Truth((exact,), (ones_off_by(2),), (exact,), terms=1000, bitwise=False).judge(ones_off_by(off))

    assert judged(6).ok
    assert judged(8).reason.startswith("root mean square error is 1.22 times")


def test_many_outputs_may_share_a_rounding_on_the_scale_of_the_magnitudes():
    """A weight that torch happens to round well must not refuse every kernel that rounds it once more."""
    assert truth_of_ones(8, 0).judge(ones_off_by(4)).ok
    assert not truth_of_ones(1, 0).judge(ones_off_by(4)).ok


@pytest.mark.parametrize(("op", "sample"), [("sum", "inner_axis"), ("softmax_sum", "list_of_pointers")])
def test_a_changed_input_is_refused(op, sample):
    def mutating(*args):
        result = SPECS[op].reference(*args)
        [*leaves(args)][-1].zero_()
        return result

    assert refusal(mutating, op, sample) == "inputs must be left unchanged"


def test_an_infinity_made_finite_in_an_input_is_a_change():
    x = torch.tensor([torch.inf, 1.0])

    def mutating(x, dim, keepdim):
        result = torch.sum(x, dim, keepdim)
        x[0] = torch.finfo(torch.float32).max
        return result

    assert agreement(mutating, SUM, SUM.bind(x)).reason == "inputs must be left unchanged"


def test_an_exact_operator_is_compared_bit_for_bit():
    spec = SPECS["sum_backward"]
    args = next(s for s in spec.samples if s.name == "inner_axis").build(spec, "cpu", torch.float32)

    def nearly(grad, size, dim, keepdim):
        return (grad * (1 + 2.0**-23)).unsqueeze(-1).expand(size)

    assert agreement(spec.reference, spec, args).ok
    assert agreement(nearly, spec, args).reason == "must be equal bit for bit"


def test_the_largest_number_is_no_infinity_to_an_exact_operator():
    spec = SPECS["sum_backward"]
    args = spec.bind(torch.tensor([torch.inf, 1.0]), (2, 3), 1)
    found = agreement(
        lambda g, size, *rest: g.clamp(max=torch.finfo(g.dtype).max)[:, None].expand(size), spec, args
    )
    assert found.reason == "must be equal bit for bit"


def test_one_rounding_of_a_half_is_allowed_near_overflow():
    args = fakes.build("sum", "next_to_overflow", torch.float16)
    assert agreement(SUM.reference, SUM, args).ok


def test_the_error_is_relative_in_the_two_norm():
    x = torch.full((4,), 2.0)
    found = agreement(lambda x, y, alpha, out: (x + y) * 1.5, ADD, ADD.bind(x, x))
    assert found.error == pytest.approx(0.5)
    assert agreement(ADD.reference, ADD, ADD.bind(x, x)).error == 0.0


def test_the_error_is_absolute_where_zeros_are_right():
    spec = SPECS["entropy"]
    args = (torch.tensor([[80.0, 0.0]]),)
    zeros = Truth.of(spec, args).judge(torch.zeros(1))
    assert zeros.ok
    assert 0 < zeros.error < 1e-30, "as small as the entropy itself; the relative error would be 1"


@for_each("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@for_each("spec", SPECS.values(), ids=SPECS)
def test_every_sample_tells_right_from_wrong(spec, dtype):
    """The gate doesn't try these again. In 16 bits only smoke samples do."""
    samples = fakes.modest(spec) if dtype is torch.float32 else spec.tagged("smoke")
    for sample in samples:
        if "degenerate" not in sample.tags:
            args, other = (
                s.build(spec, "cpu", dtype)
                for s in (sample, Sample(f"{sample.name}, other numbers", sample.args, sample.kwargs))
            )
            earlier = tuple(leaves(spec.reference(*without_out(spec, other))))
            require_telling(Truth.of(spec, args), args, sample.name, previous=earlier)


@pytest.mark.parametrize(
    ("dtype", "name", "again"),
    [
        (torch.float32, "inner_axis", False),
        (torch.float32, "nan", False),
        (torch.bfloat16, "inner_axis", False),
        (torch.bfloat16, "list_of_axes", True),
        (torch.float64, "inner_axis", True),
    ],
)
def test_the_gate_tries_what_the_suite_does_not(dtype, name, again, samples_has):
    tried = []
    samples_has(require_telling=lambda *given, **_: tried.append(given[2]))
    samples.built.cache_clear()
    samples.built("sum", name, torch.device("cpu"), dtype, session.default().registry)
    assert tried == [name] * again


@pytest.mark.parametrize("share", [0.0, 2.0**-10])
def test_the_gate_tries_samples_of_calls_that_allow_more_error(share, monkeypatch, samples_has):
    tried = []
    samples_has(require_telling=lambda *given, **_: tried.append(given[2]))
    monkeypatch.setattr("nxcore.trust.truth.share_of", lambda *_: share)
    samples.built.cache_clear()
    samples.built("sum", "inner_axis", torch.device("cpu"), torch.float32, session.default().registry)
    samples.built.cache_clear()
    assert bool(tried) == bool(share)


@pytest.mark.parametrize(
    ("args", "what"),
    [
        ((torch.zeros(40), torch.zeros(40)), "zeros"),
        ((torch.ones(40), torch.ones(40)), "the mean"),
        ((torch.linspace(1.1, 1.9, 40), 6e-8), "the input"),
    ],
    ids=["zeros", "mean", "input"],
)
def test_a_blind_sample_is_refused(args, what):
    bound = ADD.bind(*args)
    with pytest.raises(
        VerificationError, match=f"sample 'blind' can't distinguish {what} from the right result"
    ):
        require_telling(Truth.of(ADD, bound), bound, "blind")


HALF_IN_HALF = {
    "avg_pool2d_backward": (torch.float16, torch.bfloat16),
    "conv2d_backward": (torch.float16,),
    "depthwise_conv2d_backward": (torch.float16,),
    "index_add": (torch.float16, torch.bfloat16),  # its idiom
    "max_pool2d_backward": (torch.float16, torch.bfloat16),  # its idiom
}
"""Where torch's kernels for the CPU add up half types in their own precision."""


@for_each("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@for_each("spec", SPECS.values(), ids=SPECS)
def test_the_reference_passes_its_own_gates(spec, dtype):
    if dtype in HALF_IN_HALF.get(spec.name, ()) and not spec.idioms:
        pytest.skip("torch's own kernel for the CPU adds up in half precision")
    found = {s.name: agreement(spec.reference, spec, s.build(spec, "cpu", dtype)) for s in fakes.modest(spec)}
    assert {name: one.reason for name, one in found.items() if not one.ok} == {}


IDIOMS = [(spec, name) for spec in SPECS.values() for name in spec.idioms]


@for_each("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@for_each(("spec", "name"), IDIOMS, ids=[f"{s.name}-{n}" for s, n in IDIOMS])
def test_an_idiom_agrees_but_for_its_strides(spec, name, dtype):
    if dtype in HALF_IN_HALF.get(spec.name, ()):
        pytest.skip("torch's own kernel for the CPU adds up in half precision: it is refused here")
    called, calls = spec.idioms[name], {s.name: s.build(spec, "cpu", dtype) for s in fakes.modest(spec)}
    accepts = getattr(called, "accepts", bool)
    calls = {n: args for n, args in calls.items() if accepts(Problem.of(spec, args))}
    if name == "math":  # torch's kernel for the CPU has no NaN where a query has: math is refused here
        del calls["nan"]
    if not calls:
        pytest.skip("it takes no call on the CPU")
    for sample, args in calls.items():
        truth = Truth.of(spec, args)
        result = called(*args)
        laid_out = [
            torch.empty_strided(y.shape, like.stride(), dtype=y.dtype).copy_(y)
            for y, like in zip(fakes.leaves(result), truth.torch, strict=True)
        ]
        found = truth.judge(tuple(laid_out))
        assert found.ok, f"{sample}: {found.reason}"
