"""What is true of Numba alone; that kernels are right is the conformance suite's to say."""

import functools
import os
import threading
import warnings

import pytest
import torch

pytest.importorskip("numba")

import nxcore_numba

from nxcore.ops import nxcore_ops
from nxcore.trust.truth import agreement
from tests import fresh
from tests.null import calls
from tests.stand_ins import stand_in
from tests.table import for_each

nxcore_numba_has = stand_in(nxcore_numba)

CPU = {k.op: k for k in nxcore_numba.KERNELS if not k.variant}
CUDA = {k.op: k for k in nxcore_numba.KERNELS if k.variant}
SPECS = {spec.name: spec for spec in nxcore_ops()}
HALVES = (torch.float16, torch.bfloat16)


planned, refusal = (functools.partial(f, kernels=CPU) for f in (calls.planned, calls.refusal))


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_importing_the_plugin_does_not_import_numba():
    code = "import sys, nxcore_numba; nxcore_numba.nxcore_backend(); sys.exit('numba' in sys.modules)"
    assert fresh.run("-c", code).returncode == 0


@pytest.mark.parametrize(
    ("installed", "reason"), [("", "numba is not installed"), ("0.60.0", "needs numba >= 0.61, found 0.60.0")]
)
def test_probe_says_what_is_missing(nxcore_numba_has, installed, reason):
    nxcore_numba_has(_found=lambda name: installed)
    verdict = nxcore_numba.probe()
    assert not verdict
    assert verdict.reason == reason
    assert "pip install" in verdict.hint


def test_probe_of_cuda_knows_the_simulator(monkeypatch):
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    assert nxcore_numba.probe_cuda().simulated


def test_probe_of_cuda_says_what_is_missing(monkeypatch, nxcore_numba_has, cuda_answers):
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "0")
    cuda_answers(is_available=lambda: False)
    assert nxcore_numba.probe_cuda().reason == "torch sees no CUDA device"
    cuda_answers(is_available=lambda: True)
    nxcore_numba_has(_found=lambda name: "")
    assert nxcore_numba.probe_cuda().reason == "numba-cuda is not installed"


def test_doctor_has_a_line_for_each_part():
    assert [c.name for c in nxcore_numba.nxcore_doctor()] == ["numba", "numba threads", "numba CUDA"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALVES)
def test_every_bit_pattern_widens_as_in_torch(dtype):
    bits = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16)
    values = bits.view(dtype)
    # A number of another type makes the result no wider; a float32 tensor does, so that nothing is rounded.
    call, args = planned("add", values, torch.full((1,), -0.0))
    torch.testing.assert_close(call(*args), values.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", HALVES)
def test_rounding_is_torchs_bit_for_bit(dtype):
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(100_000, generator=generator) * 2.0 ** torch.randint(
        -40, 40, (100_000,), generator=generator
    )
    lower = torch.arange(-32768, 32767, dtype=torch.int32).to(torch.int16).view(dtype)
    upper = (lower.view(torch.int16) + 1).view(dtype)
    ties = (lower.double() + upper.double()) / 2  # halfway between neighbours
    largest = torch.finfo(dtype).max
    edges = torch.tensor(
        [largest, largest * 1.0001, 3.4e38, -3.4e38, torch.inf, -torch.inf, torch.nan, 1e-45, -0.0]
    )
    for values in (spread, ties.float(), edges):
        out = torch.empty(values.numel(), dtype=dtype)
        # Into `out` of a narrower type: torch would compute the same float32 and round it.
        call, args = planned("add", values, torch.full_like(values, -0.0), out=out)
        expected = values.to(dtype)
        result = call(*args)
        assert torch.equal(result.isnan(), expected.isnan())
        finite = ~expected.isnan()
        assert torch.equal(result.view(torch.int16)[finite], expected.view(torch.int16)[finite])


@pytest.mark.parametrize("dtype", HALVES)
def test_a_nan_of_any_payload_stays_nan(dtype):
    payloads = torch.tensor([0x7F800001, 0x7FFFFFFF, -1, 0x7FC00000], dtype=torch.int64).to(torch.int32)
    values = payloads.view(torch.float32)
    call, args = planned("add", values, torch.zeros(4), out=torch.empty(4, dtype=dtype))
    assert call(*args).isnan().all()


def calls():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 160, 333, generator=generator)
    xs = tuple(torch.randn(160, 333, generator=generator) for _ in range(5))
    return [
        ("softmax_sum", (xs, torch.randn(5, generator=generator)), {}),
        ("softmax_sum_backward", (x[0], xs, torch.randn(5, generator=generator)), {}),
        ("add", (x, x[0]), {"alpha": 0.3}),
        ("add_backward", (x, (3, 160, 333), (333,)), {"alpha": 0.3}),
        *(("sum", (x, dim), {}) for dim in (None, -1, 1, (0, 1), (0, 2))),
        ("sum_to_size", (x, (160, 1)), {}),
        ("gumbel_softmax_backward", (x[0], x[1], 0.5, x[2].abs() + 0.1), {}),
        *images(generator),
    ]


def images(generator):
    image = torch.randn(6, 8, 40, 36, generator=generator)
    weight = torch.randn(8, 1, 3, 3, generator=generator)
    size, window = tuple(image.shape), (3, 1, 1)
    _, offsets = SPECS["max_pool2d_with_offsets"].reference(image, *window)
    for x in (image, image.contiguous(memory_format=torch.channels_last)):
        yield "max_pool2d", (x, *window), {}
        yield "max_pool2d_with_offsets", (x, *window), {}
        yield "max_pool2d_backward", (x, offsets, size, *window), {}
        yield "avg_pool2d", (x, *window), {}
        yield "avg_pool2d_backward", (x, size, *window), {}
        yield "depthwise_conv2d", (x, weight, 1, 1), {}
        yield "depthwise_conv2d_backward", (x, x, weight, 1, 1), {}


@pytest.mark.slow
@for_each("call", calls(), ids=lambda c: c[0])
def test_the_number_of_threads_does_not_change_a_bit(call, threads):
    op, args, kwargs = call
    results = []
    for count in (1, 2, 2):
        threads(count)
        kernel, bound = planned(op, *args, **kwargs)
        results.append(kernel(*bound))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=0, atol=0)


def test_kernels_may_be_called_from_several_threads_at_once():
    call, args = planned("sum", torch.ones(400, 1000), -1)
    results = []
    workers = [threading.Thread(target=lambda: results.append(call(*args))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 4
    assert all(torch.equal(r, torch.full((400,), 1000.0)) for r in results)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_computes_on_one_thread():
    call, args = planned("sum", torch.ones(400, 1000), -1)
    call(*args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process of several threads
        child = os.fork()
    if child == 0:
        try:
            right = torch.equal(call(*args), torch.full((400,), 1000.0))
        finally:
            os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_cuda_takes_no_more_than_16_candidates(device):
    xs = tuple(torch.ones(3, device=device) for _ in range(17))
    logits = torch.zeros(17, device=device)
    assert refusal("softmax_sum", xs, logits, kernels=CUDA) == "takes at most 16 candidates, got 17"
    call, args = planned("softmax_sum", xs[:16], logits[:16], kernels=CUDA)
    torch.testing.assert_close(call(*args), xs[0])


def test_cuda_declines_bfloat16(device):
    x = torch.ones(3, dtype=torch.bfloat16, device=device)
    assert refusal("sum", x, kernels=CUDA) == "needs float32 or float16, got bfloat16"


def test_the_cpu_declines_other_devices():
    assert refusal("sum", torch.ones(3, device="meta")) == "needs CPU tensors, got meta"


def test_more_dimensions_than_kernels_walk_are_declined():
    x = torch.ones(3, 5, 3, 5, 3, 5).permute(0, 2, 4, 1, 3, 5)
    y = torch.ones(3, 3, 3, 5, 5, 5)
    assert "takes at most 4 dimensions after merging, got 6" in refusal("add", x, y)
    deep = torch.ones((2,) * 8)
    assert "summed dimensions after merging, got 4 and 4" in refusal("sum", deep, (0, 2, 4, 6))


def test_a_number_beyond_float32_is_infinite_without_a_warning():
    call, args = planned("add", torch.ones(3), 1e300)
    assert torch.equal(call(*args), torch.full((3,), torch.inf))


@pytest.mark.parametrize("misaligned", [False, True])
def test_outputs_too_large_for_the_caches_are_right_to_the_last_element(misaligned):
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(5 * 900_007 + 1, generator=generator)[int(misaligned) :]
    xs = tuple(x[: 5 * 900_007].view(5, 900_007))
    grad = torch.randn(900_007, generator=generator)
    call, args = planned("softmax_sum_backward", grad, xs, torch.randn(5, generator=generator))
    found = agreement(call, SPECS["softmax_sum_backward"], args)
    assert found.ok, found.reason


@pytest.mark.slow
def test_a_second_process_reads_the_cache_without_what_compiling_needs():
    code = """
import sys
import numba
import torch
from tests.plugins.test_numba import planned
from nxcore_numba import threads
call, args = planned("softmax_sum", tuple(torch.ones(5, 7) for _ in range(3)), torch.zeros(3))
torch.testing.assert_close(call(*args), torch.ones(5, 7))
lean = "numba.np.linalg" not in sys.modules
sys.exit(0 if lean or threads.RELEASE != threads.LOADED else 1)
"""
    fresh.run("-c", code, cwd=fresh.ROOT)  # fills the cache
    assert fresh.run("-c", code, cwd=fresh.ROOT).returncode == 0


FIRST_CALLS = """
import sys, torch
import nxcore_numba
from nxcore.ops import nxcore_ops
from nxcore.plugin import Problem
specs = {spec.name: spec for spec in nxcore_ops()}
for kernel in nxcore_numba.KERNELS:
    if kernel.variant:
        continue
    for sample in specs[kernel.op].tagged("smoke")[:2]:
        args = sample.build(specs[kernel.op], "cpu", torch.float32)
        problem = Problem.of(specs[kernel.op], args)
        if not problem.view and kernel.takes(problem):
            kernel.plan(problem)(*args)
"""


@pytest.mark.slow
def test_another_process_gets_every_kernel_from_disk():
    """A kernel that Numba's cache brings without what it needs would end the process."""
    fresh.run("-c", FIRST_CALLS, check=True)  # fills the cache
    assert fresh.run("-c", FIRST_CALLS).returncode == 0


@pytest.mark.slow
def test_a_first_call_imports_no_compiler_of_torch():
    code = """if True:
        import sys, torch, nxcore
        xs = [torch.randn(4, 3, 8, 8) for _ in range(3)]
        nxcore.op("softmax_sum", backend="numba")(xs, torch.randn(3))
        sys.exit("torch._dynamo" in sys.modules or "sympy" in sys.modules)
    """
    assert fresh.run("-c", code).returncode == 0


def tiles(kernel_size=3):
    """Return images that are cut into tiles: long rows, many rows, many channels; and both at once."""
    for shape in ((1, 2, 3, 2600), (1, 1, 700, 90), (2, 70, 40, 41)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(2))
        yield x, kernel_size
        yield x.contiguous(memory_format=torch.channels_last), kernel_size


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "stride"), [(torch.float32, 1), (torch.bfloat16, 2), (torch.float32, 3)])
def test_tiles_meet_without_a_seam(dtype, stride):
    for x, k in tiles():
        x = x.to(dtype)
        weight = torch.randn(x.shape[1], 1, k, k, generator=torch.Generator().manual_seed(3)).to(dtype)
        window, size = (k, stride, k // 2), tuple(x.shape)
        out, offsets = SPECS["max_pool2d_with_offsets"].reference(x, *window)
        form = {"memory_format": torch.channels_last} if offsets.stride(1) == 1 else {}
        for op, args, kwargs in (
            ("max_pool2d", (x, *window), {"return_indices": True}),
            ("max_pool2d_with_offsets", (x, *window), {}),
            ("max_pool2d_backward", (out, offsets, size, *window), {}),
            ("avg_pool2d", (x, *window), {}),
            ("avg_pool2d_backward", (out, size, *window), form),
            ("depthwise_conv2d", (x, weight, stride, k // 2), {}),
            ("depthwise_conv2d_backward", (out, x, weight, stride, k // 2), {}),
        ):
            call, bound = planned(op, *args, **kwargs)
            found = agreement(call, SPECS[op], bound)
            assert found.ok, (op, tuple(x.shape), x.stride(), found.reason)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_tap_in_the_padding_is_never_named(layout):
    x = torch.full((1, 2, 5, 6), -torch.inf).contiguous(memory_format=layout)
    for window in ((3, 1, 1), (2, 1, 1, 2), (2, 3, 1, 1, True)):
        for op, kwargs in (("max_pool2d_with_offsets", {}), ("max_pool2d", {"return_indices": True})):
            call, args = planned(op, x, *window, **kwargs)
            for got, wanted in zip(call(*args), SPECS[op].reference(*args), strict=True):
                assert torch.equal(got, wanted)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_what_is_not_finite_reaches_the_filters_taps_that_see_it(value, layout):
    """The flat dot product multiplies it by the zeros that stand for a row's end."""
    x = torch.ones(2, 3, 7, 6).contiguous(memory_format=layout)
    x[0, 1, 2, 5] = value  # the last column: no window's first tap sees it
    grad, weight = torch.ones(2, 3, 5, 4), torch.ones(3, 1, 3, 3)
    call, args = planned("depthwise_conv2d_backward", grad, x, weight, output_mask=(False, True))
    _, got = call(*args)
    wanted = torch.full((3, 1, 3, 3), 40.0)
    wanted[1, 0, :, 2] = value
    assert torch.equal(got.nan_to_num(nan=-1), wanted.nan_to_num(nan=-1))


def test_no_module_is_mistaken_for_numba_cuda() -> None:
    """numba-cuda's import hook recurses without end on a module whose full name holds "numba.cuda"."""
    from nxcore_numba import KERNELS

    assert not [k.target for k in KERNELS if "numba.cuda" in k.target]


def test_a_second_plan_reads_nothing_from_disk(monkeypatch):
    """To load a kernel again takes longer than most calls."""
    from nxcore_numba import reduce

    planned("sum", torch.randn(7, 5), 0)
    read = []
    for kernel in (reduce.serial, reduce.parallel):
        monkeypatch.setattr(kernel._cache, "_load_overload", lambda *args: read.append(args))
    call, args = planned("sum", torch.randn(9, 5), 0)
    assert read == []
    torch.testing.assert_close(call(*args), args[0].sum(0))
