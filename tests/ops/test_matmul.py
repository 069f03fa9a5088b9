"""matmul: torch's shapes and layouts on every backend, and products that only look like float32's."""

import pytest
import torch
from torch import Tensor

import nxcore
from nxcore.errors import UnsupportedProblemError
from nxcore.spec import precision as classes
from nxcore.trust.truth import Truth, agreement
from tests.null import fakes
from tests.ops.backends import operator, params, place
from tests.table import for_each

BACKENDS = pytest.mark.parametrize("backend", params())
SPEC = nxcore.op("matmul").spec

SHAPES = [
    ((5, 6), (6, 4)),
    ((6,), (6, 4)),
    ((5, 6), (6,)),
    ((6,), (6,)),
    ((3, 5, 6), (6, 4)),
    ((5, 6), (3, 6, 4)),
    ((2, 1, 5, 6), (3, 6, 4)),
    ((6,), (3, 6, 4)),
    ((3, 5, 6), (6,)),
    ((1, 1), (1, 1)),
]


def of(shape, device, layout="plain"):
    made = torch.randn(shape, device=device)
    if layout == "turned" and made.ndim > 1:
        return made.mT.contiguous().mT
    if layout == "gaps":
        return torch.stack([made, torch.full_like(made, 3)], dim=-1)[..., 0]
    if layout == "offset":
        return torch.cat([made.new_zeros(1), made.flatten()])[1:].view(shape)
    return made


@BACKENDS
@for_each("layout", ["plain", "turned", "gaps", "offset"])
@for_each("shapes", SHAPES, ids=str)
def test_shapes_and_layouts_are_torchs(backend, device, shapes, layout):
    a, b = (of(shape, place(backend, device), layout) for shape in shapes)
    got, want = operator("matmul", backend)(a, b), torch.matmul(a, b)
    torch.testing.assert_close(got, want, check_stride=True)


def test_of_no_terms_all_sums_are_zero(device):
    a, b = torch.ones(2, 0, device=device), torch.ones(0, 3, device=device)
    assert torch.equal(nxcore.ops.matmul(a, b), torch.zeros(2, 3, device=device))


def test_other_dtypes_are_torchs():
    a, b = torch.randn(5, 6), torch.randn(6, 4)
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        torch.testing.assert_close(nxcore.ops.matmul(a.to(dtype), b.to(dtype)), a.to(dtype) @ b.to(dtype))


# ------------------------------------------------------------------------------- what only looks like float32


def shortened(x: Tensor, bits: int) -> Tensor:
    """Round to ``bits`` bits of the significand, as a tensor core's formats do: TF32 has 11, bfloat16 8."""
    cut = 24 - bits
    whole = x.view(torch.int32)
    rounded = (whole + (1 << (cut - 1)) - 1 + (whole >> cut & 1)) >> cut << cut
    return torch.where(x.isfinite(), rounded.view(torch.float32), x)


def split(x: Tensor, bits: int, count: int) -> list[Tensor]:
    parts = []
    for _ in range(count):
        parts.append(shortened(x, bits))
        x = x - parts[-1]
    return parts


def product_of_parts(bits: int, count: int, exact=torch.matmul):
    """Return a product by the leading products of ``count`` parts of each factor: 3xTF32 is (11, 2)."""

    def product(a: Tensor, b: Tensor, *rest) -> Tensor:
        firsts, seconds = split(a, bits, count), split(b, bits, count)
        pairs = [(x, y) for i, x in enumerate(firsts) for j, y in enumerate(seconds) if i + j < count]
        found = [exact(x, y, *rest) for x, y in reversed(pairs)]
        return sum(found[1:], found[0])

    return product


def flushed(x: Tensor) -> Tensor:
    return torch.where(x.abs() < 2**-126, 0 * x, x)


def impostors(exact):
    """Return what computes ``exact``, a function of two factors and more, by other factors."""
    return {
        "tf32": product_of_parts(11, 1, exact),
        "3xtf32": product_of_parts(11, 2, exact),
        "bf16x3": product_of_parts(8, 2, exact),
        "bf16x6": product_of_parts(8, 3, exact),
        "half": lambda a, b, *rest: exact(a.half().float(), b.half().float(), *rest),
        "flushed": lambda a, b, *rest: exact(flushed(a), flushed(b), *rest),
    }


IMPOSTORS = impostors(lambda a, b, *_: torch.matmul(a, b))


def refusing(spec, name, impostor):
    """Return the names of a spec's samples for the gate that refuse an impostor; there is one at least."""
    refused = set()
    for sample in spec.tagged("smoke"):
        args = sample.build(spec, "cpu", torch.float32)
        truth = Truth.of(spec, args, exactly="exact" in sample.tags)
        assert agreement(lambda *given: spec.reference(*given) * 1.0, spec, args, truth).ok, sample.name
        if not agreement(impostor, spec, args, truth).ok:
            refused.add(sample.name)
    assert refused, f"{name} would pass"
    if name == "3xtf32":  # on ordinary numbers, the error is float32's
        assert refused >= {"infinite", "overflow", "cancelling"}
    return refused


@pytest.mark.parametrize("name", IMPOSTORS)
def test_samples_of_the_gate_refuse_an_impostor(name):
    refused = refusing(SPEC, name, IMPOSTORS[name])
    assert name != "3xtf32" or not refused & {"odd", "whole_vectors", "batched"}


@pytest.mark.parametrize("name", IMPOSTORS)
def test_the_gate_refuses_a_planted_impostor_and_calls_are_right(name):
    impostor = fakes.kernel("matmul", IMPOSTORS[name])
    session = fakes.session(fakes.backend("fake", impostor))
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    assert torch.equal(session.op("matmul")(a, b), a @ b)
    with pytest.raises(UnsupportedProblemError, match="wrong"):
        session.op("matmul", backend="fake")(a, b)


@BACKENDS
def test_a_cancelling_row_is_as_exact_as_torchs(backend, device):
    a = torch.tensor([[2.0**20, 1.0, -(2.0**20), 2.0**-3]], device=place(backend, device)).repeat(3, 1)
    b = torch.ones(4, 5, device=a.device)
    b[1] = 2.0**-3
    assert torch.equal(operator("matmul", backend)(a, b), torch.full((3, 5), 0.25, device=a.device))


@BACKENDS
def test_a_row_of_24_bits_that_cancels_is_exact(backend, device):
    """No order of its sums rounds; 3xTF32 keeps 22 bits of a factor."""
    args = next(s for s in SPEC.samples if s.name == "cancelling").build(SPEC, "cpu", torch.float32)
    want = torch.matmul(*(x.double() for x in args[:2])).float()
    a, b = (x.to(place(backend, device)) for x in args[:2])
    assert torch.equal(operator("matmul", backend)(a, b).cpu(), want)
    assert want.abs().max() < 1000
    assert a.abs().max() > 2**23
    assert not torch.equal(IMPOSTORS["3xtf32"](*args), want)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda", "triton"])
@for_each("n", [512, 1000, 1025, 2048])
def test_errors_are_those_of_cublas(backend, n):
    a, b = (torch.rand(n, n, device="cuda") - 0.5 for _ in range(2))
    truth, scale = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    got, other = (
        ((found.double() - truth).abs() / scale).max() for found in (operator("matmul", backend)(a, b), a @ b)
    )
    assert got <= 3 * other


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_places_past_two_to_the_31(backend):
    a = torch.zeros(2**17, 2**14 + 4, device="cuda")
    a[-1, -1] = 3
    b = torch.ones(2**14 + 4, 4, device="cuda")
    assert operator("matmul", backend)(a, b)[-1].tolist() == [3.0] * 4


# -------------------------------------------------------------------------------------- classes of precision


def planted(name: str, precision: str):
    """Return a session with one of the impostors as a kernel of that class."""
    return fakes.session(fakes.backend("fake", fakes.kernel("matmul", IMPOSTORS[name], precision=precision)))


PAIR = (torch.linspace(-1, 1, 40 * 30).view(40, 30), torch.linspace(1, 2, 30 * 20).view(30, 20))


@pytest.fixture
def restored():
    """Leave torch's setting as it was."""
    yield
    torch.set_float32_matmul_precision("highest")


def test_a_kernel_of_split_factors_serves_calls_that_allow_it_and_no_others():
    session = planted("3xtf32", "fp32x")
    operator = session.op("matmul", backend="fake")
    exact = PAIR[0].double() @ PAIR[1].double()
    for precision in ("fp32x", "tf32", "half", "high", "medium"):
        found = operator(*PAIR, precision=precision)
        assert torch.equal(found, IMPOSTORS["3xtf32"](*PAIR))
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
    for given in ({}, {"precision": "ieee32"}, {"precision": "highest"}):
        with pytest.raises(UnsupportedProblemError, match="class is fp32x, and the call needs ieee32"):
            operator(*PAIR, **given)


@pytest.mark.parametrize(
    ("impostor", "claims"), [("tf32", "fp32x"), ("half", "fp32x"), ("bf16x3", "fp32x"), ("tf32", "ieee32")]
)
def test_no_class_gets_a_coarser_ones_kernel(impostor, claims):
    operator = planted(impostor, claims).op("matmul", backend="fake")
    with pytest.raises(UnsupportedProblemError, match="wrong"):
        operator(*PAIR, precision=claims)


def test_torchs_setting_is_part_of_the_key(restored):
    session = planted("3xtf32", "fp32x")
    chosen, alone = session.op("matmul"), session.op("matmul", backend="fake")
    strict = session.explain("matmul", *PAIR)
    assert strict.problem["precision"] == "ieee32"
    assert "fp32x, and the call needs ieee32" in str(strict)
    assert torch.equal(chosen(*PAIR), torch.matmul(*PAIR))
    torch.set_float32_matmul_precision("high")
    loose = session.explain("matmul", *PAIR)
    assert loose.problem["precision"] == "tf32"
    assert "precision=tf32" in str(loose)
    assert torch.equal(alone(*PAIR), IMPOSTORS["3xtf32"](*PAIR))
    torch.set_float32_matmul_precision("highest")
    with pytest.raises(UnsupportedProblemError, match="needs ieee32"):
        alone(*PAIR)


def test_a_class_given_leaves_torchs_setting_as_it_is(restored):
    for word in ("highest", "high", "medium"):
        torch.set_float32_matmul_precision(word)
        before = torch.backends.mkldnn.matmul.fp32_precision, torch.backends.cuda.matmul.fp32_precision
        for precision in ("ieee32", "fp32x", "tf32", "half"):
            nxcore.ops.matmul(*PAIR, precision=precision)
        after = torch.backends.mkldnn.matmul.fp32_precision, torch.backends.cuda.matmul.fp32_precision
        assert after == before
        assert torch.get_float32_matmul_precision() == word


def test_torchs_setting_is_written_only_where_it_allows_another_class(restored, monkeypatch):
    written, write = [], classes._write
    monkeypatch.setattr(classes, "_write", lambda *given: (written.append(given[-1]), write(*given)))
    changes = {"highest": ("tf32", "half"), "high": ("ieee32", "half"), "medium": ("ieee32", "tf32")}
    for word, others in changes.items():
        torch.set_float32_matmul_precision(word)
        for given in ("ieee32", "tf32", "half"):
            SPEC.reference(*PAIR, given)
            SPEC.reference(*(x.double() for x in PAIR), given)
            assert len(written) == (2 if given in others else 0)
            written.clear()


def test_a_class_that_is_in_force_costs_no_context_of_a_generator(restored):
    torch.set_float32_matmul_precision("highest")
    assert classes.allowing("ieee32", PAIR[0]) is classes.allowing("highest", PAIR[0])
    assert classes.allowing("tf32", PAIR[0]) is not classes.allowing("tf32", PAIR[0])


def test_the_gradient_has_the_class_of_the_call():
    seen = []

    def gradients(grad, a, b, precision, mask):
        seen.append(precision)
        return nxcore.op("matmul_backward").spec.reference(grad, a, b, precision, mask)

    session = fakes.session(fakes.backend("fake", fakes.kernel("matmul_backward", gradients)))
    a, b, grad = PAIR[0].clone().requires_grad_(), PAIR[1], torch.ones(40, 20)
    for precision, wanted in (("tf32", "tf32"), (None, "ieee32")):
        session.op("matmul_backward", backend="fake")(grad, a.detach(), b, precision)
        assert seen[-1] == wanted
        assert SPEC.gradient.args(grad, (True, True), a, b, wanted)[3] == wanted
        session.op("matmul")(a, b, precision=precision).backward(grad)


def test_other_dtypes_have_no_class(restored):
    torch.set_float32_matmul_precision("high")
    halves = tuple(t.half() for t in PAIR)
    assert nxcore.explain("matmul", *halves).problem["precision"] is None


@BACKENDS
@for_each("shapes", [((70, 90), (90, 50)), ((3, 9, 20), (20, 8)), ((6,), (6, 4))], ids=str)
def test_split_factors_have_the_error_of_float32_on_ordinary_numbers(backend, device, shapes):
    a, b = (torch.randn(s, device=place(backend, device)) for s in shapes)
    got = operator("matmul", backend)(a, b, precision="fp32x")
    exact, scale = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    assert ((got.double() - exact).abs() <= 2.0**-20 * scale).all()
