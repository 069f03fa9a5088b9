"""What is peculiar to the JAX plugin; that its kernels are right is the conformance suite's business."""

import functools
import os
import subprocess
import sys

import pytest
import torch

import nxcore.ops
from nxcore.spec.problem import Problem, TensorMeta
from tests.null import calls
from tests.stand_ins import stand_in

nxcore_jax = pytest.importorskip("nxcore_jax")

nxcore_jax_has = stand_in(nxcore_jax)

SPECS = {spec.name: spec for spec in nxcore.ops.nxcore_ops()}
KERNELS = {kernel.op: kernel for kernel in nxcore_jax.KERNELS}
CPU = torch.device("cpu")
needs_jax = pytest.mark.skipif(not nxcore_jax.probe(), reason=f"needs jax: {nxcore_jax.probe().reason}")


planned, run, refusal = (
    functools.partial(f, kernels=KERNELS) for f in (calls.planned, calls.run, calls.refusal)
)


def python(code, **environment):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("XLA_")}
    return subprocess.run(
        [sys.executable, "-c", code], env=clean | environment, capture_output=True, text=True, check=True
    ).stdout.strip()


class TestMachine:
    def test_importing_the_plugin_imports_no_jax(self):
        code = (
            "import sys, nxcore_jax as n; n.nxcore_backend(); n.probe(); n.cuda(); list(n.nxcore_doctor()); "
        )
        assert python(code + "print('jax' in sys.modules)") == "False"

    def test_no_jax(self, nxcore_jax_has):
        nxcore_jax_has(_installed=lambda name: None)
        assert nxcore_jax.probe().reason == "jax is not installed"
        assert nxcore_jax.probe().hint == "pip install 'jax>=0.10'"

    @pytest.mark.parametrize("found", ["0.9.2", "0.4.38", "0"])
    def test_old_jax(self, nxcore_jax_has, found):
        nxcore_jax_has(_installed=lambda name: found)
        assert nxcore_jax.probe().reason == f"needs jax >= 0.10, found {found}"

    @pytest.mark.parametrize("found", ["0.10.0", "0.11.2.dev1", "1.0"])
    def test_new_jax(self, nxcore_jax_has, found):
        nxcore_jax_has(_installed=lambda name: found)
        assert nxcore_jax.probe()

    def test_cuda_needs_a_plugin_of_jaxs(self, monkeypatch, nxcore_jax_has):
        monkeypatch.delenv("JAX_PLATFORMS", raising=False)
        nxcore_jax_has(_installed=lambda name: None)
        assert "neither jax-cuda13-plugin nor jax-cuda12-plugin is installed" in nxcore_jax.cuda().reason
        nxcore_jax_has(_installed={"jax-cuda12-plugin": "0.10.2"}.get)
        assert nxcore_jax.cuda()
        monkeypatch.setenv("JAX_PLATFORMS", "cpu")
        assert nxcore_jax.cuda().reason == "JAX_PLATFORMS=cpu excludes CUDA"
        monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
        assert nxcore_jax.cuda()

    def test_doctor(self, nxcore_jax_has):
        nxcore_jax_has(_installed=lambda name: "0.9.1")
        (check,) = nxcore_jax.nxcore_doctor()
        assert (check.name, check.ok, check.detail) == ("jax", False, "0.9.1")
        assert check.fix == "pip install 'jax>=0.10'"

    def test_it_takes_part_only_on_request(self):
        assert nxcore_jax.nxcore_backend().on_request

    @pytest.mark.slow
    @needs_jax
    def test_the_gpus_memory_is_left_to_torch(self):
        code = (
            "import os; from nxcore_jax import bridge\n"
            "bridge.jax.devices = lambda: print(os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'])\n"
            "bridge.start.__wrapped__()"
        )
        assert python(code) == "false"
        assert python(code, XLA_PYTHON_CLIENT_PREALLOCATE="true") == "true", "the user has the last word"


class TestRefusals:
    def test_elements_that_share_memory_otherwise(self):
        assert "got strides (1, 1)" in refusal("sum", torch.zeros(9).as_strided((3, 3), (1, 1)), 0)

    def test_dtypes(self):
        assert refusal("sum", torch.zeros(4, dtype=torch.float64)) == (
            "needs float32, float16 or bfloat16, got float64"
        )
        assert "0-d operand" in refusal("add", torch.zeros(4, dtype=torch.float16), torch.tensor(1.0))
        assert "got a number (complex)" in refusal("add", torch.zeros(4), 1j)

    def test_indices_past_31_bits(self):
        meta = TensorMeta((1, 65536, 32768), (1 << 31, 32768, 1), torch.float32, CPU)
        asked = Problem.of(SPECS["max_pool2d"], SPECS["max_pool2d"].bind(meta, 2, return_indices=True))
        assert "at most 2147483647 elements" in KERNELS["max_pool2d"].accepts(asked).reason

    def test_devices(self, nxcore_jax_has):
        assert refusal("sum", torch.zeros(4, device="meta")) == "needs CPU or CUDA tensors, got meta"
        nxcore_jax_has(_for_cuda=lambda: nxcore_jax.no("no plugin"))
        meta = TensorMeta((4,), (1,), torch.float32, torch.device("cuda", 0))
        spec = SPECS["sum"]
        assert KERNELS["sum"].accepts(Problem.of(spec, (meta, None, False))).reason == "no plugin"


class TestLayout:
    def packed(self, shape, strides):
        return nxcore_jax.Packed.of(TensorMeta(shape, strides, torch.float32, CPU))

    def test_channels_last(self):
        found = self.packed((2, 3, 4, 5), (60, 1, 15, 3))
        assert (found.order, found.shape, found.strides) == ((0, 2, 3, 1), (2, 4, 5, 3), (60, 15, 3, 1))
        assert found.inverse == (0, 3, 1, 2)

    def test_what_is_repeated_or_of_size_one_is_left_out(self):
        found = self.packed((6, 1, 8), (0, 77, 1))
        assert (found.order, found.shape, found.strides) == ((2,), (8,), (1,))

    @pytest.mark.parametrize(("shape", "strides"), [((4,), (2,)), ((3, 4), (8, 1)), ((3, 3), (1, 1))])
    def test_gaps_and_overlaps(self, shape, strides):
        assert self.packed(shape, strides) is None


@needs_jax
class TestBridge:
    def test_the_gradient_of_what_was_not_broadcast_is_grad_itself(self):
        grad = torch.tensor(3.0).expand(6, 50)
        x_grad, y_grad = run("add_backward", grad, (6, 50), (50,), 2.0)
        assert x_grad.data_ptr() == grad.data_ptr()
        assert x_grad.stride() == (0, 0)
        assert torch.equal(y_grad, torch.full((50,), 36.0))

    def test_arguments_may_be_written_into_at_once(self):
        x, y = torch.ones(2_000_000), torch.ones(2_000_000)
        call, args = planned("add", x, y)
        for _ in range(20):
            out = call(*args)
            x.zero_()
            assert bool((out == 2).all())
            x.fill_(1)

    def test_a_result_can_be_written_into(self):
        out = run("add", torch.ones(5), torch.ones(5))
        out.mul_(2)
        assert out.tolist() == [4.0] * 5

    def test_numbers_are_no_reason_to_compile_again(self):
        x, y = torch.randn(9), torch.randn(9)
        call, _ = planned("add", x, y, alpha=2.0)
        for alpha in (2.0, 1.0, 0.0, -1.5, 2.0**40):
            torch.testing.assert_close(call(x, y, alpha, None), torch.add(x, y, alpha=alpha))
        assert call.jitted._cache_size() == 1

    def test_int_alpha_past_31_bits(self):
        x, y = torch.zeros(3), torch.ones(3)
        assert torch.equal(run("add", x, y, alpha=2**40), torch.add(x, y, alpha=2**40))

    def test_a_number_is_not_rounded_to_the_tensors_type(self):
        x = torch.full((3,), 1.0, dtype=torch.bfloat16)
        assert torch.equal(run("add", x, 1.00390625 * 2), torch.add(x, 1.00390625 * 2))

    def test_many_taps_are_a_loop(self, monkeypatch):
        import nxcore_jax.taps as taps

        x = torch.randn(1, 2, 9, 10)
        arguments = (x, 3, 2, 1, 1, True)
        once = run("max_pool2d_with_offsets", *arguments)
        monkeypatch.setattr(taps, "UNROLLED", 0)
        looped = run("max_pool2d_with_offsets", *arguments)
        for a, b in zip(once, looped, strict=True):
            assert torch.equal(a, b)

    def test_asked_for_by_name(self):
        add = nxcore.op("add", backend="jax")
        x, y = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
        add(x, y, alpha=2.0).sum().backward()
        assert torch.equal(x.grad, torch.ones(3, 4))
        assert torch.equal(y.grad, torch.full((4,), 6.0))


@pytest.mark.gpu
@pytest.mark.skipif(not nxcore_jax.cuda(), reason=nxcore_jax.cuda().reason)
class TestCuda:
    def test_memory_is_taken_as_needed(self):
        code = "import torch; x = torch.ones(1000, device='cuda'); free = torch.cuda.mem_get_info()[0]; "
        code += "import nxcore; nxcore.op('sum', backend='jax')(x); torch.cuda.synchronize(); "
        code += "print((free - torch.cuda.mem_get_info()[0]) / torch.cuda.mem_get_info()[1] < 0.1)"
        assert python(code).splitlines()[-1] == "True"

    def test_results_are_read_before_their_memory_is_used_again(self):
        x = torch.ones(1 << 22, device="cuda")
        call, args = planned("add", x, x)
        call(*args)
        streams = [torch.cuda.Stream() for _ in range(2)]
        torch.cuda.synchronize()
        kept = []
        for i in range(20):
            with torch.cuda.stream(streams[i % 2]):
                out = call(x, x, 1 + i, None)
                torch.cuda._sleep(3_000_000)
                kept.append(out.clone())  # still to run when `out` goes back to JAX
                del out
        torch.cuda.synchronize()
        for i, copy in enumerate(kept):
            assert bool((copy == 2 + i).all()), i

    def test_arguments_may_be_written_into_at_once(self):
        x = torch.ones(1 << 24, device="cuda")
        call, args = planned("add", x, x)
        for _ in range(10):
            out = call(*args)
            x.zero_()
            assert bool((out == 2).all())
            x.fill_(1)


@pytest.mark.gpu
@needs_jax
def test_the_current_device_stays_what_it_was():
    """JAX leaves its last device current when it starts: torch's next tensor would land there."""
    if not nxcore_jax.cuda():
        pytest.skip(nxcore_jax.cuda().reason)
    before = torch.cuda.current_device()
    x = torch.ones(3, device="cuda")
    assert torch.equal(run("add", x, x), 2 * x)
    assert torch.cuda.current_device() == before


@needs_jax
def test_jax_starts_without_changing_the_current_device(monkeypatch, cuda_answers):
    from nxcore_jax import bridge

    devices = [0]
    cuda_answers(is_available=lambda: True)
    monkeypatch.setattr(bridge, "cuda", lambda: True)
    cuda_answers(current_device=lambda: devices[-1], set_device=devices.append)
    monkeypatch.setattr(bridge.jax, "devices", lambda: devices.append(1))
    bridge.start.__wrapped__()
    assert devices == [0, 1, 0]
