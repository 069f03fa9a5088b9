"""Specs of expressions: the reference passes its own samples, and what is described is what torch does."""

import pytest
import torch

from nxcore.expression.elementwise import Elementwise
from nxcore.expression.grammar import parsed
from nxcore.expression.operator import specs
from nxcore.expression.reference import quotient
from nxcore.expression.samples import Samples
from nxcore.spec.problem import Problem, TensorMeta
from nxcore.trust.truth import Truth, agreement, require_telling
from tests.table import for_each

TEXTS = (
    ("relu(x) * y + where(z > 0, z, slope * z)", {"slope": 0.1}),
    ("gelu(x) * y", {}),
    ("silu(x)", {}),
    ("log(x) * sqrt(y)", {}),
    ("where(m, x, -y)", {}),
    ("x + y", {}),
    ("minimum(x, y) + maximum(x, z)", {}),
    ("exp(x) / y", {}),
    ("slope * tanh(x) + y", {"slope": -0.5}),
)
SPECS = [spec for text, numbers in TEXTS for spec in specs(parsed(text, numbers), "drawn")]
FEW = frozenset({"one_element", "zero_dimensions"})


@for_each("spec", SPECS, ids=lambda s: f"{s.name}: {s.expression.key[:6]}")
@for_each("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_reference_agrees_with_float64(spec, dtype):
    for sample in spec.samples:
        if sample.tags & {"bench", "huge"}:
            continue
        args = sample.build(spec, "cpu", dtype)
        spec.check(*args)
        truth = Truth.of(spec, args)
        found = agreement(spec.reference, spec, args, truth)
        assert found.ok, f"{sample.name}: {found.reason}"
        if "degenerate" not in sample.tags and sample.name not in FEW:
            require_telling(truth, args, sample.name)


@for_each("spec", SPECS, ids=lambda s: f"{s.name}: {s.expression.key[:6]}")
def test_results_are_described_as_torch_lays_them_out(spec):
    told = 0
    for sample in spec.samples:
        if sample.tags & {"bench", "huge"} or "out" in sample.kwargs:
            continue
        args = sample.build(spec, "cpu", torch.float16)
        described = spec.outputs(*Problem.of(spec, args).args)
        if described is None:
            continue
        told += 1
        results = spec.reference(*args)
        for meta, result in zip(
            described if isinstance(described, tuple) else (described,),
            results if isinstance(results, tuple) else (results,),
            strict=True,
        ):
            assert (meta is None) == (result is None)
            assert meta is None or meta == TensorMeta.of(result), sample.name
    assert told > 3


@for_each("spec", SPECS, ids=lambda s: f"{s.name}: {s.expression.key[:6]}")
def test_error_cases_raise(spec):
    for case in spec.errors:
        with pytest.raises(ValueError, match=case.match):
            spec.check(*case.build(spec))


@for_each(
    ("text", "dtypes", "wanted"),
    [
        ("x + y", (torch.float16, torch.float32), torch.float32),
        ("x + y", (torch.float16, torch.bfloat16), torch.float32),
        ("x * 2", (torch.int64,), torch.int64),
        ("x * 2.0", (torch.int64,), torch.float32),
        ("x / 2", (torch.int32,), torch.float32),
        ("float16(x) + y", (torch.float32, torch.float16), torch.float16),
        ("where(x > 0, 1.0, 0.0) * y", (torch.float16, torch.float16), torch.float32),
        ("(x > 0) * y", (torch.float16, torch.float16), torch.float16),
        ("sqrt(x)", (torch.float64,), torch.float64),
    ],
)
def test_a_result_has_torchs_dtype(text, dtypes, wanted):
    spec = specs(parsed(text, {}), "drawn")[0]
    tensors = [torch.ones(3).to(dtype) for dtype in dtypes]
    assert spec.reference(*tensors).dtype is wanted


def test_a_tensor_without_dimensions_promotes_as_torchs():
    spec = specs(parsed("x * y", {}), "drawn")[0]
    assert spec.reference(torch.ones(3).half(), torch.ones(())).dtype is torch.float16


def test_only_requested_gradients_are_computed():
    forward, backward = specs(parsed("relu(x) * y + z", {}), "drawn")
    x, y, z = torch.randn(3, 4), torch.randn(3, 4), torch.randn(4)
    args = backward.expression.args(torch.ones(3, 4), (True, False, True), x, y, z, None)
    assert backward.expression.saved == ("x", "y")
    assert backward.expression.sized == ("z",)
    found = Elementwise.of(Problem.of(backward, args))
    assert [str(meta) for meta in found.results] == ["float32[3, 4]", "float32[3, 4]"]
    assert [owner for owner, _ in found.finish] == [0, 2]
    assert forward.gradient.saves == ("x", "y")


def test_a_gradient_that_is_the_incoming_one_is_not_computed():
    backward = specs(parsed("relu(x) + y", {}), "drawn")[1]
    args = backward.expression.args(torch.ones(3), (True, True), torch.ones(3), torch.ones(3), None)
    assert len(Elementwise.of(Problem.of(backward, args)).results) == 1
    alone = backward.expression.args(torch.ones(3), (False, True), torch.ones(3), torch.ones(3), None)
    assert backward.view(*alone)


def test_samples_name_every_tensor():
    expression = parsed("where(m, x, y)", {})
    dtypes = {sketch.dtype for sketch in Samples(expression).tensors(3)}
    assert dtypes == {None, torch.bool}
    found = specs(expression, "drawn")[0]
    mask = found.samples[0].build(found, "cpu", torch.float32)[0]
    assert 0.2 < mask.float().mean() < 0.8, "both values occur"
    problem = Problem.of(found, found.samples[0].build(found, "cpu", torch.bfloat16))
    assert problem.dtype is torch.bfloat16


def judged(text, *tensors, numbers=(), **defaults):
    """Return the truth of a call, and whether the reference in float32 agrees with it."""
    spec = specs(parsed(text, defaults), "drawn")[0]
    args = (*tensors, *numbers, None)
    truth = Truth.of(spec, args)
    return truth, agreement(spec.reference, spec, args, truth)


def test_what_float32_lacks_of_a_constant_is_an_error_of_the_result():
    """Of 1.02 in float32 a difference of 0.0001 is off by 2e-4, and an elementwise bound must know it."""
    x = torch.tensor([1.0200999975204468, 3.0])
    truth, found = judged("1 / (x - 1.02)", x)
    assert found.ok, found.reason
    unit = 2.0**-24
    off = abs(1.02 - float(torch.tensor(1.02)))
    exact = truth.exact[0][0]
    assert truth.scale[0][0] * unit == pytest.approx(float(off * exact**2 + 3 * unit * exact), rel=1e-3)


def test_a_constant_that_float32_holds_loses_nothing():
    truth, _ = judged("x - 0.5", torch.tensor([2.0]))
    assert truth.scale[0].item() == 3.0, "the difference is rounded, and its result"
    truth, _ = judged("x * 1e40", torch.tensor([0.0, 1.0]))
    assert truth.scale[0].tolist() == [0.0, pytest.approx(2e40)], "there it is infinite"


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("square(x) / -0.0 + x / y", {}),
        ("x * y / 0", {}),
        ("x ** -1 / 0.0 + y", {}),
        ("x * y / slope", {"slope": 0.0}),
        ("x * y / (slope / slope)", {"slope": 2}),
    ],
)
def test_a_quotient_by_zero_has_a_truth(text, numbers):
    """The derivative by which an error grows is a quotient of numbers, where Python raises."""
    x, y = torch.tensor([2.0, -1.0]), torch.tensor([1.0, 3.0])
    truth, found = judged(text, x, y, numbers=tuple(numbers.values()), **numbers)
    assert found.ok, found.reason
    assert truth.exact[0].isinf().all() == ("slope / slope" not in text)


def test_quotients_of_numbers_are_those_of_tensors():
    values = (0, 0.0, -0.0, 1, -2.0, float("inf"), float("-inf"), float("nan"))
    for a in values:
        for b in values:
            wanted = torch.tensor(float(a)) / torch.tensor(float(b))
            found = torch.tensor(float(quotient(a, b)))
            assert torch.equal(found.isnan(), wanted.isnan())
            assert wanted.isnan() or (found == wanted and found.signbit() == wanted.signbit()), (a, b)
