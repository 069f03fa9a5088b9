"""What is true of gumbel_softmax alone: whose noise it is, what is hard and what soft, on every backend."""

import pytest
import torch
from torch.nn import functional

import nxcore
from nxcore.interop import library
from tests.ops.backends import operator, params

every_backend = pytest.mark.parametrize("backend", params())
hardness = pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])


@every_backend
@hardness
def test_a_sample_and_its_gradient_are_torchs_own_for_the_same_state(
    backend: str | None, hard: bool, device: torch.device
) -> None:
    mine, torchs = (torch.linspace(-2, 2, 24, device=device).view(3, 8).requires_grad_() for _ in range(2))
    torch.manual_seed(7)
    found = operator("gumbel_softmax", backend)(mine, tau=0.5, hard=hard)
    torch.manual_seed(7)
    want = functional.gumbel_softmax(torchs, tau=0.5, hard=hard)
    grad = torch.linspace(-1, 3, 24, device=device).view(3, 8).cos()
    found.backward(grad)
    want.backward(grad)
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(mine.grad, torchs.grad, rtol=1e-4, atol=1e-6)
    if hard:
        assert found.detach().unique().tolist() == [0.0, 1.0]


@every_backend
def test_a_generator_draws_the_noise_and_torchs_default_one_is_left_alone(
    backend: str | None, device: torch.device
) -> None:
    op, logits = operator("gumbel_softmax", backend), torch.zeros(4, 8, device=device)
    generator = torch.Generator(device)
    state = torch.cuda.get_rng_state if device.type == "cuda" else torch.get_rng_state
    before = state()
    first, second, other = (op(logits, generator=generator.manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(state(), before)


@every_backend
def test_a_temperature_that_changes_in_place_is_read_by_every_call(
    backend: str | None, device: torch.device
) -> None:
    op, tau = operator("gumbel_softmax", backend), torch.tensor(4.0, device=device)
    logits, noise = torch.arange(8.0, device=device), torch.full((8,), 0.5, device=device)
    for value in (4.0, 0.5):
        tau.fill_(value)
        torch.testing.assert_close(op(logits, tau, noise=noise), torch.softmax(logits / value, -1))
        torch.testing.assert_close(op(logits, value, noise=noise), torch.softmax(logits / value, -1))


def test_draws_follow_the_softmax() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, -torch.inf]).expand(20_000, 4)
    drawn = nxcore.op("gumbel_softmax")(logits, hard=True, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.mean(0), torch.softmax(logits[0], 0), rtol=0, atol=0.02)


def test_logits_of_16_bits_get_noise_of_32() -> None:
    logits = torch.zeros(2, 5, dtype=torch.float16)
    found = nxcore.op("gumbel_softmax")(logits, generator=torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    noise = torch.empty(2, 5).exponential_(generator=generator)
    torch.testing.assert_close(found, torch.softmax(-noise.log(), -1).half())


@hardness
def test_a_compiler_sees_the_noise_drawn_and_then_one_node(hard: bool) -> None:
    op, nodes = nxcore.op("gumbel_softmax"), []

    def noted(graph: torch.fx.GraphModule, example: object) -> object:
        nodes.extend(str(n.target) for n in graph.graph.nodes if n.op == "call_function")
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: op(x, 0.5, hard), backend=noted, fullgraph=True)
    logits = torch.randn(3, 4)
    torch.manual_seed(5)
    found = compiled(logits)
    torch.manual_seed(5)
    torch.testing.assert_close(found, op(logits, 0.5, hard))
    assert nodes.count("nxcore.gumbel_softmax.default") == 1
    assert library.SHELLS["gumbel_softmax"] is not None
    torch._dynamo.reset()


def test_vmap_draws_for_each_where_it_may() -> None:
    op, logits = nxcore.op("gumbel_softmax"), torch.zeros(3, 4)
    drawn = torch.vmap(op, randomness="different")(logits)
    assert len({tuple(row.tolist()) for row in drawn}) == 3
    with pytest.raises(RuntimeError, match="random operation"):
        torch.vmap(op)(logits)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", [None, "torch", "triton", "cuda"])
def test_a_graph_draws_anew_at_every_replay(backend: str | None) -> None:
    op, logits = operator("gumbel_softmax", backend), torch.zeros(2, 14, 8, device="cuda")
    tau = torch.ones((), device="cuda")
    op(logits, tau)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = op(logits, tau)
    seen = []
    for value in (1.0, 1.0, 0.01):
        tau.fill_(value)
        graph.replay()
        seen.append(out.clone())
    assert not torch.equal(seen[0], seen[1])
    assert float(seen[2].amax(-1).mean()) > float(seen[0].amax(-1).mean())


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")  # torch's, once a process
@pytest.mark.parametrize("backend", ["torch", "triton", "cuda"])
def test_nothing_waits_for_the_device(backend: str) -> None:
    op, logits = operator("gumbel_softmax", backend), torch.randn(2, 14, 8, device="cuda", requires_grad=True)
    tau = torch.ones((), device="cuda")
    op(logits, tau, True).sum().backward()
    try:
        torch.cuda.set_sync_debug_mode("error")
        op(logits, tau, True).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
