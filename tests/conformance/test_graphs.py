"""nxcore.graphed on a CUDA device: many shapes, gradients, whole steps, and every graph-safe kernel."""

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nxcore
from nxcore.errors import CaptureError
from nxcore.registry.discovery import discover
from nxcore.settings import Settings
from nxcore.spec.device import synchronize
from nxcore.spec.layout import overlaps
from nxcore.spec.problem import Problem, TensorMeta, leaves
from nxcore.trust.memory import poison
from nxcore.trust.truth import Truth, agreement, without_out

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")
REGISTRY = discover(strict=True)
KERNELS = [
    (backend.name, kernel)
    for backend in REGISTRY.backends.values()
    for kernel in backend.kernels
    if kernel.graph_safe and backend.name != "torch" and not backend.on_request and not kernel.variant
]


def _randn(*shape: int) -> Tensor:
    return torch.randn(*shape, device=CUDA)


def blend(xs: list[Tensor], logits: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
    mixed = nxcore.ops.softmax_sum(xs, logits)
    return {"sum": nxcore.ops.sum(mixed, 0), "mixed": nxcore.ops.add(mixed, mixed, alpha=scale)}


@pytest.mark.parametrize("clone", [False, True])
def test_many_shapes_are_captured_once_each_and_replayed(clone: bool) -> None:
    run = nxcore.graphed(blend, clone=clone)
    for turn in range(3):
        for n in (3, 64, 1000):
            xs, logits = [_randn(n, 8) for _ in range(4)], _randn(4)
            got = run(xs, logits, scale=2.0)
            torch.testing.assert_close(got, blend(xs, logits, 2.0), msg=f"{n} in turn {turn}")
    assert len(run) == 3


def test_threads_that_wait_for_the_device_end_no_capture() -> None:
    ended, waits = threading.Event(), []

    def wait() -> None:
        while not ended.is_set():
            synchronize(CUDA)
            waits.append(None)

    other = threading.Thread(target=wait)
    other.start()
    try:
        run = nxcore.graphed(lambda x: torch.stack([(x + i).sin() for i in range(500)]).sum(0), limit=8)
        for n in range(1, 9):
            x = _randn(n)
            torch.testing.assert_close(run(x), torch.stack([(x + i).sin() for i in range(500)]).sum(0))
    finally:
        ended.set()
        other.join()
    assert waits


def test_a_result_lies_where_the_next_call_writes_unless_it_is_a_copy() -> None:
    x, y = _randn(100), _randn(100)
    run, copies = (nxcore.graphed(lambda v: nxcore.ops.add(v, 1.0), clone=c) for c in (False, True))
    first, second = run(x), run(y)
    assert first.data_ptr() == second.data_ptr()
    kept, _ = copies(x), copies(y)
    torch.testing.assert_close(kept, x + 1)


def test_a_result_is_left_alone_by_calls_of_other_signatures() -> None:
    run = nxcore.graphed(lambda v: nxcore.ops.add((v * 2) * (v + 1), 0.0))
    x, y = _randn(1 << 20), _randn(1 << 18, 4)
    run(x)
    kept = run(y)
    want = kept.clone()
    for _ in range(3):
        run(x)
    torch.testing.assert_close(kept, want, rtol=0.0, atol=0.0)


@pytest.mark.parametrize(("backend", "kernel"), KERNELS, ids=[f"{b}-{k.op}" for b, k in KERNELS])
def test_every_graph_safe_kernel_is_captured_poisoned_replayed_and_right(backend: str, kernel: Any) -> None:
    session = nxcore.Session(Settings(policy="measure"), REGISTRY)
    spec, operator = REGISTRY.spec(kernel.op), session.op(kernel.op, backend=backend)
    first = len([p for p in spec.params if not p.keyword])
    ran = 0
    for sample in spec.tagged("smoke"):
        args = without_out(spec, sample.build(spec, CUDA, torch.float32))
        problem = Problem.of(spec, args)
        if problem.device.type != "cuda" or problem.view or not kernel.takes(problem):
            continue
        named = {p.name: a for p, a in zip(spec.params[first:], args[first:], strict=True)}
        run = nxcore.graphed(operator)
        with torch.no_grad():
            for tensor in leaves(run(*args[:first], **named)):
                poison(tensor)
            for tensor in leaves(args):
                if tensor.is_floating_point() and not overlaps(TensorMeta.of(tensor)):
                    tensor.mul_(0.5)
        truth = Truth.of(spec, args)
        found = agreement(lambda *given: run(*given[:first], **named), spec, args, truth)  # noqa: B023  now
        assert found.ok, f"{sample.name}: {found.reason}"
        assert len(run) == 1
        ran += 1
    if not ran:
        pytest.skip("takes no smoke sample")  # such as one that needs other devices


def test_gradients_go_through_where_they_are_asked_for() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Conv2d(4, 4, 3), nxcore.nn.MaxPool2d(3, 1, 1), nn.Flatten(), nn.LazyLinear(5)
    ).to(CUDA)
    plain(_randn(2, 4, 8, 8))
    other = copy.deepcopy(plain)
    run = nxcore.graphed(other, backward=True)
    for size in (2, 6, 2):
        x = _randn(size, 4, 8, 8)
        for model in (plain, run):
            model(x.clone().requires_grad_()).square().mean().backward()
    assert len(run) == 2
    for want, got in zip(plain.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)


def test_graphs_are_captured_again_after_all_were_forgotten() -> None:
    run = nxcore.graphed(lambda x: x * 2, clone=True)
    kept = []
    for size in (5, 500_000, 5):
        x = _randn(size)
        kept.append(run(x))
        torch.testing.assert_close(kept[-1], 2 * x)
        run.clear()


def test_a_whole_step_of_training_is_a_graph() -> None:
    torch.manual_seed(0)
    model = nn.Linear(16, 1, device=CUDA)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = _randn(64, 16)
    y = x.sum(1, keepdim=True)

    @nxcore.graphed(warmup=1)
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = nxcore.ops.sum((model(x) - y).square(), None) / len(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = [float(step(x, y)) for _ in range(60)]
    assert losses[-1] < 0.1 * losses[0]
    assert len(step) == 1


def test_what_waits_for_the_device_is_told_by_its_line_and_spoils_nothing() -> None:
    @nxcore.graphed
    def waits(x: Tensor) -> Tensor:
        return x * 2 if x.sum().item() > 0 else x

    x = _randn(50)
    with pytest.raises(CaptureError, match=r"`return x \* 2 if x.sum\(\).item\(\) > 0 else x` .* of waits"):
        waits(x)
    assert len(waits) == 0
    run = nxcore.graphed(lambda v: nxcore.ops.sum(v, 0))
    torch.testing.assert_close(run(x), x.sum(0))


def test_what_else_can_not_be_captured_is_named() -> None:
    x = _randn(4)
    with pytest.raises(CaptureError, match="argument 0 is written into"):
        nxcore.graphed(lambda v: v.add_(1))(x)
    with pytest.raises(CaptureError, match="its result needs a gradient"):
        nxcore.graphed(lambda v: v * 2)(x.clone().requires_grad_())
    with pytest.raises(CaptureError, match="its result is on cpu"):
        nxcore.graphed(lambda v: (v * 2, torch.ones(3))[1])(x)
    with pytest.raises(CaptureError, match="argument 1 must be on cuda:0, as argument 0 is, got cpu"):
        nxcore.graphed(lambda v, w: v)(x, torch.ones(3))


def test_replays_on_two_streams_wait_for_each_other() -> None:
    run = nxcore.graphed(lambda v: nxcore.ops.add(v, v).cumsum(0).cumsum(0), clone=True)
    inputs = [torch.full((1 << 20,), float(i), device=CUDA) for i in range(8)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    run(inputs[0])
    torch.cuda.synchronize()
    results = []
    for i, x in enumerate(inputs):
        with torch.cuda.stream(streams[i % 2]):
            results.append(run(x))
    torch.cuda.synchronize()
    for i, result in enumerate(results):
        assert float(result[0]) == 2.0 * i
        assert float(result[2]) == 12.0 * i


def test_garbage_of_another_graph_stays_until_a_capture_ends() -> None:
    """To destroy a graph in the thread that captures would end the capture."""

    def garbage() -> None:
        graph = torch.cuda.CUDAGraph()
        x = _randn(8)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            x.add_(1)
        graph.replay()
        held: list[Any] = [graph]
        held.append(held)

    def work(v: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            kept = [[i] for i in range(5000)]  # as many objects as make a collection due
            assert len(kept) == 5000
        return v * 2

    x = _randn(64)
    garbage()
    torch.testing.assert_close(nxcore.graphed(work)(x), 2 * x)


def test_nothing_new_is_measured_or_learnt_while_a_graph_is_captured() -> None:
    """Warm-up decides, even where calls are learnt from; the captured call goes to a winner."""
    session = nxcore.Session(Settings(policy="auto"))
    operator, x = session.op("add"), _randn(777)
    run = nxcore.graphed(lambda v: operator(v, v))
    torch.testing.assert_close(run(x), 2 * x)
    (choice,) = session.chooser.choices.values()
    assert choice.decision.rule in ("measured", "reference", "inconclusive")
    assert choice.decision.captured is not None or choice.decision.rule == "inconclusive"
