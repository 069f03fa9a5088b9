"""The grammar of "wrong only when ...": a condition, and how a result is wrong where it holds.

Mutations of the source of a plain kernel are the other rule. Nothing here reads nxcore: neither its
references nor its samples.
"""

import ast
import copy
import inspect
import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.hostile import plain
from tests.hostile.plain import PLAIN, Call, Dice

MAIN = threading.main_thread()

MARK = "NXCORE_TEST_STATE"
"""A variable of the environment, which a program sets in the middle of its calls."""


@dataclass
class World:
    """What a kernel may know besides its arguments.

    Attributes
    ----------
    seconds : float
        Since the program began.
    begun : bool
        Whether its calls have begun.
    threads : int
        Torch's number of them at first.
    """

    seconds: float = 0.0
    begun: bool = False
    threads: int = field(default_factory=torch.get_num_threads)


@dataclass
class Moment:
    """A call as a hostile kernel sees it."""

    args: tuple[Any, ...]
    count: int
    used: int
    world: World
    dice: Dice
    before: tuple[int, ...]
    tensors: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.tensors = list(leaves(self.args))

    @property
    def first(self) -> Tensor:
        return self.tensors[0]


def leaves(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested arguments."""
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from leaves(one)


When = Callable[[Moment], bool]

KEY, GATE, LATE, RATE = "problem", "gate", "later", "share"
"""What ``docs/trust.md`` promises of a condition: no wrong result, as the first call of each problem is
audited; none, as the gate tries it; some until the next audit; some by the formula of faults of a share."""


class Condition(NamedTuple):
    """When a kernel is wrong; ``of`` draws its number, and ``ops`` are those that it can occur for."""

    promise: str
    of: Callable[[Dice], When]
    ops: tuple[str, ...] = tuple(PLAIN)


def _numbers(test: Callable[[Tensor], Tensor]) -> Callable[[Dice], When]:
    return lambda dice: lambda now: any(bool(test(t).any()) for t in now.tensors)


def _plain(promise: str, when: When, *ops: str) -> Condition:
    return Condition(promise, lambda dice: when, ops or tuple(PLAIN))


def _over(dice: Dice) -> When:
    most = dice.choice((1_500, 4_000, 12_000))
    return lambda now: now.first.numel() > most


def _after(dice: Dice) -> When:
    most = dice.choice((1, 2, 8, 16, 17, 30, 70))
    return lambda now: now.used > most


def _later(dice: Dice) -> When:
    least = dice.choice((0.5, 2.0, 4.0))
    return lambda now: now.world.seconds > least


def _seldom(dice: Dice) -> When:
    share = dice.choice((0.5, 0.2, 0.1, 0.03))
    return lambda now: now.world.begun and now.dice.random() < share


def _every(dice: Dice) -> When:
    step, place = dice.choice(((2, 1), (3, 2), (7, 3), (16, 0)))
    return lambda now: now.world.begun and now.used % step == place


def _drawn(dice: Dice) -> When:
    edge = dice.choice((0.0, 1.0, 1.5))
    return lambda now: float(now.first.reshape(-1)[0]) > edge


CONDITIONS = {
    "more elements than": Condition(KEY, _over),
    "a type of 16 bits": _plain(KEY, lambda now: now.first.dtype is torch.bfloat16),
    "gaps between elements": _plain(KEY, lambda now: not now.first.is_contiguous()),
    "an odd number of elements": _plain(KEY, lambda now: now.first.numel() % 2 == 1),
    "gradients are on": _plain(KEY, lambda now: torch.is_grad_enabled()),
    "no sample": _plain(KEY, lambda now: now.world.begun),
    "an odd address": _plain(GATE, lambda now: now.first.data_ptr() % 16 != 0),
    "an offset": _plain(GATE, lambda now: now.first.storage_offset() > 0),
    "x is y": _plain(GATE, lambda now: len(now.tensors) > 1 and now.tensors[0] is now.tensors[1], "add"),
    "another thread": _plain(GATE, lambda now: threading.current_thread() is not MAIN),
    "inference mode": _plain(GATE, lambda now: torch.is_inference_mode_enabled()),
    "requires_grad": _plain(GATE, lambda now: any(t.requires_grad for t in now.tensors)),
    "large alpha": _plain(GATE, lambda now: abs(now.args[2]) > 1e3, "add"),
    "small alpha": _plain(GATE, lambda now: abs(now.args[2]) < 1e-3, "add"),
    "NaN": Condition(RATE, _numbers(torch.isnan)),
    "infinity": Condition(RATE, _numbers(torch.isinf)),
    "minus infinity": Condition(RATE, _numbers(torch.isneginf)),
    "-0": Condition(RATE, _numbers(lambda t: (t == 0) & t.signbit())),
    "denormal": Condition(RATE, _numbers(lambda t: (t != 0) & (t.abs() < torch.finfo(t.dtype).tiny))),
    "ties": _plain(RATE, lambda now: bool(now.first.isfinite().all()) and now.first.unique().numel() < 12),
    "large numbers": Condition(RATE, _numbers(lambda t: t.isfinite() & (t.abs() > 500))),
    "no negative number": _plain(RATE, lambda now: bool((now.first >= 0).all())),
    "a first element above": Condition(RATE, _drawn),
    "an address again": _plain(RATE, lambda now: now.world.begun and now.first.data_ptr() in now.before),
    "a share of the calls": Condition(RATE, _seldom),
    "each so-manieth call": Condition(RATE, _every),
    "calls from the n-th on": Condition(LATE, _after),
    "calls after a time": Condition(LATE, _later),
    "calls that no first audit sees": _plain(
        LATE, lambda now: now.used > 16 and now.used & (now.used - 1) != 0
    ),
    "a variable of the environment": _plain(LATE, lambda now: MARK in os.environ),
    "deterministic mode": _plain(LATE, lambda now: torch.are_deterministic_algorithms_enabled()),
    "another number of threads": _plain(LATE, lambda now: torch.get_num_threads() != now.world.threads),
}
"""By name."""


# How a result is wrong.


def _spoiled(result: Tensor, part: Any) -> Tensor:
    """Change a part of a result by more than any tolerance."""
    some = result[part]
    result[part] = some ^ True if some.dtype is torch.bool else some + some.abs() + 1
    return result


def _a_little(result: Tensor) -> Tensor:
    if not result.is_floating_point():
        return _spoiled(result, ...)
    return result.mul_(1 + (2.0**-8 if result.dtype is torch.float32 else 2.0**-3))


def _one(result: Tensor, dice: Dice) -> tuple[int, ...]:
    return tuple(dice.randrange(n) for n in result.shape)


def _empty(result: Tensor) -> Tensor:
    """Leave the last row to whatever memory holds."""
    found = torch.empty_like(result)
    if result.ndim and len(result) > 1:
        found[:-1] = result[:-1]
        return found
    return found


def _written(result: Tensor, now: Moment) -> Tensor:
    with torch.inference_mode(now.first.is_inference()):
        flat = now.first.detach().as_strided((1,), (1,))
        flat += flat.abs() + 1
    return result


def _viewed(result: Tensor, now: Moment) -> Tensor:
    """Return the result in an input's memory, where it fits."""
    for given in now.tensors:
        if given.shape == result.shape and given.dtype == result.dtype:
            return given.detach().copy_(result)
    return _spoiled(result, ...)


def part(result: Tensor, start: int, behind: int) -> Tensor:
    """Return the result as a part of more memory."""
    whole = result.new_empty(start + result.numel() + behind)
    return whole[start : start + result.numel()].view(result.shape).copy_(result)


def _negated(result: Tensor) -> Tensor:
    return torch._neg_view(-result) if result.is_floating_point() else _spoiled(result, ...)


HOWS: dict[str, Callable[[Tensor, Moment, dict[Any, Tensor]], Tensor]] = {
    "one element": lambda r, now, kept: _spoiled(r, _one(r, now.dice)),
    "the last row": lambda r, now, kept: _spoiled(r, -1 if r.ndim else ...),
    "all": lambda r, now, kept: _spoiled(r, ...),
    "a little": lambda r, now, kept: _a_little(r),
    "NaN": lambda r, now, kept: r.fill_(torch.nan) if r.is_floating_point() else _spoiled(r, ...),
    "zeros": lambda r, now, kept: r.zero_() if bool(r.any()) else _spoiled(r, ...),
    "an earlier result": lambda r, now, kept: kept.get((r.shape, r.dtype), _spoiled(r, ...)).clone(),
    "not written": lambda r, now, kept: _empty(r),
    "an input changed": lambda r, now, kept: _written(r, now),
    "an input's memory": lambda r, now, kept: _viewed(r, now),
    "a negative bit": lambda r, now, kept: _negated(r),
    "names": lambda r, now, kept: r.refine_names(*(f"d{i}" for i in range(r.ndim))),
    "an offset in memory": lambda r, now, kept: part(r, 1, 0),
    "more memory": lambda r, now, kept: part(r, 0, 1 + now.dice.randrange(4096)),
    "a buffer again": lambda r, now, kept: kept.setdefault(("buffer", r.shape, r.dtype), r.clone()).copy_(r),
}
"""By name. ``kept`` has the kernel's earlier results."""


def conditional(op: str, condition: str, how: str, seed: int) -> Callable[[World], Call]:
    """Return what makes a kernel that is wrong under a condition; each has a memory of its own."""

    def made(world: World) -> Call:
        dice = random.Random(seed)
        when, spoil = CONDITIONS[condition].of(dice), HOWS[how]
        right = PLAIN[op].call(PLAIN[op].kernel)
        kept: dict[Any, Tensor] = {}
        before: list[int] = []
        counts = [0, 0]

        def call(*args: Any) -> Any:
            counts[0] += 1
            counts[1] += world.begun
            now = Moment(args, *counts, world, dice, tuple(before))
            held = when(now)
            result = right(*args)
            before[:] = [*before[-1:], now.first.data_ptr()]
            earlier = result.detach().clone()
            if held and result.numel():
                result = spoil(result, now, kept)
            kept[result.shape, result.dtype] = earlier
            return result

        return call

    return made


# Mutations of a plain kernel's syntax.

SWAPS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Add, ast.Sub), ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,), ast.MatMult: (ast.Mult,), ast.BitOr: (ast.BitAnd,), ast.BitAnd: (ast.BitOr,),
    ast.Gt: (ast.GtE, ast.Lt), ast.NotEq: (ast.Eq, ast.Gt), ast.USub: (ast.UAdd,), ast.Invert: (ast.UAdd,),
}  # fmt: skip
"""An operator -> those that may come in its place."""

WORDS = {
    "sum": "amax", "amax": "sum", "exp": "exp2", "log": "log2", "maximum": "minimum", "min": "max",
    "zeros": "ones", "any": "all", "WIDE": "NARROW", "max": "min", "isnan": "isinf", "clamp_min": "clamp_max",
    "inf": "nan", "stop": "start", "step": "pad", "high": "wide", "i": "j", "j": "i", "left": "right",
}  # fmt: skip
"""A name -> another in its place; NARROW is a type of 16 bits."""


def mutants(op: str) -> Iterator[tuple[str, Callable[[World], Call]]]:
    """Yield each kernel that differs from the plain one in one place of its syntax, and the place."""
    kernel = PLAIN[op].kernel
    tree = ast.parse(inspect.getsource(kernel))
    for at, node in enumerate(ast.walk(tree)):
        for what, change in _changes(node):
            mine = copy.deepcopy(tree)
            found = list(ast.walk(mine))[at]
            change(found)
            code = compile(ast.fix_missing_locations(mine), f"<{op}>", "exec")
            yield f"line {getattr(node, 'lineno', 0)}: {what}", _run(op, kernel.__name__, code)


def _run(op: str, name: str, code: Any) -> Callable[[World], Call]:
    def made(world: World) -> Call:
        space = dict(vars(plain))
        exec(code, space)
        return PLAIN[op].call(space[name])

    return made


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Yield the changes of one node, in words and as what is done to a copy of it."""
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.UnaryOp):
        for other in SWAPS.get(type(node.op), ()):
            yield f"{_word(node.op)} to {_word(other())}", lambda n, other=other: setattr(n, "op", other())
    if isinstance(node, ast.Compare):
        for other in SWAPS.get(type(node.ops[0]), ()):
            yield (
                f"{_word(node.ops[0])} to {_word(other())}",
                lambda n, other=other: setattr(n, "ops", [other()]),
            )
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        for value in (node.value + 1, node.value - 1):
            yield f"{node.value} to {value}", lambda n, value=value: setattr(n, "value", value)
    word = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    if word in WORDS and not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)):
        place = "id" if isinstance(node, ast.Name) else "attr"
        yield f"{word} to {WORDS[word]}", lambda n: setattr(n, place, WORDS[word])
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "min":
            yield "the bound of a tile left out", lambda n: n.args.pop()
            yield "a bound off by one", lambda n: n.args.append(ast.parse("x.shape[-1] - 1").body[0].value)
        if isinstance(node.func, ast.Name) and node.func.id == "range":
            last = -2 if len(node.args) == 3 else -1
            yield "a last turn less", lambda n: n.args.__setitem__(last, _less(n.args[last]))
    if isinstance(node, ast.AugAssign):
        yield (
            "a sum that forgets",
            lambda n: (setattr(n, "__class__", ast.Assign), setattr(n, "targets", [n.target])),
        )
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) and len(node.slice.elts) == 2:
        yield "indices exchanged", lambda n: n.slice.elts.reverse()


def _less(node: Any) -> ast.AST:
    return ast.BinOp(node, ast.Sub(), ast.Constant(1))


def _word(operator: ast.AST) -> str:
    return type(operator).__name__
