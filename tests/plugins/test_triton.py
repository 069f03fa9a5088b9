"""What is peculiar to the Triton plugin; that its kernels are right is the conformance suite's business."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import nxcore.ops
from nxcore import plugin
from nxcore.spec.problem import Problem, TensorMeta
from tests import fresh
from tests.null import calls
from tests.null.calls import problem
from tests.stand_ins import stand_in

nxcore_triton = pytest.importorskip("nxcore_triton")

nxcore_triton_has = stand_in(nxcore_triton)
nxcore_triton_tile_has = stand_in(nxcore_triton.tile)

SPECS = {spec.name: spec for spec in nxcore.ops.nxcore_ops()}
KERNELS = {kernel.op: kernel for kernel in nxcore_triton.KERNELS}
needs_interpreter = pytest.mark.skipif(
    not nxcore_triton.tile.INTERPRETED, reason="TRITON_INTERPRET=1 was not set before triton was imported"
)


run, refusal = (functools.partial(f, kernels=KERNELS) for f in (calls.run, calls.refusal))


class TestMachine:
    def test_importing_the_plugin_imports_no_triton(self):
        code = (
            "import sys, nxcore_triton as n; n.nxcore_backend(); n.probe(); sys.exit('triton' in sys.modules)"
        )
        assert fresh.run("-c", code).returncode == 0

    def test_no_triton(self, nxcore_triton_has):
        nxcore_triton_has(_installed=lambda: None)
        assert nxcore_triton.probe().reason == "triton is not installed"
        assert nxcore_triton.probe().hint == "pip install 'triton>=3.6'"

    @pytest.mark.parametrize("found", ["3.5.1", "2.10", "3"])
    def test_old_triton(self, nxcore_triton_has, found):
        nxcore_triton_has(_installed=lambda: found)
        assert nxcore_triton.probe().reason == f"needs triton >= 3.6, found {found}"

    @pytest.mark.parametrize("found", ["3.6.0", "3.10.0+git1234", "4.0"])
    def test_new_triton(self, nxcore_triton_has, nxcore_triton_tile_has, found):
        nxcore_triton_has(_installed=lambda: found)
        nxcore_triton_tile_has(INTERPRETED=True)
        assert nxcore_triton.probe()

    def test_no_device(self, nxcore_triton_has, nxcore_triton_tile_has, cuda_answers):
        nxcore_triton_has(_installed=lambda: "3.6.0")
        nxcore_triton_tile_has(INTERPRETED=False)
        cuda_answers(is_available=lambda: False)
        assert nxcore_triton.probe().reason == "torch sees no CUDA device"
        assert not nxcore_triton.probe().simulated

    def test_the_interpreter_counts_as_simulation(self, nxcore_triton_has, nxcore_triton_tile_has):
        nxcore_triton_has(_installed=lambda: "3.6.0")
        nxcore_triton_tile_has(INTERPRETED=True)
        verdict = nxcore_triton.probe()
        assert verdict.simulated
        assert "TRITON_INTERPRET=1" in verdict.reason

    @pytest.mark.parametrize("cuda", [True, False])
    def test_doctor_takes_a_missing_toolkit_for_a_fault_where_there_is_a_device(
        self, nxcore_triton_has, cuda, cuda_answers
    ):
        nxcore_triton_has(_installed=lambda: "2.1.0")
        cuda_answers(is_available=lambda: cuda)
        (check,) = nxcore_triton.nxcore_doctor()
        assert (check.name, check.ok, check.detail) == ("triton", not cuda, "2.1.0")
        assert check.fix == "pip install 'triton>=3.6'"

    @pytest.mark.parametrize(
        ("found", "detail", "fix"),
        [
            ("3.6.0", "3.6.0", ""),
            ("3.7.1+git12", "3.7.1+git12", ""),
            ("3.8.0", "3.8.0; 3.6 to 3.7 are tested", "pip install 'triton<3.8'"),
            ("4.0", "4.0; 3.6 to 3.7 are tested", "pip install 'triton<3.8'"),
        ],
    )
    def test_doctor_says_of_a_newer_triton_what_is_tested(self, nxcore_triton_has, found, detail, fix):
        nxcore_triton_has(_installed=lambda: found)
        check = next(iter(nxcore_triton.nxcore_doctor()))
        assert (check.name, check.ok, check.detail, check.fix) == ("triton", True, detail, fix)

    def test_the_newest_that_is_tested_is_the_suites_and_the_readmes(self):
        root = Path(__file__).parents[2]
        oldest, newest = (".".join(map(str, v)) for v in (nxcore_triton.TRITON, nxcore_triton.NEWEST))
        assert f"\ntriton=={newest}." in (root / "constraints.txt").read_text(encoding="utf-8")
        readme = " ".join((root / "README.md").read_text(encoding="utf-8").split())
        assert f"Triton {oldest} to {newest}" in readme


@needs_interpreter
class TestRefusals:
    def test_device(self):
        x = torch.zeros(4, device="meta")
        assert refusal("sum", x) == "needs CPU tensors under TRITON_INTERPRET=1, got meta"

    def test_device_of_the_compiler(self, nxcore_triton_tile_has):
        nxcore_triton_tile_has(INTERPRETED=False)
        assert refusal("sum", torch.zeros(4)) == "needs CUDA tensors, got cpu"

    def test_dtype(self):
        assert refusal("sum", torch.zeros(4, dtype=torch.float64)) == (
            "needs float32, float16 or bfloat16, got float64"
        )

    def test_scalar_tensor_of_another_dtype(self):
        reason = refusal("add", torch.zeros(4, dtype=torch.float16), torch.tensor(1.0))
        assert reason == "needs a 0-d operand of the other's dtype, got float16 and float32"

    def test_out_that_shares_memory(self):
        out = torch.zeros(1).expand(4)
        assert "share memory, got strides (0,)" in refusal("add", torch.zeros(4), torch.zeros(4), out=out)

    def test_too_many_dimensions(self):
        x, y = torch.zeros(2, 1, 3, 1, 2), torch.zeros(1, 3, 1, 2, 1)
        assert "at most 4 dimensions after merging, got 5: (2, 3, 3, 2, 2)" in refusal("add", x, y)

    def test_too_many_summed_dimensions(self):
        reason = refusal("sum", torch.zeros((2,) * 8), (0, 2, 4, 6))
        assert reason == "takes at most 3 kept and 3 summed dimensions after merging, got 4 and 4"

    def test_offsets_of_another_dtype(self):
        grad = torch.ones(1, 1, 2, 2)
        reason = refusal("max_pool2d_backward", grad, grad.long(), (1, 1, 4, 4), 2)
        assert reason == "needs uint8 or int32 offsets, got int64"


@needs_interpreter
class TestInterpreted:
    def test_bfloat16_is_rounded_to_nearest(self):  # the interpreter's own cast cuts off
        x = torch.randn(4096, generator=torch.Generator().manual_seed(0))
        zero = torch.zeros(4096, dtype=torch.bfloat16)
        x[:3] = torch.tensor([torch.nan, torch.inf, torch.finfo(torch.float32).max])
        rounded = run("add", x, zero, out=torch.empty(4096, dtype=torch.bfloat16))
        torch.testing.assert_close(rounded, x.bfloat16(), rtol=0, atol=0, equal_nan=True)

    def test_bfloat16_keeps_subnormal_numbers(self):
        tiny = torch.arange(1, 100, dtype=torch.int16).view(torch.bfloat16)
        assert torch.equal(run("add", tiny, torch.zeros_like(tiny)), tiny)

    def test_wider_out_gets_the_rounded_result(self):  # as torch: promoted first, then copied
        x, y = (torch.randn(300, dtype=torch.float16) for _ in range(2))
        out = torch.empty(300)
        assert run("add", x, y, out=out) is out
        assert torch.equal(out, torch.add(x, y, out=torch.empty(300)))

    def test_strided_out(self):
        out = torch.full((5, 66), 7.0)
        x, y = torch.randn(5, 33), torch.randn(33)
        run("add", x, y, out=out[:, ::2])
        assert torch.equal(out[:, ::2], x + y)
        assert (out[:, 1::2] == 7).all()

    def test_gradient_of_what_was_not_broadcast_is_grad_itself(self):
        grad = torch.randn(6, 50)
        x_grad, y_grad = run("add_backward", grad, (6, 50), (50,), 2.0)
        assert x_grad.data_ptr() == grad.data_ptr()
        torch.testing.assert_close(y_grad, 2 * grad.sum(0))

    def test_gradient_of_a_leading_axis_of_size_one_is_a_sum(self):
        grad = torch.ones(1, 4)
        assert run("add_backward", grad, (1, 1), (4,))[1].data_ptr() != grad.data_ptr()
        assert torch.equal(run("sum_to_size", grad, (4,)), torch.ones(4))

    def test_second_pass_of_a_sum(self, monkeypatch):
        x = torch.randn(3, 40_000)
        for name, value in (("LARGE", 1), ("TERMS", 4096)):
            monkeypatch.setattr(nxcore_triton.tile, name, value)
        for half in (x, x.half()):
            for dim, tensor in ((1, half), (0, half.t().contiguous()), (0, half.t())):
                wanted = tensor.double().sum(dim)
                torch.testing.assert_close(
                    run("sum", tensor, dim), wanted.to(half.dtype), rtol=1e-3, atol=1e-3
                )

    def test_four_dimensions(self):
        x, y = torch.randn(3, 1, 5, 1), torch.randn(1, 4, 1, 6)
        assert torch.equal(run("add", x, y), x + y)


def test_scans_take_float32_on_a_gpu(nxcore_triton_tile_has):
    nxcore_triton_tile_has(INTERPRETED=False)
    for dtype in (torch.float32, torch.half):
        x = TensorMeta((3, 8), (8, 1), dtype, torch.device("cuda"))
        assert KERNELS["cumsum"].accepts(problem("cumsum", x, 1, torch.float32))


class TestLayout:
    def test_collapse_merges_what_every_operand_allows(self):
        sizes, strides = plugin.collapse((64, 16, 1, 32, 32), (16384, 1024, 9, 32, 1), (0, 1, 0, 0, 0))
        assert sizes == (64, 16, 1024)
        assert strides == ((16384, 1024, 1), (0, 1, 0))

    def test_collapse_follows_the_memory_of_the_first(self):
        assert plugin.collapse((5, 7), (1, 5), (1, 5)) == ((35,), ((1,), (1,)))

    def test_alike_ignores_axes_of_size_one(self):
        cpu = torch.device("cpu")
        a = TensorMeta((1, 3, 4), (99, 4, 1), torch.float32, cpu)
        assert plugin.alike(a, TensorMeta((3, 4), (4, 1), torch.float32, cpu))
        assert not plugin.alike(a, TensorMeta((3, 4), (1, 3), torch.float32, cpu))
        assert not plugin.alike(*(TensorMeta((3,), (2,), torch.float32, cpu),) * 2)


@pytest.mark.slow
def test_every_kernel_compiles(tmp_path):
    """The interpreter runs Python; this asks the compiler, which needs no GPU either."""
    pytest.importorskip("triton.backends.nvidia")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    ran = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    counts = dict(line.split() for line in ran.stdout.splitlines())
    assert set(counts) == {
        *("blend", "spread", "finish", "add_flat", "add_tiles", "add_up"),
        *("average", "share_out", "pool", "collect", "correlate", "dots", "dots_of_strips"),
        *("look", "look_back", "dots_of_tap"),
        *("find", "largest", "moments", "normalise"),
        *("convolve", "mix", "multiply", "unmix", "to_image", "to_points"),
        *("entropy", "entropy_backward", "gumbel_softmax", "gumbel_softmax_backward"),
        *("group_norm", "group_norm_backward", "channel", "rope", "embedding"),
        *("scans", "norms", "norms_backward", "columns_of", "fold", "whole_backward"),
        *("softmaxes", "softmaxes_backward"),
        *("cross_entropy", "cross_entropy_backward", "total_of"),
    }


def compile_smoke_samples():
    """Compile for sm_90 what the smoke samples and a few others launch; print the versions of each kernel."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    class Driver:
        def get_current_target(self):
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self):
            return 0

        def get_current_stream(self, device):
            return 0

    compiled, launch = {}, JITFunction.run

    def compile_only(self, *args, grid, warmup, **kwargs):
        version = launch(self, *args, grid=grid, warmup=True, **kwargs)
        assert version.asm["cubin"]
        strict = self.__name__ not in ("convolve", "dots", "multiply") or "mma" not in version.asm["ptx"]
        assert strict, "a product on tensor cores isn't float32's"
        compiled.setdefault(self.__name__, set()).add(version.hash)

    def describe(value, dtype):
        if hasattr(value, "build"):
            return value.build("cpu", dtype, 0).to("meta")
        return tuple(describe(v, dtype) for v in value) if isinstance(value, tuple) else value

    triton.runtime.driver.set_active(Driver())
    JITFunction.run = compile_only
    for op, kernel in KERNELS.items():
        spec = SPECS[op]
        more = {"both_broadcast", "stacked_transposed", "stride_zero_grad", "around_the_middle"}
        more |= {"more_taps_than_a_byte_holds", "indices", "formats_differ", "window_as_large_as_the_image"}
        more |= {"longer_than_a_block"}
        smoke = spec.tagged("smoke")
        # The others launch what amax, max, argmax and any do, with elements turned round.
        few = smoke[:1] if op in ("amin", "min", "argmin", "all") else smoke
        for sample in spec.samples:
            if sample not in few and (few is not smoke or sample.name not in more):
                continue
            leads = sample in smoke[:1]
            for dtype in (torch.float32, *([torch.bfloat16] if leads else ())):
                if dtype not in kernel.dtypes:
                    continue
                kwargs = {k: describe(v, dtype) for k, v in sample.kwargs.items()}
                args = spec.bind(*(describe(v, dtype) for v in sample.args), **kwargs)
                kernel.plan(Problem.of(spec, args))(*args)
    x = torch.empty(8, 2**30, device="meta")  # offsets beyond 32 bits
    for op, args in (
        ("add", (x, x[:, :1])),
        ("sum", (x, None)),
        ("softmax_sum", (torch.stack((x, x), -1).unbind(-1), x[:2, 0])),
        ("avg_pool2d", (x.view(8, 2, 2**15, 2**14), 3, 1, 1)),
        ("max_pool2d", (x.view(8, 2, 2**15, 2**14), 30)),
        ("conv2d", (x.view(4, 1, 2**17, 2**14), x[:1, :9].view(1, 1, 3, 3))),
        ("conv2d_backward", (*(x.view(2, 1, 2**17, 2**15),) * 2, x[:1, :9].view(1, 1, 3, 3), 1, 1)),
        ("depthwise_conv2d", (x.view(4, 1, 2**17, 2**14), x[:1, :9].view(1, 1, 3, 3), 1, 1)),
    ):
        bound = SPECS[op].bind(*args)
        KERNELS[op].plan(Problem.of(SPECS[op], bound))(*bound)
    x, w = torch.empty(2, 1, 20, 20, device="meta"), torch.empty(1, 1, 13, 13, device="meta")
    grad = torch.empty(2, 1, 8, 8, device="meta")
    for op, args in (("depthwise_conv2d", (x, w)), ("depthwise_conv2d_backward", (grad, x, w))):
        bound = SPECS[op].bind(*args)
        KERNELS[op].plan(problem(op, *args))(*bound)
    x, y = (torch.empty(64, 32, device="meta") for _ in range(2))
    before = len(compiled["add_flat"])
    for alpha in (0, 1, 1.0, 2.5):
        KERNELS["add"].plan(problem("add", x, y, alpha=alpha))(x, y, alpha, None)
    assert len(compiled["add_flat"]) <= before + 1, "alpha must not be specialised on"
    for name, versions in compiled.items():
        print(name, len(versions))


@pytest.mark.gpu
class TestLaunch:
    def test_the_version_for_aligned_pointers_is_kept(self):
        import nxcore_triton.add as module
        from nxcore_triton.launch import Launch

        device = torch.device("cuda", torch.cuda.current_device())
        launch = Launch(module.add_flat, (4,), device, RESULT=module.tl.float32, BLOCK=1024)
        x, y, out = (torch.randn(4097, device=device) for _ in range(3))
        for start in (0, 0, 1, 0):  # compiled, kept, not aligned, kept
            a, b, c = (t[start : start + 4096] for t in (x, y, out.fill_(7)))
            launch((a, b, c), a, b, c, 0.5, 4096)
            assert launch.aligned is not None
            assert torch.allclose(c, a + 0.5 * b)

    def test_another_stream(self):
        x = torch.randn(1 << 20, device="cuda")
        call = KERNELS["sum"].plan(problem("sum", x))
        with torch.cuda.stream(torch.cuda.Stream()):
            totals = [call(x, None, False) for _ in range(3)]
        torch.cuda.synchronize()
        assert totals[0] == totals[1] == totals[2]


if __name__ == "__main__":
    compile_smoke_samples()
