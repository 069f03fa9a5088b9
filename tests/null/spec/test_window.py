"""A window as data says what torch says: how many outputs, and where their inputs lie."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.nn import functional

from nxcore.errors import InvalidInputError
from nxcore.spec.window import Window, memory_format, pair
from tests.table import for_each

PAIRS = st.tuples(st.integers(1, 4), st.integers(1, 4))
IMAGES = st.tuples(st.integers(1, 13), st.integers(1, 13))


@given(IMAGES, PAIRS, PAIRS, st.tuples(st.integers(0, 2), st.integers(0, 2)), PAIRS, st.booleans())
def test_a_pool_has_torchs_outputs_and_inputs(image, kernel, stride, padding, dilation, ceil_mode):
    assume(all(2 * p <= k for p, k in zip(padding, kernel, strict=True)))
    x = torch.arange(1.0, 1 + image[0] * image[1]).view(1, 1, *image)
    try:
        want = functional.max_pool2d(x, kernel, stride, padding, dilation, ceil_mode=ceil_mode)
    except RuntimeError:
        with pytest.raises(InvalidInputError, match="x must be at least as large as the window"):
            Window.of_pool(image, kernel, stride, padding, dilation, ceil_mode)
        return
    window = Window.of_pool(image, kernel, stride, padding, dilation, ceil_mode)
    assert window.outputs == tuple(want.shape[-2:])
    padded = functional.pad(x, window.padded, value=-torch.inf)
    taps = torch.stack([padded[at] for at in window.slices()])
    assert taps.shape == (window.taps, *want.shape)
    assert torch.equal(taps.amax(0), want)


@given(IMAGES, PAIRS, PAIRS, st.tuples(st.integers(0, 5), st.integers(0, 5)), PAIRS)
def test_a_convolution_has_torchs_outputs_and_inputs(image, kernel, stride, padding, dilation):
    x = torch.arange(1.0, 1 + image[0] * image[1]).view(1, 1, *image)
    weight = torch.arange(1.0, 1 + kernel[0] * kernel[1]).view(1, 1, *kernel)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    if any(n + 2 * p < r for n, p, r in zip(image, padding, reach, strict=True)):
        with pytest.raises(InvalidInputError, match="x must be at least as large as the window"):
            Window.of_convolution(image, kernel, stride, padding, dilation)
        return
    want = functional.conv2d(x.double(), weight.double(), None, stride, padding, dilation)
    window = Window.of_convolution(image, kernel, stride, padding, dilation)
    assert window.outputs == tuple(want.shape[-2:])
    padded = functional.pad(x.double(), window.padded)
    got = sum(w * padded[at] for w, at in zip(weight.flatten(), window.slices(), strict=True))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("kernel", [(3, 5), (2, 4), (1, 1)])
def test_same_padding_is_torchs(kernel):
    window = Window.of_convolution((8, 9), kernel, 1, "same", (1, 2))
    assert window.outputs == (8, 9)
    total = tuple(d * (k - 1) for k, d in zip(kernel, (1, 2), strict=True))
    assert window.padding == tuple(t // 2 for t in total)


def test_a_pair_is_one_number_or_two():
    assert pair(3, "stride") == pair([3], "stride") == pair((3, 3), "stride") == (3, 3)


@pytest.mark.parametrize("value", [2.5, "3", (1, 2, 3), (), None, True, (1, 2.0)])
def test_a_pair_is_of_integers(value):
    with pytest.raises(InvalidInputError, match="stride must be an integer or a pair of integers"):
        pair(value, "stride")


@for_each(
    "x",
    [
        torch.empty(2, 3, 4, 5),
        torch.empty(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.empty(2, 1, 4, 5),
        torch.empty(2, 1, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.empty(2, 3, 1, 1),
        torch.empty(2, 3, 1, 1).contiguous(memory_format=torch.channels_last),
        torch.empty(1, 1, 1, 1),
        torch.empty(5, 4, 3, 2).permute(3, 2, 1, 0),
        torch.empty(1, 3, 4, 5).expand(2, 3, 4, 5),
        torch.empty(2, 1, 4, 5).expand(2, 3, 4, 5),
        torch.empty(0, 3, 4, 5),
        torch.empty(3, 4, 5),
        torch.empty(2, 6, 4, 5).contiguous(memory_format=torch.channels_last)[:, ::2],
    ],
    ids=lambda x: f"{tuple(x.shape)}-{x.stride()}",
)
def test_the_memory_format_is_the_one_that_torchs_pools_keep(x):
    like = functional.max_pool2d(x, 1) if x.numel() else x
    last = like.ndim == 4 and like.is_contiguous(memory_format=torch.channels_last)
    found = memory_format(x)
    if like.is_contiguous() and last:
        return  # one memory, two names
    assert found is (torch.channels_last if last and x.numel() else torch.contiguous_format)
