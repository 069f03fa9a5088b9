"""Overhead of a call through nxcore over a direct call of the winner, as a ratio within one run.

The limit is 1.0 us for a call plus 0.35 us for each tensor, on a host that forms one tensor's key in 0.34
us. A call with a gradient may take 5.0 us more, on a host where a bare ``autograd.Function`` takes 4.0 us.
Under autocast a call may take 1.1 times what it takes outside, or 0.15 us more, on Python's path 0.4.
Hosts differ, so both are measured here in turns, and the limit is in units of keys, or of bare functions.
Each side is the minimum of many short rounds, because noise only adds time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from nxcore.call.operator import Operator
from nxcore.errors import present
from nxcore.expression.activations import ACTIVATIONS
from nxcore.interop import autocast, native
from nxcore.interop.autograd import Differentiable
from nxcore.interop.own import own_of
from nxcore.ops import nxcore_ops
from nxcore.registry.discovery import discover
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.problem import Problem, tensors_of

REFERENCE_KEY_US = 0.34
REFERENCE_FUNCTION_US = 4.0
GRADIENT_US = 5.0
CALL_US, TENSOR_US = 1.0, 0.35
PYTHONS_READ_US = 0.4
"""What Python's path may take more for an operator that reads a setting of torch's in each call."""

ROUNDS, CALLS = 40, 2_000
LONGER = 200
"""Calls of a round of those that take microseconds: a round of a millisecond is rarely interrupted."""


def nothing(*args: Any) -> Any:
    """Stand in for a kernel that takes no time."""
    return args[0]


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


SMOKE = {
    spec.name: (spec.name, spec.tagged("smoke")[0].build(spec, "cpu", torch.float32)) for spec in nxcore_ops()
}
CASES: Mapping[str, tuple[str, tuple[Any, ...]]] = SMOKE | {
    "softmax_sum of 8": ("softmax_sum", ([_x(4, 16, 8, 8) for _ in range(8)], _x(8))),
    "add of itself": ("add", (_x(64, 128),) * 2),
}


def _round_us(call: Callable[[], Any], calls: int) -> float:
    started = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - started) / calls * 1e-3


def _least_us(calls: Mapping[str, Callable[[], Any]], each: int = CALLS) -> dict[str, float]:
    """Return the minimum microseconds of a call of each, in alternating rounds of ``each`` calls."""
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            least[name] = min(least[name], _round_us(call, each))
    return least


SESSION = Session(Settings(native=Settings.from_environment().native), discover(found=()))  # by either path


def _above_direct(op: Operator, bound: tuple[Any, ...], call: Callable[[], Any]) -> tuple[float, float]:
    """Return the overhead of ``call``, a hit, over a direct call, and its limit, in microseconds."""
    tensors = tensors_of(bound)
    op.clear()
    op.replan(op.key(*bound), nothing)
    assert call() is bound[0], "the call is a hit"
    x = tensors[0]
    least = _least_us(
        {
            "through nxcore": call,
            "direct": lambda: nothing(*bound),
            "key": lambda: (x.shape, x.stride(), x.dtype, x.device),
            "loop": lambda: None,
        }
    )
    unit = (least["key"] - least["loop"]) / REFERENCE_KEY_US
    reads = any(p.read for p in op.spec.params) and native.of(op) is None
    limit = CALL_US + TENSOR_US * len(tensors) + PYTHONS_READ_US * reads
    return least["through nxcore"] - least["direct"], limit * unit


def _again_if_over(measured: Callable[[], tuple[float, float]]) -> tuple[float, float]:
    """Measure up to three times, because the host's clock rate may change between the two sides."""
    for _ in range(2):
        cost, budget = measured()
        if cost <= budget:
            return cost, budget
    return measured()


def _gate(case: str, overhead: float, budget: float, record: Any, budgets: float = 1.0) -> None:
    record("overhead_us", overhead)
    record("budgets", overhead / budget)
    print(
        f"\n{case}: {overhead:.2f} us over a direct call, "
        f"{overhead / budget:.2f} of its limit {budget:.2f} us"
    )
    assert overhead <= budgets * budget


@pytest.mark.parametrize("case", CASES)
def test_a_hit_stays_within_its_budget(case: str, record_property: Any) -> None:
    name, args = CASES[case]
    op = SESSION.op(name)
    bound = args if case in SMOKE else op.spec.bind(*args)
    pairs = list(zip(op.spec.params, bound, strict=True))
    given = [a for p, a in pairs if not p.keyword]
    named = {p.name: a for p, a in pairs if p.keyword and a is not p.default}
    cost = _again_if_over(lambda: _above_direct(op, bound, lambda: op(*given, **named)))
    _gate(case, *cost, record_property)


TORCHS, READS = 1.1, 1.6
"""A call that torch serves, in its own calls; and one that reads a setting of torch's in Python."""


@pytest.mark.skipif(native.found().extension is None, reason=f"nxcore-native: {native.found().detail}")
@pytest.mark.parametrize("grad", [False, True], ids=["", "grad"])
@pytest.mark.parametrize("name", [name for name in (*SMOKE, *ACTIVATIONS) if own_of(SESSION.op(name).spec)])
def test_where_torch_serves_a_call_costs_what_torchs_does(name: str, grad: bool) -> None:
    op, spec = SESSION.op(name), SESSION.op(name).spec
    own, bound = present(own_of(spec), "own"), spec.tagged("smoke")[0].build(spec, "cpu", torch.float32)
    for tensor in tensors_of(bound):
        tensor.requires_grad_(grad and tensor.is_floating_point() and spec.gradient is not None)
    given = bound[: min(own.most, sum(a is not p.default for p, a in zip(spec.params, bound, strict=True)))]
    op.replan(op.key(*bound), spec.reference)

    limit = READS if any(p.read for p in spec.params) else TORCHS

    def measured() -> tuple[float, float]:
        least = _least_us({"ours": lambda: op(*given), "torchs": lambda: own.function(*given)}, LONGER)
        return least["ours"], limit * least["torchs"]

    ours, most = _again_if_over(measured)
    print(f"\n{name}{' with gradients' * grad}: {ours:.2f} us, {limit * ours / most:.2f} of torch's own")
    assert ours <= most


def test_a_pair_made_anew_is_compared_item_by_item(record_property: Any) -> None:
    op, x = SESSION.op("avg_pool2d"), _x(2, 8, 16, 16)
    three = 3  # or the compiler would make the pair once
    bound = op.spec.bind(x, (3, 3), (1, 1), (1, 1))
    cost = _above_direct(op, bound, lambda: op(x, (three, 3), (1, 1), (1, 1)))
    _gate("a new pair", *cost, record_property, budgets=1.25)  # the budget is one of tensors


UNDER_AUTOCAST, AUTOCAST_US, PYTHONS_AUTOCAST_US = 1.1, 0.15, 0.4
PYTHONS_DTYPE_US = 0.8
"""What Python's path may take more where autocast's dtype is part of what a plan is found by."""


@pytest.mark.parametrize(
    "case", [case for case, (name, _) in CASES.items() if SESSION.op(name).spec.autocast]
)
def test_under_autocast_a_call_costs_what_it_costs_outside(case: str, record_property: Any) -> None:
    """The kernel takes as long as torch's own; arguments have autocast's dtype."""
    name, args = CASES[case]
    op = SESSION.op(name)
    bound = args if case in SMOKE else op.spec.bind(*args)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        bound = present(autocast.cast(op.spec, bound), "cast")

    def kernel(*args: Any) -> Any:
        return op.spec.reference(*args)

    def measured() -> tuple[float, float]:
        op.clear()
        op.replan(op.key(*bound), kernel)
        x = tensors_of(bound)[0]

        inside = outside = key = float("inf")
        for _ in range(ROUNDS):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                inside = min(inside, _round_us(lambda: op.run(*bound), LONGER))
            outside = min(outside, _round_us(lambda: op.run(*bound), LONGER))
            key = min(key, _round_us(lambda: (x.shape, x.stride(), x.dtype, x.device), LONGER))
        lowers = "lower" in op.spec.autocast.values()
        pythons = PYTHONS_AUTOCAST_US + PYTHONS_DTYPE_US * lowers
        free = (pythons if native.of(op) is None else AUTOCAST_US) * key / REFERENCE_KEY_US
        return inside, max(UNDER_AUTOCAST * outside, outside + free)

    inside, limit = _again_if_over(measured)
    record_property("budgets", inside / limit)
    print(f"\n{case}: {inside:.2f} us under autocast, {inside / limit:.2f} of its limit {limit:.2f} us")
    assert inside <= limit


class Bare(torch.autograd.Function):
    """The smallest function that saves its inputs and has a backward pass."""

    @staticmethod
    def forward(ctx: Any, *flat: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*flat)
        return flat[0].detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        raise NotImplementedError


class BareOfThree(Bare):
    """The same with two more results, which have no gradient."""

    @staticmethod
    def forward(ctx: Any, *flat: torch.Tensor) -> Any:
        ctx.save_for_backward(*flat)
        first, *rest = three(*flat)
        ctx.mark_non_differentiable(*rest)
        return first, *rest


def three(*args: Any) -> tuple[torch.Tensor, ...]:
    """Stand in for a kernel that also returns tensors for the backward pass."""
    first = apart(*args)
    return first, first.detach(), first.detach()


def apart(first: Any, *args: Any) -> Any:  # noqa: ARG001  the shape every kernel has
    """Stand in for a kernel: it only allocates a new tensor."""
    return (first if isinstance(first, torch.Tensor) else first[0]).detach()


@pytest.mark.parametrize(
    "case", [case for case, (name, _) in CASES.items() if SESSION.op(name).spec.gradient]
)
def test_a_gradient_costs_little_more_than_torchs_own_bridge(case: str, record_property: Any) -> None:
    name, args = CASES[case]
    op = SESSION.op(name)
    bound, spec = op.spec.bind(*args) if case not in SMOKE else args, op.spec
    tensors, described = tensors_of(bound), Problem.of(spec, bound).args

    def pair(*args: Any) -> Any:
        return apart(*args), tensors[0]

    kernel, bridge = (three, BareOfThree) if spec.gradient.keeps else (apart, Bare)

    def measured() -> tuple[float, float]:
        op.replan(op.key(*bound), kernel)
        plain = _least_us({"plain": lambda: op.run(*bound)}, LONGER)["plain"]
        try:
            for t in tensors:
                t.requires_grad_(t.is_floating_point())
            forward = pair if spec.gradient.forward else kernel
            joined = Differentiable(spec, described, spec.gradient, forward, nothing, nothing)
            op.replan(op.key(*bound), joined)
            least = _least_us(
                {
                    "joined": lambda: op.run(*bound),
                    "bare": lambda: bridge.apply(*tensors),
                    "detach": lambda: kernel(*bound),
                },
                LONGER,
            )
        finally:
            for t in tensors:
                t.requires_grad_(False)
        bare = least["bare"] - least["detach"]
        return least["joined"] - plain, GRADIENT_US / REFERENCE_FUNCTION_US * bare

    above, limit = _again_if_over(measured)
    record_property("gradient_us", above)
    print(f"\n{case}: a gradient takes {above:.2f} us, {above / limit:.2f} of its limit {limit:.2f} us")
    assert above <= limit
