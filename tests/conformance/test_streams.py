"""What only a CUDA device can show and no rule of the kit asks: capture of what is new, sheer size, streams.

Memory belongs to the stream that it was allocated on. A kernel's results and scratch are allocated on the
stream of the call, where the kernel runs too, so that nothing in nxcore calls ``record_stream``. Arguments of
another stream are the caller's to record, as for torch's own operators.
"""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import nxcore
from nxcore.registry.discovery import discover
from nxcore.settings import Settings
from tests.null import fakes
from tests.table import for_each

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")


def test_nothing_is_measured_under_capture() -> None:
    """A new problem met while a graph is captured is served by torch, and is not remembered."""
    x, y = torch.randn(12_345, device=CUDA), torch.randn(12_345, device=CUDA)
    add = nxcore.Session().op("add")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = add(x, y)
    out.zero_()
    graph.replay()
    torch.testing.assert_close(out, x + y)
    assert not add.plans


SMALL = {
    "add": lambda: (torch.randn(4096, device=CUDA), torch.randn(4096, device=CUDA)),
    "sum": lambda: (torch.randn(64, 128, device=CUDA), 1),
    "softmax_sum": lambda: ([torch.randn(8, 64, device=CUDA) for _ in range(8)], torch.randn(8, device=CUDA)),
}


@pytest.mark.parametrize("op", SMALL)
def test_a_captured_call_goes_to_the_winner_of_the_devices_time(op: str) -> None:
    session, args = nxcore.Session(Settings(policy="measure")), SMALL[op]()
    operator = session.op(op)
    operator(*args)
    decision = session.explain(op, *args).decision
    assert decision.captured is not None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = operator(*args)
    out.zero_()
    graph.replay()
    torch.testing.assert_close(out, operator.spec.reference(*operator.spec.bind(*args)))
    won = decision[decision.captured.chosen]
    assert won.graph_safe
    if decision.captured.rule == "measured":
        assert won.timing.device_median_us < decision["torch"].timing.device_median_us


KERNELS = [b for b in discover(strict=True).backends if b not in ("torch", "inductor", "jax")]
LONG = 20_000_000
"""Cycles of the device: some ten milliseconds, longer than the host takes to queue what follows."""


@pytest.fixture(autouse=True)
def _the_current_device_stays() -> Iterator[None]:
    yield
    gc.collect()  # what a test leaves behind may change the device as it goes, which would be the next one's
    left = torch.cuda.current_device()
    torch.cuda.set_device(0)  # or the next test would fail for it
    assert left == 0


two_devices = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


@two_devices
@pytest.mark.parametrize("backend", [b for b in discover(strict=True).backends if b != "torch"])
def test_an_operator_runs_on_a_device_that_is_not_the_current_one(backend: str) -> None:
    x = torch.randn(6, 70, device=torch.device("cuda", 1))
    torch.testing.assert_close(nxcore.Session().op("add", backend=backend)(x, x), x + x)


def computed(operator: Any, args: tuple[Any, ...]) -> list[torch.Tensor]:
    """Return the results, and the gradients of what can have one."""
    written = any(p.kind == "out" and a is not None for p, a in zip(operator.spec.params, args, strict=True))
    given = fakes.leaves(list(args)) if operator.spec.gradient and not written else []
    taken = [t.detach().requires_grad_(t.is_floating_point()) for t in given]
    leaves, rest = [t for t in taken if t.requires_grad], iter(taken)

    def fresh(value: Any) -> Any:
        if isinstance(value, tuple) and value and isinstance(value[0], torch.Tensor):
            return tuple(fresh(v) for v in value)
        return next(rest) if leaves and isinstance(value, torch.Tensor) else value

    results = fakes.leaves([fakes.called(operator, tuple(fresh(a) for a in args))])
    if not leaves:
        return results
    cotangent = torch.ones_like(results[0])
    return [results[0], *torch.autograd.grad(results[0], leaves, cotangent, allow_unused=True)]


def agree(got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, equal_nan=True)


@two_devices
@pytest.mark.parametrize("backend", KERNELS)
@for_each("op", sorted(fakes.SPECS))
def test_two_devices_take_turns_in_one_process(op: str, backend: str) -> None:
    """Forward and backward, with the first device the current one throughout."""
    spec, session = fakes.SPECS[op], nxcore.Session()
    with session.use(backend):
        for sample in spec.tagged("smoke"):
            if "nan" in sample.name:  # torch's gradients of it differ between CPU and CUDA
                continue
            for _ in range(2):
                want = computed(session.op(op, backend="torch"), sample.build(spec, "cpu", torch.float32))
                for index in (0, 1):
                    device = torch.device("cuda", index)
                    got = computed(session.op(op), sample.build(spec, device, torch.float32))
                    assert {t.device for t in got} == {device}
                    agree([t.cpu() for t in got], want)
    assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("backend", KERNELS)
@for_each("op", sorted(fakes.SPECS))
def test_results_and_scratch_are_of_the_stream_of_the_call(op: str, backend: str) -> None:
    """While calls wait on another stream, the first one takes and fills all memory that it is given."""
    spec, session = fakes.SPECS[op], nxcore.Session()
    operator, side = session.op(op), torch.cuda.Stream()
    for sample in spec.tagged("smoke"):
        args = sample.build(spec, CUDA, torch.float32)
        with session.use(backend):
            want = computed(operator, args)  # and verified, and planned
            torch.cuda.synchronize()
            for _ in range(5):
                with torch.cuda.stream(side):
                    torch.cuda._sleep(LONG)
                    got = computed(operator, args)
                for size in (512, 4096, 65_536, 2**20):
                    taken = [torch.full((size // 4,), torch.nan, device=CUDA) for _ in range(20)]
                del taken
                torch.cuda.synchronize()
                agree(got, want)


def spoiled(backend: str, *, recorded: bool) -> int:
    """Return how often memory of the first stream was overwritten before another stream had read it."""
    n, wrong, side = 300_000, 0, torch.cuda.Stream()
    add = nxcore.op("add", backend=backend)
    add(torch.ones(n, device=CUDA), torch.ones(n, device=CUDA))
    for _ in range(20):
        x = torch.ones(n, device=CUDA)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG)
            y = add(x, x)
        if recorded:
            x.record_stream(side)
        del x
        torch.full((n,), 5.0, device=CUDA)
        torch.cuda.synchronize()
        wrong += not bool((y == 2).all())
    return wrong


@pytest.mark.parametrize("backend", ["torch", *KERNELS])
def test_a_recorded_argument_of_another_stream_is_safe(backend: str) -> None:
    assert spoiled(backend, recorded=True) == 0
    assert spoiled(backend, recorded=False) > 0, "the stress is none: this must fail where it is dropped"


@pytest.mark.parametrize("backend", KERNELS)
def test_backward_runs_on_the_stream_of_its_forward(backend: str) -> None:
    session, side = nxcore.Session(), torch.cuda.Stream()
    x, bias = torch.randn(64, 33, 50, device=CUDA), torch.randn(33, 1, device=CUDA, requires_grad=True)
    with session.use(backend):
        for _ in range(5):
            bias.grad = None
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(LONG)
                out = session.op("add")(x, bias)
            torch.cuda.current_stream().wait_stream(side)
            out.sum().backward()  # from another stream than the forward pass
            torch.testing.assert_close(bias.grad, torch.full_like(bias, 64.0 * 50))


@pytest.mark.parametrize(
    "backend", [b for b in discover(strict=True).backends if b not in ("torch", "inductor")]
)
def test_more_elements_than_two_to_the_31(backend: str) -> None:
    n = 2**31 + 77
    x = torch.ones(n, device=CUDA, dtype=torch.float16)
    out = nxcore.op("add", backend=backend)(x, x)
    assert float(out[-1]) == 2.0
    assert bool((out[-1000:] == 2).all())
    assert bool((out[:1000] == 2).all())
