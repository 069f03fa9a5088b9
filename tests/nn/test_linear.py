"""Linear: taken where kernels may win, torch's own elsewhere; it rests where the bias costs the gain."""

from __future__ import annotations

import copy
import io
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, weight_norm

import nxcore
from nxcore.choose.contenders import Choice
from nxcore.choose.explanation import Explanation
from nxcore.measure.decision import Candidate, Decision
from nxcore.nn import linear
from nxcore.nn.served import AFTER, AWAKE, RESTS, SERVED
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.problem import Problem
from tests.null import fakes
from tests.stand_ins import stand_in
from tests.table import for_each

linear_has = stand_in(linear)

ON_CPU = "on a CPU torch computes products by its own library"
X = torch.randn(5, 4)


@pytest.fixture
def anywhere(linear_has) -> None:
    """Let kernels win on a CPU too."""
    linear_has(DEVICES={"cpu", "cuda"})


def taken(**how: Any) -> nn.Linear:
    layer = nn.Linear(4, 3, **how)
    assert nxcore.accelerate(layer).replaced == {"": "Linear"}
    return layer


@pytest.mark.parametrize("autocast", [False, True])
def test_on_a_cpu_it_is_torchs_class(autocast: bool, ran: list[str]) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.MaxPool2d(2))
    with torch.autocast("cpu", enabled=autocast):
        found = nxcore.accelerate(model)
    assert found.left == {"0": ON_CPU}
    assert type(model[0]) is nn.Linear
    assert vars(model[0]).keys() == vars(nn.Linear(4, 3)).keys()
    with torch.autocast("cpu", enabled=autocast):
        nxcore.nn.Linear(4, 3)(X).sum().backward()
    assert not ran


class Own(nn.Linear):
    """Has a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


def _hooked() -> nn.Module:
    layer = nn.Linear(4, 3)
    with pytest.warns(FutureWarning):
        return weight_norm(layer)


def _replaced() -> nn.Module:
    layer = nn.Linear(4, 3)
    layer.forward = lambda x: x
    return layer


LEFT = {
    "a subclass": (lambda: Own(4, 3), "Own is a subclass of Linear: its forward may differ"),
    "of attention": (
        lambda: nn.MultiheadAttention(4, 2).out_proj,
        "NonDynamicallyQuantizableLinear is a subclass of Linear: its forward may differ",
    ),
    "lazy": (lambda: nn.LazyLinear(3), "LazyLinear is a subclass of Linear: its forward may differ"),
    "parametrized": (lambda: parametrizations.weight_norm(nn.Linear(4, 3)), "it has parametrizations"),
    "a weight that a hook computes": (_hooked, "its weight is no plain parameter"),
    "half": (lambda: nn.Linear(4, 3).half(), "torch computes products of torch.float16"),
    "double": (lambda: nn.Linear(4, 3).double(), "torch computes products of torch.float64"),
    "meta": (
        lambda: nn.Linear(4, 3, device="meta"),
        "on the device 'meta' torch computes products by its own library",
    ),
    "a replaced forward": (_replaced, "its forward was replaced"),
}


@pytest.mark.usefixtures("anywhere")
@for_each("what", LEFT)
def test_what_is_left_is_left_with_the_reason(what: str) -> None:
    make, why = LEFT[what]
    layer = make()
    cls = type(layer)
    assert nxcore.accelerate(layer).left[""] == why
    assert type(layer) is cls


@pytest.mark.usefixtures("anywhere")
def test_kernels_serve_it_with_gradients(ran: list[str]) -> None:
    for bias in (True, False):
        torchs = nn.Linear(4, 3, bias=bias)
        layer = copy.deepcopy(torchs)
        nxcore.accelerate(layer)
        for given in (X, X[0], X.view(1, 5, 4), X.t().contiguous().t()):
            got, want = layer(given), torchs(given)
            torch.testing.assert_close(got, want)
            for out in (got, want):
                out.sum().backward()
        for p, q in zip(layer.parameters(), torchs.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
        assert {"matmul", "matmul_backward"} <= set(ran)
        assert ("add" in ran) == bias
        ran.clear()


@pytest.mark.usefixtures("anywhere")
def test_hooks_tied_weights_and_files_stay(ran: list[str]) -> None:
    model = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 6, bias=False))
    model[1].weight = model[0].weight
    seen: list[str] = []
    model[1].register_forward_hook(lambda *_: seen.append("after"))
    want = model(torch.tensor([1, 2]))
    nxcore.accelerate(model)
    torch.testing.assert_close(model(torch.tensor([1, 2])), want)
    assert seen == ["after", "after"]
    assert "matmul" in ran
    assert model[1].weight is model[0].weight
    del model[1]._forward_hooks[next(iter(model[1]._forward_hooks))]
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert type(other[1]) is nxcore.nn.Linear
        assert other[1].weight is other[0].weight
    nxcore.restore(model)
    assert type(model[1]) is nn.Linear
    assert vars(model[1]).keys() == vars(nn.Linear(4, 6)).keys()


@pytest.mark.usefixtures("anywhere")
@for_each("mode", ["plain", "grad", "autocast", "half input"])
def test_where_torch_serves_it_rests_and_a_call_is_torchs_alone(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Session(Settings(policy="frozen"), fakes.registry(fakes.backend()))
    for name in ("add", "matmul"):
        monkeypatch.setattr(linear, f"_{name}", found.op(name))
    layer, plain = taken(), nn.Linear(4, 3)
    plain.load_state_dict(layer.state_dict())
    dtype = torch.bfloat16 if mode == "half input" else torch.float32
    with (
        torch.set_grad_enabled(mode == "grad"),
        torch.autocast("cpu", enabled=mode in ("autocast", "half input")),
    ):
        for _ in range(AFTER + 10):
            out = layer(X.to(dtype))
            if mode == "grad":
                out.sum().backward()
        torch.testing.assert_close(out, plain(X.to(dtype)), rtol=0, atol=0)
    assert type(layer) in AWAKE
    assert type(layer).forward is nn.Linear.forward
    assert layer.reason == RESTS


@pytest.mark.usefixtures("anywhere")
def test_it_rests_where_it_is_moved_to_a_dtype_that_torch_serves(ran: list[str]) -> None:
    layer = taken().half()
    assert layer.reason == "torch computes products of torch.float16"
    assert type(layer).forward is nn.Linear.forward
    assert type(layer.float()) is nxcore.nn.Linear
    layer(X)
    assert ran


class Subclass(Tensor):
    """Somebody's tensors."""


@pytest.mark.usefixtures("anywhere")
def test_a_subclass_of_tensor_and_a_compiler_get_torchs_layer(ran: list[str]) -> None:
    layer = taken()
    assert type(layer(X.as_subclass(Subclass))) is Subclass
    seen: list[Any] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        seen.extend(n.target for n in graph.graph.nodes if n.op == "call_function")
        return graph.forward

    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(X), nn.functional.linear(X, layer.weight, layer.bias))
    assert seen == [torch._C._nn.linear]
    assert not ran


@pytest.mark.usefixtures("anywhere")
def test_what_torch_refuses_is_refused_in_its_words() -> None:
    layer = taken()
    with pytest.raises(RuntimeError) as wanted:
        nn.Linear(4, 3)(torch.zeros(2, 5))
    with pytest.raises(RuntimeError) as got:
        layer(torch.zeros(2, 5))
    assert str(got.value) == str(wanted.value)


def decision(chosen: str, rule: Any = "measured", **us: float) -> Decision:
    candidates = [
        Candidate(n, "torch" if n == "torch" else "fast", timing=fakes.timing([t] * 12))
        for n, t in us.items()
    ]
    return Decision(chosen, rule, "by these figures", tuple(candidates))


@dataclass
class Known:
    """A session whose decisions are given."""

    decisions: dict[str, Decision]
    pair: Decision | None = None

    def explain(self, name: str, *args: Any, decide: bool) -> Explanation:
        assert not decide
        spec = fakes.SPECS[name]
        pair = self.pair if name == "matmul" else None
        return Explanation(Problem.of(spec, spec.bind(*args)), self.decisions[name], pair=pair)

    @property
    def chooser(self) -> Any:
        made = fakes.backend()
        return SimpleNamespace(
            known=lambda p: Choice(
                self.decisions[p.op], print, next(k for k in made.kernels if k.op == p.op), made
            )
        )


QUICK = decision("torch", torch=4.0)
SAVES = decision("fast", torch=50.0, fast=30.0)
LITTLE = decision("fast", torch=50.0, fast=39.0)
NOTHING = decision("fast", torch=50.0, fast=48.5)

PAYS: dict[str, tuple[bool, Known, str]] = {
    "a gain": (True, Known({"matmul": SAVES, "add": QUICK}), ""),
    "less than the bias": (
        True,
        Known({"matmul": LITTLE, "add": QUICK}),
        "it rests: the kernel's product saves 11.0 us, adding the bias takes 4.0 us, the layer's call 8.0 us",
    ),
    "no bias": (False, Known({"matmul": LITTLE}), ""),
    "less than a call": (
        False,
        Known({"matmul": NOTHING}),
        "it rests: the kernel's product saves 1.5 us, the layer's call 5.5 us",
    ),
    "a sum without figures": (
        True,
        Known({"matmul": SAVES, "add": decision("torch")}),
        "it rests: no figures say what adding the bias takes",
    ),
    "a sum that is explored": (True, Known({"matmul": LITTLE, "add": decision("torch", "exploring")}), ""),
    "a product that is explored": (True, Known({"matmul": decision("torch", "exploring"), "add": QUICK}), ""),
    "a lock": (True, Known({"matmul": replace(LITTLE, rule="locked"), "add": QUICK}), ""),
    "both ways": (
        True,
        Known({"matmul": SAVES, "add": QUICK}, decision("fast + fast", torch=90.0, **{"fast + fast": 85.0})),
        "it rests: the kernel's product saves 5.0 us, adding the bias takes 4.0 us, the layer's call 8.0 us",
    ),
    "both ways gain": (
        True,
        Known({"matmul": LITTLE, "add": QUICK}, decision("fast + fast", torch=90.0, **{"fast + fast": 70.0})),
        "",
    ),
}


@pytest.mark.usefixtures("anywhere", "ran")
@for_each("what", PAYS)
def test_it_rests_where_the_gain_is_less_than_what_it_costs(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bias, known, why = PAYS[what]
    layer = taken(bias=bias)
    monkeypatch.setattr(linear, "PREFERENCE", SimpleNamespace(get=lambda: linear.Preference()))
    monkeypatch.setattr(linear.session, "default", lambda: known)
    with torch.no_grad():
        for _ in range(AFTER - 1):
            layer(X)
        assert layer.reason == ""
        layer(X)
    assert layer.reason == why
    assert (type(layer).forward is nn.Linear.forward) == bool(why)


@pytest.mark.usefixtures("anywhere", "ran")
def test_it_is_looked_at_ever_more_rarely(linear_has) -> None:
    layer, calls = taken(), []
    linear_has(_look=lambda *_: calls.append(vars(layer)[SERVED]))
    for _ in range(8 * AFTER + 5):
        layer(X)
    assert calls == [AFTER, 2 * AFTER, 4 * AFTER, 8 * AFTER]
    assert type(layer.eval()) is nxcore.nn.Linear  # looked at: the count begins anew
    assert vars(layer)[SERVED] == 0


@pytest.mark.usefixtures("anywhere", "ran")
def test_a_request_holds_whatever_was_measured() -> None:
    layer = taken()  # within a block of use("fake")
    for _ in range(2 * AFTER):
        layer(X)
    assert layer.reason == ""


@pytest.mark.gpu
def test_on_a_gpu_it_is_taken_and_computes_torchs_results() -> None:
    torchs = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 64, bias=False)).cuda()
    layers = copy.deepcopy(torchs)
    assert nxcore.accelerate(layers, watch=False).replaced == {"0": "Linear", "2": "Linear"}
    x = torch.randn(256, 512, device="cuda")
    with nxcore.policy("measure"):
        for _ in range(2):
            got, want = layers(x), torchs(x)
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
            for out in (got, want):
                out.sum().backward()
    for p, q in zip(layers.parameters(), torchs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-3)
