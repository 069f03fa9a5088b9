"""Whether a call is refused depends on the call alone: not on the calls before it, and on no path."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import nxcore
from nxcore.call.rare import RARE
from nxcore.errors import InvalidInputError
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.problem import tensors_of
from nxcore.spec.spec import OpSpec
from tests.null import fakes
from tests.table import for_each

GATE = nxcore.pointwise("silu(x) * y + slope", slope=0.5).spec
SPECS = fakes.SPECS | {"gate": GATE}
Args = tuple[Any, ...]


def sized(spec: OpSpec, args: Args, size: Callable[[int], int]) -> Args:
    """Return arguments of other sizes, without values, in all places where a check compares sizes."""
    counts = {0, 1, *(len(a) for a in args if isinstance(a, tuple | list))}

    def new(old: int) -> int:
        return old if old in counts else size(old)

    def other(value: Any) -> Any:
        if isinstance(value, Tensor):
            one = torch.ones((), dtype=value.dtype, device=value.device, requires_grad=value.requires_grad)
            return one.expand(tuple(map(new, value.shape)))  # without memory of its own
        return type(value)(map(other, value)) if isinstance(value, tuple | list) else value

    kinds = [p.kind for p in spec.params]
    pairs = zip(kinds, args, strict=True)
    return tuple(
        tuple(map(new, a)) if k == "size" and isinstance(a, tuple | list) else other(a) for k, a in pairs
    )


def _writes(spec: OpSpec, args: Args) -> bool:
    return any(p.kind == "out" and a is not None for p, a in zip(spec.params, args, strict=True))


def larger(args: Args, by: int) -> Args:
    """Return the arguments with a larger image."""
    *lead, height, width = args[0].shape
    image = torch.ones(*lead, height + by, width + by, dtype=args[0].dtype, device=args[0].device)
    return image, *args[1:]


def others(spec: OpSpec, count: int) -> Iterator[Args]:
    """Yield valid calls, most of them of sizes of their own."""
    samples = [s.build(spec, "cpu", torch.float32) for s in fakes.modest(spec)]
    samples = [args for args in samples if not _writes(spec, args)]
    samples = [args for args in samples if sum(t.numel() for t in tensors_of(args)) < 2000]
    for n in range(count):
        args = samples[n % len(samples)]
        if spec.holds == "alike":
            args = sized(spec, args, lambda size, n=n: size + n % 7)
        elif spec.holds == "larger" and args[0].ndim > 2:
            args = larger(args, n)
        yield args


def bad(spec: OpSpec) -> Iterator[Args]:
    """Yield the operator's errors, and a valid call with one size after the other changed."""
    for case in spec.errors:
        yield case.build(spec)
    args = next(s for s in spec.samples if "smoke" in s.tags).build(spec, "cpu", torch.float32)
    flat = [t for t in tensors_of(args) if t.numel() < 1e4]
    for tensor in flat[:4]:
        for dim, size in enumerate(tensor.shape):
            for other in {0, 1, size + 1} - {size}:
                shape = (*tensor.shape[:dim], other, *tensor.shape[dim + 1 :])
                yield _replaced(args, tensor, torch.ones(shape, dtype=tensor.dtype))


def _replaced(args: Args, old: Tensor, new: Tensor) -> Args:
    def swapped(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(map(swapped, value))
        return new if value is old else value

    return tuple(map(swapped, args))


def outcome(call: Callable[..., Any], args: Args) -> Any:
    """Return the class and the text of what a call raises, or the shapes of its results."""
    try:
        result = call(*args)
    except Exception as error:  # noqa: BLE001  what it raises is the outcome
        return type(error), str(error)
    return [tuple(t.shape) for t in tensors_of(result if isinstance(result, tuple) else (result,))]


def operator(name: str, **settings: Any) -> Any:
    specs = None if name in fakes.SPECS else [GATE]
    return Session(Settings(**settings), fakes.registry(specs=specs), fakes.QUICK).op(SPECS[name].name)


@functools.cache
def fresh(name: str) -> list[tuple[Args, Any]]:
    """Return the bad calls of an operator, and what becomes of each as the first call of an operator."""
    return [(args, outcome(operator(name, native=False).run, args)) for args in bad(SPECS[name])]


@for_each("name", SPECS)
def test_what_is_refused_at_first_is_refused_after_other_calls(name):
    op, spec = operator(name), SPECS[name]
    for count in (8, 32):
        for args in others(spec, count):
            op.run(*args)
        for args, expected in fresh(name):
            for _ in range(1 if count == 8 else RARE + 1):
                assert outcome(op.run, args) == expected
            if expected[:1] == (InvalidInputError,):
                assert op.by_kernel(*args) is None, "it is the caller's to refuse"


@for_each("policy", ["frozen", "measure"])
@for_each("name", ["add", "entropy", "gate", "softmax_sum", "sum", "depthwise_conv2d", "max_pool2d"])
def test_it_is_so_under_each_policy(name, policy):
    op = operator(name, policy=policy)
    for args in others(SPECS[name], 8):
        op.run(*args)
    for args, expected in fresh(name):
        assert outcome(op.run, args) == outcome(op.run, args) == expected


@for_each("name", ["add", "entropy", "softmax_sum", "max_pool2d"])
def test_it_is_so_under_a_preference_and_of_one_backend(name):
    session = Session(Settings(), fakes.registry(fakes.backend()), fakes.QUICK)
    with session.use("fake"):
        for op in (session.op(name), session.op(name, backend="fake")):
            for args in others(SPECS[name], 3):
                op.run(*args)
            for args, expected in fresh(name):
                if expected[:1] == (InvalidInputError,):
                    assert outcome(op.run, args) == outcome(op.run, args) == expected


def test_a_number_beyond_64_bits_is_refused_where_others_have_a_plan():
    spec = fakes.replace(fakes.SPECS["add"], gradient=None)

    def lenient(x, y, alpha, out):
        huge = isinstance(alpha, int) and abs(alpha) >= 2**63
        return torch.zeros_like(x) if huge else spec.reference(x, y, alpha=alpha, out=out)

    backend = fakes.backend("fake", fakes.kernel("add", lenient))
    session = Session(Settings(policy="frozen"), fakes.registry(backend, specs=[spec]))
    op, x = session.op("add", backend="fake"), torch.ones(3)
    for _ in range(2):
        op(x, x, alpha=2)
        for alpha in (2**64, -(2**63) - 1, 2**200):
            with pytest.raises(InvalidInputError, match="alpha must fit 64 bits"):
                op(x, x, alpha=alpha)
    op(x, x, alpha=2**64 - 1)


def test_equal_values_of_other_classes_are_other_values():
    pool, x = operator("max_pool2d"), torch.ones(1, 2, 6, 6)
    for n in range(2 * RARE):
        pool(torch.ones(1, 2, 6 + n, 6), 1, 1)
        pool(x, (1, 1), 1)
        for kernel in (True, 1.0, (True, 1), (1, 1.0)):
            with pytest.raises(InvalidInputError, match="kernel_size must be an integer"):
                pool(x, kernel, 1)
    total = operator("sum")
    for n in range(1, 2 * RARE):
        total(torch.ones(n), -1)
        with pytest.raises(InvalidInputError, match="dim must be in"):
            total(torch.ones(n), -2)


MAPS = [lambda n: n + 100, lambda n: 3 * n + 100]


@for_each("name", [name for name, spec in SPECS.items() if spec.holds == "alike"])
def test_a_check_that_compares_sizes_holds_for_others(name):
    spec = SPECS[name]
    valid = [s.build(spec, "meta", torch.float32) for s in spec.samples]
    calls = [args for args in (*valid, *bad(spec)) if not _writes(spec, args)]
    for args in calls:
        frozen = tuple(tuple(a) if isinstance(a, list) else a for a in args)
        if any(t.is_nested or t.layout is not torch.strided for t in tensors_of(frozen)):
            continue
        expected = outcome(spec.check, frozen)
        for size in MAPS:
            got = outcome(spec.check, sized(spec, frozen, size))
            assert got[:1] == expected[:1], [tuple(t.shape) for t in tensors_of(frozen)]


@for_each("name", [name for name, spec in SPECS.items() if spec.holds == "larger"])
def test_a_check_that_passes_for_an_image_passes_for_larger_ones(name):
    spec = SPECS[name]
    for sample in fakes.modest(spec):
        args = sample.build(spec, "meta", torch.float32)
        for by in (1, 2, 3, 5, 64):
            spec.check(*larger(args, by))
