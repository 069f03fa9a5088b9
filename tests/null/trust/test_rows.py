"""Rows: which results of a large call are audited, and that a kernel wrong in one of them is convicted."""

import random

import pytest
import torch

from nxcore.context import KernelWarning
from nxcore.spec.problem import Problem, leaves
from nxcore.trust.form import twin
from nxcore.trust.rows import DEPENDENCE, EDGE, PART, rows
from tests.null import fakes
from tests.null.fakes import SPECS
from tests.table import for_each

BF16 = torch.bfloat16


def described(*shape, dtype=torch.float32, device="meta"):
    return torch.empty(shape, dtype=dtype, device=device)


def images():
    return torch.randn(40, 64, 30, 30)


def chosen(op, *args):
    bound = SPECS[op].bind(*args)
    return rows(SPECS[op], bound, Problem.of(SPECS[op], bound).outputs, lambda n: 0)


def taken(op, *args):
    """The indices along each way; of random ones the first place."""
    return [
        {i for start, n in chunks for i in range(start, start + n)} for _, chunks in chosen(op, *args).cuts
    ]


def test_the_last_row_and_those_beside_the_edges_are_taken():
    (found,) = taken("sum", described(2**23 + 16, 256, dtype=BF16), -1)
    bytes_, elements = EDGE // 2 // 256, EDGE // 256
    assert {0, bytes_ - 1, bytes_, elements - 1, elements, 2**23 + 15} <= found, "at 2^31 bytes and elements"
    assert len(found) * 512 <= DEPENDENCE
    (found,) = taken("any", described(2**31 + 5, 1, dtype=torch.bool), -1)
    assert {0, EDGE - 1, EDGE, EDGE + 4} <= found
    planes, _ = taken("max_pool2d", described(700, 3, 1024, 1024), 2)
    assert {0, EDGE // 4 // 3 // 2**20, EDGE // 3 // 2**20, 699} <= planes


def test_columns_of_an_outer_sum_have_all_of_their_terms():
    (found,) = taken("sum", described(2**23, 256, dtype=BF16), 0)
    assert found == {0, 255}, "a column has 16 MB"
    assert chosen("sum", described(2**23 + 1, 256, dtype=BF16), 0) is None
    assert chosen("sum", described(2**24)) is None, "a sum of everything"


def test_rows_that_depend_on_much_are_cut_along_another_dimension_too():
    rows, columns = taken("matmul", described(9_000, 2**20), described(2**20, 9_000))
    assert 8_999 in rows & columns


def test_rows_of_a_call_on_the_cpu_are_a_thousandth_of_it_or_two():
    (found,) = taken("sum", described(2**20, 64, device="cpu"), 1)
    assert 2 < len(found) <= 2**20 // PART
    (found,) = taken("sum", described(12, 2**20, device="cpu"), 1)
    assert found == {0, 11}


CALLS = {
    "sum": lambda: (torch.randn(20_000, 128), -1),
    "outer": lambda: (torch.randn(128, 20_000), 0),
    "add": lambda: (torch.randn(3_000_000), torch.randn(3_000_000)),
    "broadcast": lambda: (torch.randn(40_000, 64), torch.randn(64)),
    "max_pool2d": lambda: (torch.randn(64, 40, 40, 40), 3),
    "matmul": lambda: (torch.randn(9_000, 200), torch.randn(200, 300)),
    "max": lambda: (torch.randn(20_000, 128), 1),
    "entropy": lambda: (torch.randn(20_000, 128),),
    "softmax_sum": lambda: (torch.randn(3, 600_000), torch.randn(3)),
    "batch_norm": lambda: (images(), torch.randn(64), torch.randn(64)),
    "batch_norm_backward": lambda: (images(), images(), torch.zeros(64), torch.ones(64), torch.randn(64)),
    "rms_norm": lambda: (torch.randn(20_000, 128), (128,), torch.randn(128)),
    "rms_norm_backward": lambda: (torch.randn(9000, 128), torch.randn(9000, 128), (128,), torch.randn(128)),
    "max_pool2d_with_offsets": lambda: (images(), 3),
    "avg_pool2d_backward": lambda: (images(), (40, 64, 60, 60), 2),
    "depthwise_conv2d_backward": lambda: (images(), images(), torch.randn(64, 1, 3, 3), 1, 1),
    "conv2d_backward": lambda: (images(), images(), torch.randn(64, 64, 1, 1)),
    "matmul_backward": lambda: (torch.randn(9000, 30), torch.randn(9000, 200), torch.randn(200, 30)),
    "weighted_sum_backward": lambda: (torch.randn(9000, 80), [torch.randn(9000, 80)] * 3, torch.randn(3)),
}
NAMES = {"outer": "sum", "broadcast": "add"}


@for_each("name", CALLS)
def test_a_kernel_that_is_wrong_in_the_last_row_alone_is_convicted_in_its_first_call(name):
    """As one with 32-bit offsets is beyond 2^31, in the last image, plane or column."""
    op = NAMES.get(name, name)
    args = SPECS[op].bind(*CALLS[name]())
    large = sum(t.numel() for t in leaves(args))

    def call(*given):
        result = twin(SPECS[op].reference(*given))
        if sum(t.numel() for t in leaves(given)) == large:
            last = next(leaves(result))
            last.view(-1)[-1] += 1000
        out = given[-1]
        return out.copy_(result) if op == "add" and out is not None else result

    session = fakes.session(fakes.backend("hostile", fakes.kernel(op, call, dtypes=(torch.float32,))))
    session.chooser.watches.room = lambda *_: False  # no memory for copies
    state = random.getstate()
    with session.use("hostile"), pytest.warns(KernelWarning, match="is in quarantine: wrong in a call"):
        result = fakes.called(session.op(op), args)
    right = SPECS[op].reference(*args)
    for mine, torchs in zip(leaves(result), leaves(right), strict=True):
        torch.testing.assert_close(mine, torchs)
    assert random.getstate() == state, "a capture takes what the program draws for a reason to refuse"
