"""An accelerated model whose calls a GPU replays: with a plain one's numbers, random ones too."""

import contextlib
import copy

import pytest
import torch
from torch import nn

import nxcore
from nxcore.program import replay as of_replays
from nxcore.program.memory import kept
from nxcore.program.replay import UNUSED
from tests.nn.tape import part
from tests.nn.test_program_results import HOWS
from tests.nn.test_program_results import Net as Several
from tests.nn.test_program_results import agree as agree_in_all
from tests.nn.test_program_steps import Net
from tests.nn.traced import CALLS
from tests.stand_ins import stand_in
from tests.table import for_each

DEVICE = "cuda"
NEAR = {"rtol": 1e-2, "atol": 1e-3}  # convolutions have factors of 11 bits
HALF = {"rtol": 3e-2, "atol": 3e-2}

of_replays_has = stand_in(of_replays)

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _kept(of_replays_has):
    """A replay is kept whatever it gains: steps of a small model beside other tests take any time."""
    of_replays_has(LEAST=0.0)
    torch._dynamo.reset()
    with nxcore.policy("frozen"):
        yield
    torch._dynamo.reset()


def two(make=Net):
    torch.manual_seed(0)
    plain = make().to(DEVICE)
    ours = copy.deepcopy(plain)
    assert nxcore.accelerate(ours).replays == "may be replayed as CUDA graphs"
    return plain, ours


def step(model, x, seed=None):
    """Return the next random number after a step, its result, gradients and statistics."""
    if seed is not None:
        torch.manual_seed(seed)
    model.zero_grad()
    out = model(x)
    out.float().square().sum().backward()
    drawn = torch.rand(2, device=DEVICE)
    return [drawn, out.detach(), *(p.grad.clone() for p in model.parameters()), *model.buffers()]


def agree(plain, ours, times=1, count=2, near=NEAR):
    for seed in range(times):
        x = torch.randn(count, 3, 4, 4, device=DEVICE)
        torch.testing.assert_close(step(ours, x, seed), step(plain, x, seed), **near)


def replayed(make=Net):
    plain, ours = two(make)
    agree(plain, ours, CALLS)
    assert part(ours).captured == 1, part(ours).state
    return plain, ours


def test_replays_draw_what_runs_draw_and_leave_the_generator_where_they_do():
    plain, ours = replayed()
    agree(plain, ours, 4)
    x = torch.randn(2, 3, 4, 4, device=DEVICE)
    first, second = (step(ours, x)[1] for _ in range(2))
    assert not torch.equal(first, second)  # from step to step
    again = [step(ours, x, seed=7)[1] for _ in range(2)]
    torch.testing.assert_close(*again, **NEAR)
    plain.load_state_dict(ours.state_dict())
    for net in (plain, ours):
        net.drop.p = 0.8
    agree(plain, ours, CALLS)
    assert part(ours).captured == 2, part(ours).state


def test_the_numbers_of_many_steps_are_those_of_plain_ones_without_a_seed_between():
    plain, ours = replayed()
    x, found = torch.randn(2, 3, 4, 4, device=DEVICE), []
    for net in (plain, ours):
        torch.manual_seed(3)
        found.append([step(net, x)[:2] for _ in range(12)])
    torch.testing.assert_close(*found, **NEAR)


def test_a_second_backward_pass_draws_what_the_replay_drew():
    plain, ours = replayed()
    for seed in range(3):
        x, found = torch.randn(2, 3, 4, 4, device=DEVICE, requires_grad=True), []
        for net in (ours, plain):
            torch.manual_seed(seed)
            out = net(x)
            first = torch.autograd.grad(out.sum(), [x], retain_graph=True)
            found.append([*first, *torch.autograd.grad(out.square().sum(), [x, *net.parameters()])])
        torch.testing.assert_close(*found, **NEAR)


@for_each("how", HOWS)
@for_each("half", [False, True])
def test_a_structure_of_tensors_is_replayed(how, half):
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = Several(how).to(DEVICE)
    ours = copy.deepcopy(plain)
    nxcore.accelerate(ours)
    with torch.autocast(DEVICE, torch.bfloat16, enabled=half):
        agree_in_all(plain, ours, CALLS + 2, device=DEVICE, **(HALF if half else NEAR))
    assert part(ours).captured == 1, part(ours).state


@for_each("dtype", [torch.bfloat16, torch.float16])
def test_a_model_of_half_precision(dtype):
    torch._dynamo.reset()

    def make():
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU(), nn.Flatten()).to(dtype)

    plain, ours = two(make)
    for seed in range(CALLS + 2):
        x = torch.randn(2, 3, 4, 4, device=DEVICE, dtype=dtype)
        torch.testing.assert_close(step(ours, x, seed), step(plain, x, seed), **HALF)
    assert part(ours).captured == 1, part(ours).state


def test_several_signatures_share_the_memory_of_one_pool():
    plain, ours = replayed()
    memory = {id(replay.memory) for replay in part(ours)._replays}
    for _ in range(CALLS):
        agree(plain, ours, 2, count=4)
        agree(plain, ours, 2, count=2)
    agree(plain, ours, 1, count=1)  # an epoch's last batch
    assert part(ours).captured == 2, part(ours).state
    assert {id(replay.memory) for replay in part(ours)._replays} == memory


WAYS = {
    "evaluation": contextlib.nullcontext,
    "no gradient": torch.no_grad,
    "inference": torch.inference_mode,
}


def test_evaluation_without_gradients_and_in_inference_mode_is_replayed():
    plain, ours = replayed()
    for number, way in enumerate(WAYS.values()):
        for _ in range(CALLS + UNUSED):  # without a backward pass none is expected
            x, found = torch.randn(2, 3, 4, 4, device=DEVICE), []
            for net in (ours.eval(), plain.eval()):
                torch.manual_seed(number)  # its layers are left out in evaluation too
                with way():
                    found.append(net(x))
            torch.testing.assert_close(*found, **NEAR)
        assert part(ours).captured == number + 2, part(ours).state
        agree(plain.train(), ours.train(), 2)


class Wide(nn.Module):
    """A model whose step needs a gigabyte."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(8)))

    def forward(self, x):
        return self.layers(x.flatten(1).repeat(2**14 // len(x), 512 // 48 + 1)[:, :512]).mean(0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the memory of a CUDA device is limited")
def test_without_memory_for_a_recording_torch_serves_every_step():
    torch.cuda.empty_cache()
    plain, ours = two(Wide)
    torch.cuda.reset_peak_memory_stats()
    agree(plain, ours)
    most = torch.cuda.max_memory_reserved() + 2**26  # a step beside what stays, and no second one
    torch.cuda.set_per_process_memory_fraction(most / torch.cuda.mem_get_info()[1])
    try:
        agree(plain, ours, CALLS + 3)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert part(ours).captured == 0
    assert "too little memory for a recording" in part(ours).state
    agree(plain, ours, 2)


def test_what_runs_took_is_returned_after_a_recording():
    device = torch.device("cuda", 0)
    torch.empty(2**24, device=device)
    before = torch.cuda.memory_reserved(device)
    assert kept(device) < before


def test_kernels_in_a_graph_compute_what_plain_torch_does():
    def make():
        return nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3, padding=1, groups=32),
            nn.AvgPool2d(2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )

    with nxcore.policy("measure"):
        plain, ours = two(make)
        for seed in range(2 * CALLS):
            x = torch.randn(16, 3, 32, 32, device=DEVICE)
            torch.testing.assert_close(step(ours, x, seed), step(plain, x, seed), **NEAR)
    assert part(ours).captured == 1, part(ours).state
    assert sum(part(ours)._programs[0].passes.values()) >= 5, part(ours)._programs[0].passes
