"""The rules of every kernel, one function each. A rule raises ``Broken``, ``Declined`` or ``Inapplicable``.

A rule may report another rule as broken: a kernel that raises breaks ``raises_nothing``, and a wrong result
may be memory that was never written. Rules that need a CUDA device are in ``cuda``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nxcore.spec.device import synchronize
from nxcore.spec.kernel import Verdict
from nxcore.spec.layout import overlaps
from nxcore.spec.precision import coarser, precision_class
from nxcore.spec.problem import TensorMeta, leaves
from nxcore.testing.cell import Broken, Cell, Declined, Inapplicable, modest
from nxcore.testing.memory import in_form
from nxcore.testing.opcheck import agrees_when_compiled, passes_opcheck
from nxcore.testing.process import agrees_in_a_forked_child, leaves_the_process_alone
from nxcore.trust.memory import Guarded, Walls, bits, poison, same
from nxcore.trust.state import UNCHANGED
from nxcore.trust.truth import Truth, agreement, without_out

Rule = Callable[[Cell], float | None]

REPEATS, PATIENCE, PROMPT_MS, WAITING_MS = 10, 2.0, 5.0, 100.0
"""The last two bound a repeated call: milliseconds of this thread's own time, and in all."""


def agrees_with_float64(cell: Cell) -> float:
    """Agree with the float64 reference; change no input, and lay the result out as torch does.

    Returns the relative error in the 2-norm. Otherwise the broken rule is ``leaves_inputs_alone``,
    ``writes_into_out``, ``has_torchs_layout``, ``writes_every_element`` or this one.
    """
    args = cell.build()
    call = cell.plan(args)
    out = _out(cell, args)
    if out is not None:
        poison(out)
    truth, results = Truth.of(cell.spec, args, exactly=cell.exact), []

    def noted(*given: Any) -> Any:
        results.append(call(*given))
        return results[0]

    found = agreement(noted, cell.spec, args, truth)
    if found.ok or cell.excused(found):
        return found.error
    if found.reason.startswith(UNCHANGED):
        raise Broken("leaves_the_process_alone", found.reason)
    raise Broken(_diagnosis(cell, call, args, truth, results[0]), found.reason)


def _diagnosis(cell: Cell, call: Callable[..., Any], args: tuple[Any, ...], truth: Truth, result: Any) -> str:
    """Return the rule that a wrong result broke."""
    fresh, out, got = cell.build(), _out(cell, args), tuple(leaves(result))
    if not same(bits(cell.inputs(fresh)), bits(cell.inputs(args))):
        return "leaves_inputs_alone"
    if out is not None and (len(got) != 1 or got[0].data_ptr() != out.data_ptr()):
        return "writes_into_out"
    if not in_form(truth, result, laid_out=out is None):
        return "has_torchs_layout"
    return "writes_every_element" if _left_out(cell, call, fresh, got) else "agrees_with_float64"


def _left_out(cell: Cell, call: Callable[..., Any], args: tuple[Any, ...], got: tuple[Tensor, ...]) -> bool:
    """Return whether the content of new memory changes the result."""
    out = _out(cell, args)
    if out is not None:
        poison(out, 2.5)
    try:
        with Guarded(fill=2.5):
            again = tuple(leaves(call(*args)))
    except Broken:
        return False  # the kernel can't run in this mode
    return len(again) == len(got) and not same(bits(got), bits(again))


def takes_a_smoke_sample(cell: Cell) -> None:
    """Take at least one smoke sample. A kernel that takes none can't be verified, so it never runs."""
    problems = [cell.on(s).problem() for s in cell.spec.tagged("smoke")]
    if all(p.view for p in problems):
        raise Inapplicable(f"{cell.spec.name} returns views: there is nothing to run")
    verdicts = [cell.ask(p) for p in problems]
    if not any(verdicts):
        reasons = "; ".join(dict.fromkeys(v.reason for v in verdicts))
        raise Broken("takes_a_smoke_sample", f"it refuses every smoke sample in {cell.type}: {reasons}")


def gives_reasons(cell: Cell) -> None:
    """Give a reason with every refusal."""
    for sample in modest(cell.spec, cell.kernel):
        cell.ask(cell.on(sample).problem())


def answers_equal_problems_alike(cell: Cell) -> None:
    """Accept or refuse equal problems alike, also when they are checked again in another order."""
    cells = [cell.on(s) for s in modest(cell.spec, cell.kernel)]
    first = [one.ask(one.problem()) for one in cells]
    for _ in range(2):
        for one, then in reversed(list(zip(cells, first, strict=True))):
            now = one.ask(one.problem())
            if (now.ok, now.reason) != (then.ok, then.reason):
                raise Broken(
                    "answers_equal_problems_alike",
                    f"{_sample(one)} was {_answer(then)}, and then {_answer(now)}",
                )


def _answer(verdict: Verdict) -> str:
    return "taken" if verdict else f"refused ({verdict.reason})"


def repeats_itself(cell: Cell) -> None:
    """Return the same bits in ten runs, if the kernel claims to be deterministic."""
    if not cell.kernel.deterministic:
        raise Declined("doesn't claim to be deterministic")
    simulated = cell.machine.simulated  # a simulator runs its threads in one order
    for one in [cell.smallest()] if simulated else cell.taken():
        args = one.build()
        call = one.plan(args)
        first = bits(leaves(call(*args)))
        if not all(same(first, bits(leaves(call(*args)))) for _ in range(1 if simulated else REPEATS)):
            raise Broken("repeats_itself", f"{_sample(one)}: the bits of two runs differ")


def reads_no_further(cell: Cell) -> None:
    """Return the same result with NaN around the inputs in memory, which shows a missing mask."""
    one = cell.first()
    args = one.build()
    truth = Truth.of(one.spec, args)
    walls = Walls(args)
    result = one.plan(walls.args)(*walls.args)
    if walls.scratched:
        raise Broken("stays_within_its_output", f"{_sample(one)}: it wrote outside an argument")
    one.judge("reads_no_further", truth, result, laid_out=_out(one, args) is None, about=_sample(one))


def stays_within_its_output(cell: Cell) -> None:
    """Write only inside allocated memory: guards on both sides stay unchanged, on every smoke sample.

    In a simulator, on two of them.
    """
    strange, chosen = 0, [cell] if cell.sample else cell.taken()
    if cell.machine.simulated:
        chosen = chosen[:2]  # a call takes up to seconds
    if not chosen:
        raise Inapplicable("the kernel takes no smoke sample")
    for one in chosen:
        args = one.build()
        call = one.plan(args)
        guard = Guarded()
        try:
            with guard:
                call(*args)  # the first may compile and allocate; what it writes outside breaks no heap
                result = call(*args)
        except Broken as error:
            raise Inapplicable(f"doesn't run in a torch dispatch mode: {error.message}") from error
        if guard.scratched:
            raise Broken("stays_within_its_output", f"{_sample(one)}: it wrote outside of what it allocated")
        inside = {block.untyped_storage().data_ptr() for block, _ in guard.blocks}
        made = any(t.untyped_storage().data_ptr() in inside for t in leaves(result))
        strange += not made and _out(one, args) is None
    if strange:
        raise Inapplicable("its results aren't allocated by torch")


def reads_new_data(cell: Cell) -> None:
    """Return a new result for new numbers at the same addresses, and don't change the earlier result."""
    one = cell.smallest()
    args = without_out(one.spec, one.build())
    call = one.plan(args)
    own = {t.untyped_storage().data_ptr() for t in leaves(args)}
    earlier = [t for t in leaves(call(*args)) if t.untyped_storage().data_ptr() not in own]  # no views
    kept = bits(earlier)
    bound = one.spec.sketches(*one.problem().args)  # their numbers are constrained, and may be negative
    for param, value in zip(one.spec.params, args, strict=True):
        for tensor in leaves((value,)):
            if tensor.is_floating_point() and not overlaps(TensorMeta.of(tensor)):
                tensor.mul_(0.5 if param.name in bound else -0.5)
    result = call(*args)
    if not same(kept, bits(earlier)):
        raise Broken("keeps_earlier_results", f"{_sample(one)}: a second call wrote into the first's result")
    one.judge("reads_new_data", Truth.of(one.spec, args), result, about=_sample(one))


def reads_moved_data(cell: Cell) -> None:
    """Return the same result at another address, aligned or not: a plan must not keep an address."""
    one = cell.smallest()
    args = without_out(one.spec, one.build())
    truth = Truth.of(one.spec, without_out(one.spec, one.build()))
    call = one.plan(args, anew=True)  # its first call is made here
    copies = {
        "elsewhere": Walls(args, 64, 3.0).args,
        "at an odd address": Walls(args, 65, 3.0).args,
    }
    call(*args)
    for tensor in leaves(args):
        if not overlaps(TensorMeta.of(tensor)):
            poison(tensor)
    for where, moved in copies.items():
        one.judge("reads_moved_data", truth, call(*moved), about=f"{_sample(one)} {where}")


def reads_numbers_anew(cell: Cell) -> None:
    """Read a number that may change between calls from the call: the plan must not keep it."""
    for one in cell.taken():
        args = without_out(one.spec, one.build())
        places = [
            i for i, p in enumerate(one.spec.params)
            if p.kind in ("scalar", "operand") and type(args[i]) in (int, float)
        ]  # fmt: skip
        if not places:
            continue
        call = one.plan(args)
        call(*args)
        other = tuple(a * 3 if i in places else a for i, a in enumerate(args))
        one.judge("reads_numbers_anew", Truth.of(one.spec, other), call(*other), about=_sample(one))
        return
    raise Inapplicable(f"no smoke sample of {cell.spec.name} holds a number that may change")


def takes_tensors_that_need_gradients(cell: Cell) -> None:
    """Take tensors that need a gradient, under ``no_grad``."""
    one = cell.first()
    args = one.build()
    truth, call = Truth.of(one.spec, args), one.plan(args)
    for tensor in leaves(args):
        tensor.requires_grad_(tensor.is_floating_point())
    one.judge("takes_tensors_that_need_gradients", truth, call(*args), about=_sample(one))


def writes_into_out(cell: Cell) -> None:
    """Write the given ``out`` in its own layout, return it, and write nothing else."""
    place = _place_of_out(cell)
    one = cell.smallest()
    args = without_out(one.spec, one.build())
    truth = Truth.of(one.spec, args)
    declined = []
    for layout, empty in LAYOUTS.items():
        wall = Walls(empty(truth.torch[0]))
        poison(wall.args)
        given = (*args[:place], wall.args, *args[place + 1 :])
        try:
            result = one.plan(given)(*given)
        except Declined as refusal:
            declined.append(refusal)
            continue
        if not isinstance(result, Tensor) or result.data_ptr() != wall.args.data_ptr():
            raise Broken("writes_into_out", f"{layout} out must be written and returned, got another tensor")
        if wall.scratched:
            raise Broken("stays_within_its_output", f"it wrote outside {layout} out")
        one.judge("writes_into_out", truth, result, laid_out=False, about=f"{layout} out")
    if len(declined) == len(LAYOUTS):
        raise Declined("; ".join(dict.fromkeys(d.reason for d in declined)), declined[0].code)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "torch's": torch.empty_like,
    "a transposed": lambda t: torch.empty_like(t.mT.contiguous()).mT if t.ndim > 1 else torch.empty_like(t),
    "a strided": lambda t: t.new_empty((*t.shape, 2))[..., 0],
}


def writes_in_place(cell: Cell) -> None:
    """Take an input as ``out``, if the kernel claims to be in_place_safe."""
    place = _place_of_out(cell)
    if not cell.kernel.in_place_safe:
        raise Declined("doesn't claim to be in_place_safe")
    one, tried = cell.smallest(), False
    args = without_out(one.spec, one.build())
    truth = Truth.of(one.spec, args)
    like = truth.torch[0]
    for i, value in enumerate(args):
        fits = isinstance(value, Tensor) and (value.shape, value.dtype) == (like.shape, like.dtype)
        if not fits or overlaps(TensorMeta.of(value)):
            continue
        fresh = without_out(one.spec, one.build())
        given = (*fresh[:place], fresh[i], *fresh[place + 1 :])
        result, tried = one.plan(given, aliased=True)(*given), True
        name = one.spec.params[i].name
        if not isinstance(result, Tensor) or result.data_ptr() != fresh[i].data_ptr():
            raise Broken("writes_in_place", f"out is {name}, but another tensor was returned")
        one.judge("writes_in_place", truth, result, laid_out=False, about=f"out is {name}")
    if not tried:
        raise Inapplicable("no argument of its smallest smoke sample has the result's shape and type")


def reaches_its_precision(cell: Cell) -> float:
    """Reach the precision class that the kernel claims in float32."""
    if cell.dtype is not torch.float32:
        raise Inapplicable("precision classes are for float32 only")
    one = cell.smallest()
    args = without_out(one.spec, one.build())
    truth, result = Truth.of(one.spec, args), one.plan(args)(*args)
    found = truth.judge(result)
    if not in_form(truth, result):
        raise Broken("has_torchs_layout", f"{_sample(one)}: {found.reason}")
    reached = precision_class(found.error)
    if coarser(reached, cell.kernel.precision):
        raise Broken(
            "reaches_its_precision",
            f"{_sample(one)}: claims {cell.kernel.precision}, but an error of {found.error:.1e} is {reached}",
        )
    return found.error


def returns_promptly(cell: Cell) -> float:
    """Take under 5 ms of host time in a repeated call, which must compile and plan nothing.

    Returns microseconds.
    """
    if cell.machine.simulated:
        raise Inapplicable("simulated: its time means nothing")
    one = cell.smallest()
    args = one.build()
    call = one.plan(args)
    call(*args)
    call = one.planned(args)
    spent = [_seconds(one, call, args) for _ in range(REPEATS)]
    patience = time.monotonic() + PATIENCE
    while not _prompt(spent) and time.monotonic() < patience:
        spent.append(_seconds(one, call, args))
    own, whole = min(own for own, _ in spent), min(whole for _, whole in spent)
    if not _prompt(spent):
        raise Broken(
            "returns_promptly",
            f"{_sample(one)}: a call took {own * 1e3:.1f} ms of host time, {whole * 1e3:.1f} ms in all; "
            f"the limits are {PROMPT_MS} and {WAITING_MS} ms",
        )
    return whole * 1e6


def _seconds(cell: Cell, call: Callable[..., Any], args: tuple[Any, ...]) -> tuple[float, float]:
    """Return the time that this thread spent on a call, and the time that passed."""
    synchronize(cell.device)
    with cell.state():
        own, start = time.thread_time(), time.perf_counter()
        call(*args)
        return time.thread_time() - own, time.perf_counter() - start


def _prompt(spent: list[tuple[float, float]]) -> bool:
    return any(own <= PROMPT_MS / 1e3 and whole <= WAITING_MS / 1e3 for own, whole in spent)


OF_A_SAMPLE: tuple[Rule, ...] = (agrees_with_float64,)
"""Rules checked on every sample."""

OF_A_TYPE: tuple[Rule, ...] = (
    takes_a_smoke_sample,
    repeats_itself,
    reads_no_further,
    takes_tensors_that_need_gradients,
)
"""Rules checked in every dtype that a kernel claims."""

OF_A_KERNEL: tuple[Rule, ...] = (
    leaves_the_process_alone,
    gives_reasons,
    answers_equal_problems_alike,
    stays_within_its_output,
    reads_new_data,
    reads_moved_data,
    reads_numbers_anew,
    writes_into_out,
    writes_in_place,
    reaches_its_precision,
    returns_promptly,
    passes_opcheck,
    agrees_when_compiled,
    agrees_in_a_forked_child,
)
"""Rules checked once for each kernel, since the dtype makes no difference."""


def _out(cell: Cell, args: tuple[Any, ...]) -> Tensor | None:
    return next((a for a, i in zip(args, without_out(cell.spec, args), strict=True) if a is not i), None)


def _place_of_out(cell: Cell) -> int:
    places = [i for i, p in enumerate(cell.spec.params) if p.kind == "out"]
    if not places:
        raise Inapplicable(f"{cell.spec.name} takes no out")
    return places[0]


def _sample(cell: Cell) -> str:
    return f"sample {cell.sample.name}" if cell.sample else "the sample"
