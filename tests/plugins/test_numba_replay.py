"""Numba's kernels without the interpreter return the bits of their plans, on as many threads."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

pytest.importorskip("numba")

import nxcore_numba

from nxcore.interop import native
from nxcore.ops import nxcore_ops
from nxcore.plugin import Problem
from tests.table import for_each

EXTENSION = native.found().extension

if EXTENSION is None:
    pytest.skip(f"nxcore-native: {native.found().detail}", allow_module_level=True)

KERNELS = {k.op: k for k in nxcore_numba.KERNELS if k.replay and not k.variant}
SPECS = {spec.name: spec for spec in nxcore_ops()}
# Numba compiles each kernel anew for these: seconds.
IN_16_BITS = [pytest.param(dtype, marks=pytest.mark.slow) for dtype in (torch.float16, torch.bfloat16)]


def planned(op, args):
    """Return a call's plan twice: repeated without the interpreter, and as it is."""
    problem = Problem.of(SPECS[op], args)
    return (KERNELS[op].plan(problem), KERNELS[op].planner(problem)) if KERNELS[op].takes(problem) else None


def tensors(result):
    if isinstance(result, (tuple, list)):
        return [t for part in result for t in tensors(part)]
    return [] if result is None else [result]


@pytest.mark.parametrize("dtype", [torch.float32, *IN_16_BITS], ids=str)
@for_each("op", sorted(KERNELS))
def test_both_return_the_same_bits(op, dtype):
    spec, compiled = SPECS[op], 0
    for sample in spec.tagged("smoke"):
        args = sample.build(spec, "cpu", dtype)
        if not (found := planned(op, args)):
            continue
        made, call = found
        made(*args)
        compiled += made.programs()
        got, want = made(*args), call(*args)
        assert type(got) is type(want)
        for a, b in zip(tensors(got), tensors(want), strict=True):
            assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride()), sample.name
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    assert compiled


def test_a_number_in_memory_of_one_call_is_not_recorded():
    """A repeated launch would read that memory after it was freed."""
    for other, programs in ((2, 0), (torch.ones(16), 1)):
        args = SPECS["add"].bind(torch.ones(16), other)
        made, _ = planned("add", args)
        for _ in range(3):
            made(*args)
        assert made.programs() == programs


def test_it_follows_torchs_threads():
    x, y = torch.randn(2, 64, 64, 64).unbind()
    before = torch.get_num_threads()
    try:
        for made_with in (2, 1):
            torch.set_num_threads(made_with)
            made, call = planned("add", SPECS["add"].bind(x, y))
            made(x, y, 1, None)
            assert made.programs() == 1
            for threads in (1, 2, 1):
                torch.set_num_threads(threads)
                assert torch.equal(made(x, y, 1, None), call(x, y, 1, None))
    finally:
        torch.set_num_threads(before)


def test_threads_of_the_program_share_a_plan():
    args = SPECS["max_pool2d"].bind(torch.randn(8, 16, 32, 32), 3, 1, 1)
    made, call = planned("max_pool2d", args)
    want = call(*args)

    def work(_):
        assert all(torch.equal(made(*args), want) for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_in_inference_mode_the_result_is_an_inference_tensor():
    x, y = torch.randn(2, 4, 8).unbind()
    made, _ = planned("add", SPECS["add"].bind(x, y))
    made(x, y, 1, None)
    with torch.inference_mode():
        assert made(x, y, 1, None).is_inference()
    assert not made(x, y, 1, None).is_inference()


def test_a_plan_keeps_its_tables():
    import gc

    x = torch.randn(2, 3, 8, 8)
    args = SPECS["max_pool2d"].bind(x, 3, 1, 1)
    made, call = planned("max_pool2d", args)
    want = call(*args)
    del call
    for _ in range(20):
        planned("max_pool2d", SPECS["max_pool2d"].bind(torch.randn(3, 5, 9, 9), 3, 2, 1))
    gc.collect()
    assert torch.equal(made(*args), want)
