"""Rows: which results of a large call are audited, and that a kernel wrong in one of them is convicted."""

import random

import pytest
import torch

from nxcore.choose.learn import watch
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


def large(spec):
    """The sample with the most elements of those that no verification runs, built; None of views alone."""
    smoke = {elements(s.build(spec, "cpu", torch.float32)) for s in spec.tagged("smoke")}
    plain = (s.build(spec, "cpu", torch.float32) for s in fakes.modest(spec) if "degenerate" not in s.tags)
    built = [args for args in plain if elements(args) not in smoke]
    kept = [args for args in built if not Problem.of(spec, args).view and all(map(plainly, leaves(args)))]
    return max(kept, key=elements, default=None)


def elements(args):
    return sum(t.numel() for t in leaves(args))


def plainly(tensor):
    return tensor.is_contiguous() and bool(tensor.isfinite().all())


LARGE = {op: args for op, spec in SPECS.items() if (args := large(spec)) is not None}
CASES = [(op, i) for op, args in LARGE.items() for i, _ in enumerate(leaves(SPECS[op].reference(*args)))]


def test_only_operators_whose_results_are_views_have_no_case():
    assert {op for op in SPECS if op not in LARGE} == {
        *("global_avg_pool2d_backward", "mean_backward", "sum_backward", "sum_to_size_backward")
    }


@for_each(("op", "which"), CASES)
def test_a_kernel_that_is_wrong_in_the_last_row_alone_is_convicted_in_its_first_call(op, which, monkeypatch):
    """As one with 32-bit offsets is beyond 2^31: in the last element of any result of a large call."""
    monkeypatch.setattr(watch, "HELD", 0)  # all calls are large
    args = LARGE[op]

    def call(*given):
        result = twin(SPECS[op].reference(*given))
        if elements(given) == elements(args):
            wrong = list(leaves(result))[which]
            last = wrong[(-1,) * wrong.ndim]
            last.copy_(last + 2**20 if last.is_floating_point() else last == 0)
        out = given[-1]
        return out.copy_(result) if op == "add" and out is not None else result

    session = fakes.session(fakes.backend("hostile", fakes.kernel(op, call, dtypes=(torch.float32,))))
    memory = 8 * sum(t.nbytes for t in leaves(args))  # not enough for copies
    session.chooser.watches.room = lambda nbytes, _: nbytes < memory
    state = random.getstate()
    with session.use("hostile"), pytest.warns(KernelWarning, match="is in quarantine: wrong in a call"):
        result = fakes.called(session.op(op), args)
    right = SPECS[op].reference(*args)
    for mine, torchs in zip(leaves(result), leaves(right), strict=True):
        torch.testing.assert_close(mine, torchs)
    assert random.getstate() == state, "a capture takes what the program draws for a reason to refuse"
