"""Running statistics that are updated together at the end of a block are those of updates one by one."""

import copy

import pytest
import torch
from torch import nn

from nxcore.graphs.late import LATE, late
from nxcore.nn.modules import track


def norms():
    torch.manual_seed(0)
    made = [nn.BatchNorm2d(c, momentum=m) for c, m in ((3, 0.1), (4, 0.1), (5, 0.25), (3, 0.0))]
    for norm in made:
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var)
    return made


def batch(norm, seed):
    made = torch.Generator().manual_seed(seed)
    return [torch.randn(norm.num_features, generator=made).abs() for _ in range(2)]


def states(found):
    return [{name: b.clone() for name, b in norm.state_dict().items()} for norm in found]


@pytest.fixture
def pair():
    plain, together = norms(), norms()
    for i, norm in enumerate(plain):
        track(norm, *batch(norm, i))
    return plain, together


def test_updates_wait_for_the_end_and_have_the_same_bits(pair):
    plain, together = pair
    before = [norm._buffers["running_mean"].clone() for norm in together]
    held = [norm._buffers for norm in together]
    with late():
        tensors = [norm._buffers["running_mean"] for norm in together]
        for i, norm in enumerate(together):
            track(norm, *batch(norm, i))
        for tensor, was in zip(tensors, before, strict=True):
            torch.testing.assert_close(tensor, was, rtol=0, atol=0)
    assert [norm._buffers for norm in together] == held
    assert all(type(norm._buffers) is dict for norm in together)
    for got, want in zip(states(together), states(plain), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_updates_are_unseen_by_an_earlier_call_that_torch_served(pair):
    norm = pair[1][0]
    first = norm(torch.randn(2, 3, 4, 4))  # torch's own, which saves the statistics
    with late():
        track(norm, *batch(norm, 0))
    first.sum().backward()


READS = {
    "attribute": lambda norm: norm.running_mean,
    "state": lambda norm: norm.state_dict()["running_mean"],
    "buffers": lambda norm: next(norm.buffers()),
    "named": lambda norm: dict(norm.named_buffers())["running_mean"],
    "copy": lambda norm: copy.deepcopy(norm).running_mean,
}


@pytest.mark.parametrize("read", READS)
def test_who_looks_sees_the_new_value(pair, read):
    plain, together = pair
    with late():
        for i, norm in enumerate(together):
            track(norm, *batch(norm, i))
        for norm, other in zip(together, plain, strict=True):
            torch.testing.assert_close(READS[read](norm), other.running_mean, rtol=0, atol=0)
    for got, want in zip(states(together), states(plain), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_a_norm_that_is_called_again_has_both_updates_in_order(pair):
    plain, together = pair
    track(plain[0], *batch(plain[0], 7))
    x = torch.randn(2, 3, 4, 4)
    want = plain[0].eval()(x)
    with late():
        for i, norm in enumerate(together):
            track(norm, *batch(norm, i))
        track(together[0], *batch(together[0], 7))
        torch.testing.assert_close(together[0].eval()(x), want, rtol=0, atol=0)
    for got, was in zip(states(together), states(plain), strict=True):
        torch.testing.assert_close(got, was, rtol=0, atol=0)


def test_a_buffer_that_is_exchanged_or_deleted_stays_so(pair):
    _, together = pair
    first, second = together[:2]
    mine = torch.full((3,), 5.0)
    with late():
        for i, norm in enumerate((first, second)):
            track(norm, *batch(norm, i))
        first.running_mean = mine
        del second.num_batches_tracked
    assert first.running_mean is mine
    assert mine.tolist() == [5.0] * 3
    assert not hasattr(second, "num_batches_tracked")


def test_an_exception_loses_no_update_and_a_block_within_ends_with_the_outer_one(pair):
    plain, together = pair

    def fails():
        with late():
            for i, norm in enumerate(together):
                track(norm, *batch(norm, i))
        assert type(together[0]._buffers) is not dict
        raise ValueError("in between")

    with pytest.raises(ValueError, match="in between"), late():
        fails()
    assert LATE.get() is None
    for got, want in zip(states(together), states(plain), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
