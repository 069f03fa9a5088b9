"""nxcore.nn: torch's constructors and answers, and torch's own forward where no operator serves."""

import copy
import inspect
import pickle

import pytest
import torch
from torch import nn

import nxcore
from nxcore.nn import activations
from tests.nn.conftest import ACTIVATED
from tests.stand_ins import stand_in
from tests.table import for_each

activations_has = stand_in(activations)

MAKE = {
    "max_pool": lambda of: of.MaxPool2d(3, stride=2, padding=1),
    "max_pool_dilated": lambda of: of.MaxPool2d((3, 2), 1, 0, dilation=2, ceil_mode=True),
    "max_pool_indices": lambda of: of.MaxPool2d(2, return_indices=True),
    "avg_pool": lambda of: of.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
    "avg_pool_divisor": lambda of: of.AvgPool2d((2, 3), divisor_override=5),
    "adaptive_avg_pool": lambda of: of.AdaptiveAvgPool2d(1),
    "adaptive_avg_pool_pair": lambda of: of.AdaptiveAvgPool2d((1, 1)),
    "adaptive_avg_pool_of_many": lambda of: of.AdaptiveAvgPool2d((None, 1)),
    "adaptive_max_pool": lambda of: of.AdaptiveMaxPool2d(1),
    "adaptive_max_pool_of_many": lambda of: of.AdaptiveMaxPool2d(2),
    "adaptive_max_pool_indices": lambda of: of.AdaptiveMaxPool2d(1, return_indices=True),
    "softmax": lambda of: of.Softmax(1),
    "log_softmax": lambda of: of.LogSoftmax(-1),
    "layer_norm": lambda of: of.LayerNorm((9, 11)),
    "layer_norm_without_bias": lambda of: of.LayerNorm(11, eps=0.1, bias=False),
    "rms_norm": lambda of: of.RMSNorm(11),
    "group_norm": lambda of: of.GroupNorm(2, 4),
    "conv": lambda of: of.Conv2d(4, 4, 3, groups=4, bias=False),
    "conv_bias": lambda of: of.Conv2d(4, 4, (3, 5), stride=(1, 2), padding=(1, 2), groups=4),
    "conv_same": lambda of: of.Conv2d(4, 4, 4, padding="same", dilation=2, groups=4),
    "conv_valid": lambda of: of.Conv2d(4, 4, 3, padding="valid", groups=4),
    "conv_reflect": lambda of: of.Conv2d(4, 4, 3, padding=1, padding_mode="reflect", groups=4),
    "conv_circular": lambda of: of.Conv2d(4, 4, 3, padding="same", padding_mode="circular", groups=4),
    "batch_norm": lambda of: of.BatchNorm2d(4),
    "batch_norm_plain": lambda of: of.BatchNorm2d(4, eps=0.1, affine=False, track_running_stats=False),
    "elu": lambda of: of.ELU(1.7),
    "gelu": lambda of: of.GELU(),
    "gelu_tanh": lambda of: of.GELU(approximate="tanh"),
    "hardsigmoid": lambda of: of.Hardsigmoid(),
    "hardswish": lambda of: of.Hardswish(),
    "leaky_relu": lambda of: of.LeakyReLU(0.3),
    "mish": lambda of: of.Mish(),
    "relu": lambda of: of.ReLU(),
    "sigmoid": lambda of: of.Sigmoid(),
    "silu": lambda of: of.SiLU(),
    "softplus": lambda of: of.Softplus(2, 1.5),
    "tanh": lambda of: of.Tanh(),
    "conv_of_one_group": lambda of: of.Conv2d(4, 6, 3),
    "conv_two_filters_each": lambda of: of.Conv2d(4, 8, 3, groups=4),
}
OURS = [
    *("AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "AvgPool2d", "BatchNorm2d", "Conv2d", "MaxPool2d"),
    *("ELU", "Embedding", "GELU", "Hardsigmoid", "Hardswish", "LeakyReLU", "Mish", "ReLU", "Sigmoid", "SiLU"),
    *("Softplus", "Tanh", "Softmax", "LogSoftmax", "LayerNorm", "RMSNorm", "GroupNorm", "CrossEntropyLoss"),
]


@pytest.fixture(autouse=True)
def _few(activations_has) -> None:
    """Have operators of activations serve small tensors too."""
    activations_has(FEWEST=0)


@for_each("name", OURS)
def test_a_module_is_torchs_with_its_constructor(name: str) -> None:
    ours, torchs = getattr(nxcore.nn, name), getattr(nn, name)
    assert issubclass(ours, torchs)
    assert inspect.signature(ours) == inspect.signature(torchs)


@for_each("name", MAKE)
def test_a_module_answers_as_torchs(name: str, ran: list[str], device: torch.device) -> None:
    torch.manual_seed(0)
    torchs, ours = MAKE[name](nn).to(device), MAKE[name](nxcore.nn).to(device)
    assert repr(ours) == repr(torchs)
    ours.load_state_dict(torchs.state_dict())
    x = torch.randn(2, 4, 9, 11, device=device)
    planes = () if isinstance(torchs, nn.BatchNorm2d | nn.GroupNorm) else (x[0],)  # which takes batches alone
    turned = x.transpose(2, 3).contiguous().transpose(2, 3)
    for given in (x, *planes, x.to(memory_format=torch.channels_last), turned):
        for leaves in ((a := given.clone().requires_grad_(), b := given.clone().requires_grad_()),):
            got, want = ours(a), torchs(b)
            torch.testing.assert_close(got, want, check_stride=x.is_cpu)
            first = [out[0] if isinstance(out, tuple) else out for out in (got, want)]
            cotangent = torch.randn_like(first[0])
            for out in first:
                out.backward(cotangent)
            torch.testing.assert_close(leaves[0].grad, leaves[1].grad)
    for p, q in zip(ours.parameters(), torchs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    for ours_own, theirs in zip(ours.buffers(), torchs.buffers(), strict=True):
        torch.testing.assert_close(ours_own, theirs)
    # With indices torch differentiates by itself; a convolution that isn't depthwise is none of ours.
    assert bool(ran) == (not ours.reason and name != "max_pool_indices")


@pytest.mark.parametrize("what", ["evaluation", "no momentum", "half precision"])
def test_running_statistics_are_torchs(what: str, ran: list[str], device: torch.device) -> None:
    options = {"momentum": None if what == "no momentum" else 0.3}
    torchs, ours = (of.BatchNorm2d(4, **options).to(device) for of in (nn, nxcore.nn))
    x = torch.randn(3, 4, 5, 6, device=device) * 2 + 1
    if what == "half precision":
        torchs, ours, x = torchs.bfloat16(), ours.bfloat16(), x.bfloat16()
    for module in (torchs, ours):
        for given in (x, x[1:], -x):
            module(given)
    # In bfloat16 each update rounds: two orders of the same operations differ by two units in the last place.
    tolerance = {"rtol": 2**-5, "atol": 2**-7} if what == "half precision" else {}
    for got, want in zip(ours.buffers(), torchs.buffers(), strict=True):
        torch.testing.assert_close(got, want, **tolerance)
    assert int(ours.num_batches_tracked) == 3
    assert ("batch_norm" in ran) == (what != "no momentum") == (not ours.reason)
    ran.clear()
    torch.testing.assert_close(ours.eval()(x), torchs.eval()(x), **tolerance)
    assert not ran


def test_statistics_change_unseen_by_an_earlier_call_that_torch_served(
    ran: list[str], device: torch.device
) -> None:
    """Torch's own call saves the statistics, though its backward pass doesn't read them."""
    torchs, ours = (of.BatchNorm2d(4).to(device) for of in (nn, nxcore.nn))
    x = torch.randn(3, 4, 5, 6, device=device)
    for norm in (torchs, ours):
        first = nn.BatchNorm2d.forward(norm, x)
        assert not ran
        (first * norm(2 * x)).sum().backward()  # the loss of two images, or of a real and a made one
    assert "batch_norm" in ran
    torch.testing.assert_close(ours.weight.grad, torchs.weight.grad)


@for_each("name", ["ELU", "Hardsigmoid", "Hardswish", "LeakyReLU", "Mish", "ReLU", "SiLU"])
def test_an_activation_in_place_is_torchs(name: str, ran: list[str]) -> None:
    torchs, x = getattr(nn, name)(inplace=True), torch.randn(2, 3)
    ours, want = getattr(nxcore.nn, name)(inplace=True), torchs(x.clone())
    assert ours(x) is x
    torch.testing.assert_close(x, want)
    assert ours.reason == "it writes into its input"
    assert nxcore.accelerate(torchs).left == {"": ours.reason}
    ours = getattr(nxcore.nn, name)()
    ours(x)
    assert ran
    ran.clear()
    ours.inplace = True
    assert ours(x) is x
    assert not ran


def test_a_subclass_runs_the_operator(ran: list[str]) -> None:
    class Scaled(nxcore.nn.SiLU):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    x = torch.randn(2, 3)
    for module in (type("Own", (nxcore.nn.SiLU,), {})(), Scaled()):
        ran.clear()
        factor = 2 if isinstance(module, Scaled) else 1
        torch.testing.assert_close(module(x), factor * nn.functional.silu(x))
        assert set(ran) == {"silu"}


def test_a_relu_is_torchs_unless_a_kernel_is_on_record_as_faster(ran: list[str], activations_has) -> None:
    activations_has(won=lambda _: False)
    ours, plain, x = nxcore.nn.ReLU(), nn.ReLU(), torch.randn(2, 3)
    ours(x)
    assert nxcore.accelerate(plain).left == {"": activations.NOT_WON}
    assert type(plain) is nn.ReLU
    assert ours.reason == activations.NOT_WON
    assert type(ours).forward is nn.ReLU.forward
    assert not ran
    activations_has(won=lambda name: name == "relu")
    assert nxcore.accelerate(plain).replaced == {"": "ReLU"}
    nxcore.accelerate(ours)
    for module in (ours, plain):
        assert module.reason == ""
        ran.clear()
        torch.testing.assert_close(module(x), torch.relu(x))
        assert set(ran) == {"relu"}


def test_the_reason_says_what_torch_serves() -> None:
    assert nxcore.nn.Conv2d(4, 4, 3, groups=4).reason == nxcore.nn.MaxPool2d(2).reason == ""
    reason = "not depthwise: groups 1, in_channels 4 and out_channels 6 must be equal"
    assert nxcore.nn.Conv2d(4, 6, 3).reason == reason
    assert nxcore.nn.SiLU(inplace=True).reason == "it writes into its input"
    assert nxcore.nn.AdaptiveAvgPool2d(2).reason == "not global: output_size must be 1, got 2"


@for_each(
    ("module", "x"),
    [
        (nxcore.nn.MaxPool2d(2), torch.zeros(3, 4)),
        (nxcore.nn.BatchNorm2d(4), torch.zeros(1, 4, 1, 1)),
        (nxcore.nn.BatchNorm2d(4), torch.zeros(2, 4, 5)),
        (nxcore.nn.BatchNorm2d(4), torch.zeros(2, 3, 4, 4)),
        (nxcore.nn.AvgPool2d(2, padding=2), torch.zeros(1, 2, 4, 4)),
        (nxcore.nn.AdaptiveMaxPool2d(1), torch.zeros(2, 3, 0, 4)),
        (nxcore.nn.Conv2d(4, 4, 3, groups=4), torch.zeros(1, 3, 4, 4)),
        (nxcore.nn.Conv2d(4, 4, 3, groups=4), torch.zeros(1, 4, 4, 4, dtype=torch.float64)),
        (nxcore.nn.Conv2d(4, 4, 3, padding=9, padding_mode="reflect", groups=4), torch.zeros(1, 4, 4, 4)),
    ],
    ids=[
        *(
            "rank",
            "one value",
            "no image",
            "norm's channels",
            "padding",
            "no_pixels",
            "channels",
            "dtype",
        ),
        "reflection",
    ],
)
def test_what_torch_refuses_is_refused_in_its_words(module: nn.Module, x: torch.Tensor) -> None:
    torchs = copy.deepcopy(module)
    torchs.__class__ = type(module).__mro__[1]
    with pytest.raises((RuntimeError, ValueError)) as wanted:
        torchs(x)
    with pytest.raises(type(wanted.value)) as got:
        module(x)
    assert str(got.value) == str(wanted.value)


def test_what_only_torch_can_do_it_does() -> None:
    conv = nxcore.nn.Conv2d(4, 4, 3, groups=4, dtype=torch.complex64)
    x = torch.randn(1, 4, 5, 5, dtype=torch.complex64)
    want = nn.functional.conv2d(x, conv.weight, conv.bias, groups=4)
    torch.testing.assert_close(conv(x), want)


def test_autocast_gives_its_dtype_with_a_bias_too(device: torch.device) -> None:
    conv = nxcore.nn.Conv2d(4, 4, 3, groups=4, device=device)
    x = torch.randn(1, 4, 5, 5, device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        for given in (x, x.bfloat16()):
            assert conv(given).dtype is torch.bfloat16
            torch.testing.assert_close(conv(given), nn.Conv2d.forward(conv, given), atol=0.02, rtol=0.02)


def test_a_blend_of_candidates_learns(ran: list[str], device: torch.device) -> None:
    blend = nxcore.nn.SoftmaxSum(3, device=device)
    xs = [torch.randn(4, 5, device=device) for _ in range(3)]
    torch.testing.assert_close(blend(xs), torch.stack(xs).mean(0))
    blend(xs).sum().backward()
    assert repr(blend) == "SoftmaxSum(3)"
    means = torch.stack([x.sum() for x in xs])
    torch.testing.assert_close(blend.logits.grad, (means - means.mean()) / 3)
    assert set(ran) == {"softmax_sum", "softmax_sum_backward"}


@for_each("name", ["max_pool", "avg_pool", "conv_bias", *ACTIVATED])
def test_a_module_is_copied_pickled_and_loaded(name: str, ran: list[str]) -> None:
    ours = MAKE[name](nxcore.nn)
    x = torch.randn(1, 4, 9, 9)
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert type(other) is type(ours)
        torch.testing.assert_close(other(x), ours(x))
    torchs = MAKE[name](nn)
    torchs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(torchs(x), ours(x))


def test_a_module_compiles_into_one_graph() -> None:
    conv, pool = nxcore.nn.Conv2d(4, 4, 3, groups=4), nxcore.nn.MaxPool2d(2)
    pool = nn.Sequential(pool, nxcore.nn.BatchNorm2d(4))
    compiled = torch.compile(nn.Sequential(conv, pool), fullgraph=True, backend="eager")
    x = torch.randn(2, 4, 9, 9)
    torch.testing.assert_close(compiled(x), pool(conv(x)))
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x), pool(conv(x)))


def test_activations_compile_into_one_graph() -> None:
    modules = nn.Sequential(*(MAKE[name](nxcore.nn) for name in ACTIVATED))
    compiled = torch.compile(modules, fullgraph=True, backend="eager")
    x = torch.randn(2, 3)
    torch.testing.assert_close(compiled(x), modules(x))
    nxcore.accelerate(modules)  # they may rest now
    torch.testing.assert_close(compiled(x), modules(x))


@for_each("name", ACTIVATED)
def test_an_activation_asks_for_no_attribute_that_torch_must_look_for(
    name: str, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which takes a microsecond where the module lacks it, half of what a call may cost."""
    module, own, sought = MAKE[name](nxcore.nn), nn.Module.__getattr__, []
    monkeypatch.setattr(nn.Module, "__getattr__", lambda self, name: sought.append(name) or own(self, name))
    with torch.no_grad():
        module(torch.randn(2, 3))
    assert name in ran
    assert sought == []
