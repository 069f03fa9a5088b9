"""mean, amax, amin, max, min, argmax, argmin, any, all: what they have of torch's rules, on every backend."""

import pytest
import torch

import nxcore
from nxcore.errors import InvalidInputError, UnsupportedProblemError
from tests.ops.backends import operator, params, place
from tests.table import for_each

BACKENDS = pytest.mark.parametrize("backend", params())
ELEMENTS = ("amax", "amin")
INDEXED = ("max", "min", "argmax", "argmin")
FLAGS = ("any", "all")


def indices_of(result):
    return result[1] if isinstance(result, tuple) else result


def odd_rows() -> torch.Tensor:
    """Rows that the order of comparing might decide: ties, zeros of both signs, NaN, nothing finite."""
    x = torch.full((7, 1100), -torch.inf)
    x[1] = torch.inf
    x[2, 700], x[2, 31], x[2, 1099] = 2.5, 2.5, 2.5
    x[3, 1050] = x[3, 33] = torch.nan
    x[3, 2] = torch.inf
    x[4] = -0.0
    x[4, 900] = 0.0
    x[5] = torch.arange(1100.0).sub(550)
    x[6] = 1
    return x


@BACKENDS
@for_each("step", [1, 2], ids=["neighbours", "gaps"])
@for_each("name", ELEMENTS)
def test_a_run_whose_sum_is_nan_has_an_extremum(backend, device, name, step):
    """Both infinities, sums that overflow both ways, and a NaN among them."""
    x = torch.zeros(6, 300 * step)
    x[0, 3 * step], x[0, 200 * step] = torch.inf, -torch.inf
    x[1, : 150 * step], x[1, 150 * step :] = 3e38, -3e38
    x[2, 0], x[2, -step] = -torch.inf, torch.inf
    x[3] = -torch.inf
    x[4, 7 * step], x[4, 8 * step], x[4, 299 * step] = torch.inf, -torch.inf, torch.nan
    x[5, 17 * step] = -torch.nan
    x = x[:, ::step].to(place(backend, device))
    got = operator(name, backend)(x, 1)
    torch.testing.assert_close(got, getattr(torch, name)(x, 1), rtol=0, atol=0, equal_nan=True)
    assert got.isnan().tolist() == [False] * 4 + [True] * 2


@BACKENDS
@for_each("inner", [True, False], ids=["rows", "columns"])
@for_each("name", INDEXED)
def test_the_first_of_equals_counts_and_the_first_nan(backend, device, name, inner):
    x = odd_rows().to(place(backend, device))
    x, dim = (x, 1) if inner else (x.t().contiguous(), 0)
    got, want = operator(name, backend)(x, dim), getattr(torch, name)(x, dim)
    assert torch.equal(indices_of(got), indices_of(want))
    if isinstance(got, tuple):
        torch.testing.assert_close(got[0], want[0], equal_nan=True, rtol=0, atol=0)


@BACKENDS
@for_each("name", ELEMENTS)
def test_nan_is_the_result_wherever_it_lies(backend, device, name):
    x = odd_rows().to(place(backend, device))
    for given, dim in ((x, 1), (x.t().contiguous(), 0), (x, None)):
        got, want = operator(name, backend)(given, dim), getattr(torch, name)(given, dim or ())
        want = getattr(torch, name)(given, () if dim is None else dim)
        torch.testing.assert_close(got, want, equal_nan=True, rtol=0, atol=0)


@BACKENDS
@for_each("name", FLAGS)
def test_nan_and_the_smallest_numbers_are_not_zero(backend, device, name):
    x = torch.zeros(5, 70)
    x[0], x[1, 69], x[2], x[3, 5], x[4] = 1, torch.nan, torch.nan, -1e-40, -0.0
    x = x.to(place(backend, device))
    for given, dim in ((x, 1), (x.t().contiguous(), 0)):
        assert torch.equal(operator(name, backend)(given, dim), getattr(torch, name)(given, dim))


@pytest.mark.parametrize("name", [*ELEMENTS, "max", "min"])
def test_a_named_backend_has_no_gradient_of_an_element_and_says_so(name):
    x = torch.randn(6, 40, requires_grad=True)
    found = operator(name, "numba")(x, 1)
    with pytest.raises(UnsupportedProblemError, match=f"can't take this call of '{name}_backward'"):
        (found[0] if isinstance(found, tuple) else found).sum().backward()


@pytest.mark.parametrize(
    ("backend", "name"),
    [(b, n) for b in (None, "torch") for n in (*ELEMENTS, "max", "min")]
    + [(b, "mean") for b in ("numba", "triton", "cuda")],
)
def test_gradients_are_torchs(backend, device, name):
    x = torch.randn(6, 40, device=place(backend, device)).round()  # which has ties
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    got, want = operator(name, backend)(ours, 1), getattr(torch, name)(theirs, 1)
    got, want = (got[0], want[0]) if isinstance(got, tuple) else (got, want)
    grad = torch.randn_like(want)
    got.backward(grad)
    want.backward(grad)
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("name", ELEMENTS)
def test_the_gradient_of_nan_is_nan_as_torch_has_it(name):
    x = torch.tensor([[1.0, torch.nan], [2.0, 0.0]])
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    nxcore.op(name)(ours, 1).sum().backward()
    getattr(torch, name)(theirs, 1).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, equal_nan=True)
    assert torch.equal(nxcore.op(f"{name}_backward")(torch.ones(2), x, 1).isnan(), theirs.grad.isnan())


@for_each("name", [*ELEMENTS, *INDEXED, *FLAGS])
@for_each("dtype", [torch.int64, torch.uint8, torch.bool, torch.float64], ids=str)
def test_other_dtypes_as_torch(name, dtype, device):
    if name.startswith("arg") and dtype is torch.bool:
        with pytest.raises(InvalidInputError, match="x must not be bool"):
            nxcore.op(name)(torch.ones(3, dtype=dtype), 0)
        return
    x = torch.arange(35, device=device).remainder(3).view(5, 7).to(dtype)
    got, want = nxcore.op(name)(x, 1), getattr(torch, name)(x, 1)
    for a, b in zip(got, want, strict=True) if isinstance(got, tuple) else ((got, want),):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", [*ELEMENTS, *INDEXED])
def test_of_nothing_there_is_no_largest_element(name):
    with pytest.raises(InvalidInputError, match="dim must name axes that have elements, got 1 of shape"):
        nxcore.op(name)(torch.ones(3, 0), 1)
    got, want = nxcore.op(name)(torch.ones(3, 0), 0), getattr(torch, name)(torch.ones(3, 0), 0)
    assert indices_of(got).shape == indices_of(want).shape


def test_flags_and_means_of_nothing_are_torchs():
    x = torch.ones(3, 0)
    for name in (*FLAGS, "mean"):
        torch.testing.assert_close(nxcore.op(name)(x, 1), getattr(torch, name)(x, 1), equal_nan=True)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_an_index_among_all_elements_is_in_torchs_order(name):
    x = torch.randn(5, 7, 3)
    for given in (x.permute(2, 0, 1), x[:, ::2], x[:1].expand(4, 7, 3)):
        for backend in ("numba", "triton"):
            with nxcore.use("torch"):
                want = nxcore.op(name)(given, None, True)
            assert torch.equal(operator(name, backend)(given, None, True), want)


@pytest.mark.gpu
@for_each("name", ["sum", "mean", "amax", "amin", "any", "all"])
@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_places_past_two_to_the_31(name, backend):
    x = torch.zeros(2**31 + 64, dtype=torch.float16, device="cuda")
    x[-1] = -3.0 if name == "amin" else 3.0
    got = operator(name, backend)(x)
    torch.testing.assert_close(got, getattr(torch, name)(x))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_indices_where_the_input_has_two_to_the_31_elements(backend):
    x = torch.zeros(2**16, 2**15 + 1, dtype=torch.float16, device="cuda")
    x[-1, -1] = 3.0
    values, indices = operator("max", backend)(x, 1)
    assert (float(values[-1]), int(indices[-1]), int(indices[:-1].sum())) == (3.0, 2**15, 0)


def test_a_mirror_image_has_the_text_of_its_original():
    from nxcore.ops.amax import mirror, reference

    @mirror(reference, {"sequence": "list"})
    def smallest():
        """Return another.

        Examples
        --------
        none
        """

    summary, sections = smallest.__doc__.split("\n\n", 1)
    assert summary == "Return another."
    assert "dim : int, list of int or None" in sections
    assert "Raises" in sections
    assert sections.count("Examples") == 1
    assert "amax" not in sections.partition("Examples")[2]
