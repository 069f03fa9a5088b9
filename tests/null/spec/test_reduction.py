"""A reduction in its fewest dimensions adds up what torch adds up."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nxcore.errors import InvalidInputError
from nxcore.ops import nxcore_ops
from nxcore.spec.problem import Problem, TensorMeta
from nxcore.spec.reduction import Reduction, canonical_dims, summed_dims

SPECS = {spec.name: spec for spec in nxcore_ops()}
SIZES = st.lists(st.integers(1, 4), min_size=0, max_size=4)


@st.composite
def strided(draw):
    """A tensor of small integers: permuted, sliced with steps, expanded."""
    x = torch.arange(5000.0).remainder(97)
    shape = draw(SIZES)
    steps = draw(st.lists(st.integers(1, 2), min_size=len(shape), max_size=len(shape)))
    full = [n * s for n, s in zip(shape, steps, strict=True)]
    x = x[: torch.Size(full).numel()].view(full)
    for d, step in enumerate(steps):
        x = x[(slice(None),) * d + (slice(None, None, step),)]
    x = x.permute(draw(st.permutations(range(len(shape)))))
    stretched = draw(st.lists(st.booleans(), min_size=x.ndim, max_size=x.ndim))
    return x[tuple(slice(0, 1) if e else slice(None) for e in stretched)].expand(x.shape)


def naive(found: Reduction, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Add up element by element what ``found`` describes."""
    data = x.as_strided((x.untyped_storage().nbytes() // 4,), (1,), 0)
    flat = out.as_strided((out.untyped_storage().nbytes() // 4,), (1,), 0)
    for kept in itertools.product(*(range(n) for n, _, _ in found.kept)):
        base = x.storage_offset() + sum(i * s for i, (_, s, _) in zip(kept, found.kept, strict=True))
        to = sum(i * o for i, (_, _, o) in zip(kept, found.kept, strict=True))
        flat[to] = sum(
            float(data[base + sum(i * s for i, (_, s) in zip(gone, found.reduced, strict=True))])
            for gone in itertools.product(*(range(n) for n, _ in found.reduced))
        )
    return out


@settings(max_examples=150, deadline=None)
@given(strided(), st.data())
def test_a_reduction_adds_up_what_torch_adds_up(x, data):
    dims = tuple(sorted(data.draw(st.sets(st.integers(0, x.ndim - 1)))) if x.ndim else ())
    want = torch.sum(x, dims, keepdim=True) if dims else x.clone()
    out = torch.full_like(want, torch.nan)
    found = Reduction.of(TensorMeta.of(x), dims, out.stride())
    assert torch.equal(naive(found, x, out), want)
    assert found.outputs == want.numel()
    assert found.terms == x.numel() // want.numel()
    assert all(n > 1 for n, *_ in (*found.kept, *found.reduced))


def problem(op, *args):
    return Problem.of(SPECS[op], args)


def filled(found, x, meta):
    return naive(found, x, meta.empty().fill_(torch.nan))


@settings(max_examples=100, deadline=None)
@given(strided(), st.data(), st.booleans())
def test_a_call_of_sum_is_the_reduction_that_it_asks_for(x, data, keepdim):
    dim = tuple(data.draw(st.sets(st.integers(0, x.ndim - 1)))) if x.ndim else None
    described = problem("sum", x, dim, keepdim)
    total = filled(Reduction.of_axes(described), x, described.outputs)
    assert torch.equal(total, torch.sum(x, dim, keepdim=keepdim))


def sizes_that_broadcast_to(shape):
    leads = st.integers(0, len(shape))
    return leads.flatmap(lambda lead: st.tuples(*(st.sampled_from((1, n)) for n in shape[lead:])))


@settings(max_examples=150, deadline=None)
@given(strided(), st.data())
def test_undoing_a_broadcast_adds_up_what_torch_adds_up(x, data):
    size = data.draw(sizes_that_broadcast_to(x.shape))
    described = problem("sum_to_size", x, size)
    found = Reduction.of_sum_to_size(described)
    assert (found is None) == described.view
    assert found is None or torch.equal(filled(found, x, described.outputs), x.sum_to_size(size))


@settings(max_examples=50, deadline=None)
@given(strided(), st.data())
def test_each_gradient_of_add_is_asked_for_or_not(x, data):
    sizes = [data.draw(sizes_that_broadcast_to(x.shape)) for _ in range(2)]
    both = Reduction.of_add_backward(problem("add_backward", x, *sizes, 1, (True, True)))
    assert both == tuple(Reduction.of_sum_to_size(problem("sum_to_size", x, size)) for size in sizes)
    assert Reduction.of_add_backward(problem("add_backward", x, *sizes, 1, (False, True))) == (None, both[1])
    assert Reduction.of_add_backward(problem("add_backward", x, *sizes, 1, (True, False))) == (both[0], None)


def test_an_axis_of_size_one_that_broadcasting_made_is_summed():
    """As in torch, whose result doesn't share memory with what it sums."""
    x = torch.ones(1, 4)
    assert x.sum_to_size(4).data_ptr() != x.data_ptr()
    assert x.sum_to_size(1, 4).data_ptr() == x.data_ptr()
    assert summed_dims((1, 4), (4,)) == (0,)
    assert summed_dims((1, 4), (1, 4)) == ()
    found = Reduction.of_sum_to_size(problem("sum_to_size", x, (4,)))
    assert found == Reduction(kept=((4, 1, 1),), reduced=())


def of(shape, dims, x=None):
    x = torch.zeros(shape) if x is None else x
    return Reduction.of(TensorMeta.of(x), dims, torch.sum(x, dims, keepdim=True).stride())


def test_neighbours_of_one_kind_are_merged():
    assert of((2, 3, 4, 5), (2, 3)) == Reduction(kept=((6, 20, 1),), reduced=((20, 1),))
    assert of((2, 3, 4, 5), (0, 1, 2, 3)) == Reduction(kept=(), reduced=((120, 1),))


def test_what_alternates_stays():
    assert of((2, 3, 4), (0, 2)) == Reduction(kept=((3, 4, 1),), reduced=((2, 12), (4, 1)))


def test_gaps_keep_dimensions_apart():
    x = torch.zeros(3, 8)[:, :4]
    assert of((3, 4), (0, 1), x) == Reduction(kept=(), reduced=((3, 8), (4, 1)))


def test_a_transposed_tensor_is_read_in_the_order_of_its_memory():
    assert of((3, 4), (0, 1), torch.zeros(4, 3).t()) == Reduction(kept=(), reduced=((12, 1),))


def test_axes_of_size_one_are_dropped():
    assert of((1, 5, 1), (0, 2)) == Reduction(kept=((5, 1, 1),), reduced=())


def test_no_elements_are_counted_as_none():
    assert (of((3, 0), (1,)).outputs, of((3, 0), (1,)).terms) == (3, 0)


DIM = st.one_of(
    st.none(),
    st.integers(-4, 4),
    st.lists(st.integers(-4, 4), max_size=3),
    st.lists(st.integers(-4, 4), max_size=3).map(tuple),
)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 3), DIM)
def test_the_axes_are_those_that_torch_sums_and_refuses(ndim, dim):
    x = torch.zeros((2, 3, 5)[:ndim])
    try:
        want = torch.sum(x, dim=dim, keepdim=True).shape
    except (IndexError, RuntimeError):
        with pytest.raises(InvalidInputError, match=r"dim must (be in|name each axis once)"):
            canonical_dims(dim, ndim)
        return
    dims = canonical_dims(dim, ndim)
    assert dims == tuple(sorted(dims))
    assert tuple(1 if i in dims else n for i, n in enumerate(x.shape)) == tuple(want)


@pytest.mark.parametrize("dim", [True, 0.0, "0"])
def test_an_axis_is_an_integer(dim):
    with pytest.raises(InvalidInputError, match="dim must be an integer or a sequence of integers, got"):
        canonical_dims(dim, 2)
    with pytest.raises(InvalidInputError, match="dim must hold integers, got"):
        canonical_dims((dim,), 2)
